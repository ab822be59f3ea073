"""`day.auth_cpu_us`: what a request costs more where it shows a key that the gateway looks up.

Three gateways run at once before the same C workers, and are loaded in turn, a slice each, with the same
requests (which show a key, also where nobody looks): with no keys, with a key file, and with salts too. A
machine that is shared slows all three, so what counts is the ratio within a round, at the cost of the
fastest gateway without keys; of the rounds the better.
"""

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from gateway.app import bundled_tokenizer
from gateway.core.keylines import line_of
from gateway.core.keys import ID_DIGITS, NUM_SALT_BYTES, NUM_SECRET_BYTES, make_key
from loadtest.contenders import GatewayContender, fake_workers, gateway
from loadtest.instruments import Load
from loadtest.instruments import measure as put_load
from loadtest.publisher import write_prompts
from loadtest.report import Figure, best_of, publish
from loadtest.workloads.bodies import Texts, small

CHAT = "/v1/chat/completions"
NUM_WORKERS = 2
NUM_KEYS = 1000
NUM_BODIES = 40_000
ROUNDS = 2
SLICES = 5
SLICE_S = 1.0
CONNECTIONS = 16
GOAL = 3.0
PLAIN, KEYED, SALTED = "plain", "keyed", "salted"


class BenchError(Exception):
    """A run whose figures would not mean what they say."""


@dataclass(slots=True)
class Cost:
    """Of one gateway in one round."""

    cpu_us: float = 0.0
    num_requests: int = 0

    @property
    def per_request_us(self) -> float:
        return self.cpu_us / self.num_requests


Round = Mapping[str, Cost]


def flags_of(directory: Path) -> tuple[str, Mapping[str, list[str]]]:
    """A key of a thousand, and how each gateway is started."""
    keys = [make_key(os.urandom(ID_DIGITS // 2), os.urandom(NUM_SECRET_BYTES)) for _ in range(NUM_KEYS)]
    file, secret = directory / "keys", directory / "secret"
    lines = (line_of(key, os.urandom(NUM_SALT_BYTES), f"t{n}", ["m"]) for n, key in enumerate(keys))
    file.write_text("\n".join(lines))
    secret.write_text(os.urandom(32).hex())
    keyed = ["--key-file", str(file)]
    salted = [*keyed, "--tenant-salt", "--tenant-salt-file", str(secret)]
    return keys[NUM_KEYS // 2].decode(), {PLAIN: [], KEYED: keyed, SALTED: salted}


def run(directory: Path, num_rounds: int = ROUNDS, slice_s: float = SLICE_S) -> list[Round]:
    """Raises BenchError and InstrumentError."""
    bodies, prompts = directory / "bodies", directory / "prompts"
    small(Texts("m", seed=1), NUM_BODIES).write(bodies)
    write_prompts(prompts, [])
    key, flags = flags_of(directory)
    load = Load(CHAT, CONNECTIONS, slice_s, warm_up_s=0.2, key=key)
    with ExitStack() as stack:
        ports = stack.enter_context(fake_workers(NUM_WORKERS, 5, prompts))
        gateways = {
            name: stack.enter_context(gateway(ports, bundled_tokenizer(), *more))
            for name, more in flags.items()
        }
        return [one_round(gateways, bodies, load) for _ in range(num_rounds)]


def one_round(gateways: Mapping[str, GatewayContender], bodies: Path, load: Load) -> Round:
    costs = {name: Cost() for name in gateways}
    for _ in range(SLICES):
        for name, contender in gateways.items():
            reading = put_load(contender.port, bodies, load, contender.pids)
            if reading.num_errors or not reading.num_requests:
                raise BenchError(f"{name}: {reading.num_requests} answered, {reading.num_errors} failed")
            costs[name].cpu_us += reading.cpu_us
            costs[name].num_requests += reading.num_requests
    told = ", ".join(f"{name} {cost.per_request_us:.2f} us" for name, cost in costs.items())
    print(f"a request costs: {told}")
    return costs


def figures(rounds: list[Round]) -> Iterator[Figure]:
    base_us = min(each[PLAIN].per_request_us for each in rounds)

    def added(name: str) -> list[float]:
        ratios = [each[name].per_request_us / each[PLAIN].per_request_us for each in rounds]
        return [(ratio - 1) * base_us for ratio in ratios]

    yield best_of("day.auth_cpu_us", "us", GOAL, added(KEYED))
    yield best_of("day.auth_with_salt_cpu_us", "us", None, added(SALTED))
    yield best_of("day.plain_cpu_us", "us", None, [each[PLAIN].per_request_us for each in rounds])


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="kvgate-auth-") as directory:
        return list(figures(run(Path(directory))))


if __name__ == "__main__":
    publish("day-auth", measure())
    sys.exit(0)
