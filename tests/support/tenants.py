"""Tenants with keys of their own, and how many cached tokens they get of one another."""

import random
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from loadtest.extent import extent
from loadtest.fleet import GATEWAY
from tests.support.engine_talk import TalkAnswer, post
from tests.support.gateway_process import GatewayProcess

SECRET = "0123456789abcdef" * 4
NUM_PROBES = extent(100, 200, 1_000)
"""The figure that docs/benchmarks states is FULL=1's."""
EVERY = 10
"""A prompt in ten is sent a second time by the tenant that knows it."""
NUM_TOKENS = 65
"""Two blocks of 32, and a token that is always computed."""
NUM_CONNECTIONS = 4


def keys_of(folder: Path, *tenants: str) -> tuple[list[dict[str, str]], tuple[str, ...]]:
    """A header for each tenant, and the flags for their keys."""
    file, headers = folder / "keys.jsonl", []
    with file.open("w") as lines:
        for tenant in tenants:
            command = [*GATEWAY, "key", "new", "--tenant", tenant]
            made = subprocess.run(command, capture_output=True, text=True, check=True)
            lines.write(made.stdout)
            headers.append({"authorization": f"Bearer {made.stderr.split()[-1]}"})
    return headers, ("--key-file", str(file), "--admin-auth", "off")


def salted(folder: Path) -> tuple[str, ...]:
    """The flags that keep tenants apart."""
    secret = folder / "secret"
    secret.write_text(SECRET)
    return "--tenant-salt-file", str(secret)


@dataclass(frozen=True, slots=True)
class CrossTenantHits:
    """`num_hits` of `num_probes` prompts of one tenant were cached for another; `num_own` of `num_repeats`
    for the tenant that had sent them. `num_predicted` were predicted as the engine counted."""

    num_probes: int
    num_hits: int
    num_repeats: int
    num_own: int
    num_predicted: int


def cross_tenant_hits(gateway: GatewayProcess, tenants: Sequence[Mapping[str, str]]) -> CrossTenantHits:
    """Send `NUM_PROBES` new prompts by one tenant and then by the other, each in turn the first."""

    def probe(number: int) -> tuple[TalkAnswer, TalkAnswer | None]:
        one, other = (tenants[(number + i) % 2] for i in range(2))
        first = send(gateway, number, one)
        assert first.status == 200 and not first.cached, first
        crossed = send(gateway, number, other)
        return crossed, None if number % EVERY else send(gateway, number, one)

    with ThreadPoolExecutor(NUM_CONNECTIONS) as threads:
        pairs = list(threads.map(probe, range(NUM_PROBES)))
    crossed, repeats = [pair[0] for pair in pairs], [again for _, again in pairs if again is not None]
    for answer in (*crossed, *repeats):
        assert answer.status == 200, answer
    return CrossTenantHits(
        num_probes=len(crossed),
        num_hits=sum(answer.cached > 0 for answer in crossed),
        num_repeats=len(repeats),
        num_own=sum(answer.cached == NUM_TOKENS - 1 for answer in repeats),
        num_predicted=sum(answer.predicted == answer.cached for answer in (*crossed, *repeats)),
    )


def send(gateway: GatewayProcess, number: int, tenant: Mapping[str, str]) -> TalkAnswer:
    rng = random.Random(f"tenants {number}")
    prompt = [rng.randrange(100, 8000) for _ in range(NUM_TOKENS)]
    body = {"model": "m", "prompt": prompt, "max_tokens": 1, "temperature": 0}
    return post(gateway, "/v1/completions", body, **tenant)
