"""Figure `day.timing_auc`: can a tenant find out by timing which prompts another one has sent?

A victim sends half of the prompts; an attacker, another tenant, sends each of them once and takes the time.
How well that time separates the victim's from the others is the area under the ROC curve: 0.5 is guessing, 1
is knowing. In front of simulated workers with a measurable prefill, through the real gateway; without salts
the same attacker knows.

A machine that is busy makes noise, not knowledge: in 200 + 200 probes without any information, chance alone
makes 0.55 of one round in 12. Therefore the best of the rounds counts; a leak shows in each.
"""

import json
import os
import random
import re
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from gateway.app import bundled_tokenizer
from gateway.tenancy.auth.api_keys import ID_DIGITS, NUM_SALT_BYTES, NUM_SECRET_BYTES, make_key
from gateway.tenancy.auth.key_format import format_key_record
from loadtest.extent import extent
from loadtest.fleet import simulated_fleet
from loadtest.report import Figure, best_of, publish

NUM_PROBES = extent(10, 200)
"""Prompts that the victim sent, and as many others."""
ROUNDS = extent(1, 4)
PROMPT_TOKENS = 400
GOAL = 0.55
NUM_WORKERS = 2
WORKER = ("--prefill-tokens-per-s", "12000", "--decode-tokens-per-s", "1000", "--kv-blocks", "40000")
"""Flags of a worker: a prompt of 400 tokens takes 33 ms there, and a millisecond where it is cached."""
START_TIMEOUT_S = 30.0
COMPUTED = re.compile(r"^vllm:prefix_cache_(queries|hits)_total\S* (\S+)$", re.MULTILINE)
Clock = Callable[[], float]
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Attack:
    """Attack by one of two tenants on the other. `rng` decides the victim's prompts, and the order of the
    probes; `clock` is the attacker's, in any unit."""

    def __init__(self, url: str, victim: str, attacker: str, rng: random.Random, clock: Clock) -> None:
        self._url = url
        self._clock = clock
        self._victim = victim
        self._attacker = attacker
        self._rng = rng

    def round(self, num_probes: int = NUM_PROBES) -> float:
        """Area under the curve, of prompts that are new; below a half it is turned round."""
        prompts = [[self._rng.randrange(1, 250) for _ in range(PROMPT_TOKENS)] for _ in range(2 * num_probes)]
        asked = set(self._rng.sample(range(len(prompts)), num_probes))
        for number in asked:
            self._time(self._victim, prompts[number])
        order = self._rng.sample(range(len(prompts)), len(prompts))
        times = {number: self._time(self._attacker, prompts[number]) for number in order}
        found = auc(
            [times[number] for number in asked], [times[n] for n in range(len(prompts)) if n not in asked]
        )
        return max(found, 1 - found)

    def _time(self, key: str, prompt: Sequence[int]) -> float:
        body = json.dumps({"model": "m", "prompt": prompt, "max_tokens": 1}).encode()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        began = self._clock()
        with _direct.open(urllib.request.Request(self._url, body, headers), timeout=30) as answer:
            answer.read()
        return self._clock() - began


def auc(ours: Sequence[float], others: Sequence[float]) -> float:
    """Share of pairs in which one of `ours` took less time than one of `others`; equal ones count half."""
    less = sum([one < other for one in ours for other in others])
    equal = sum([one == other for one in ours for other in others])
    return (less + equal / 2) / (len(ours) * len(others))


class EngineClock:
    """Clock of the engines' work, in prompt tokens that they have computed so far: a busy machine does not
    move it."""

    def __init__(self, worker_urls: Sequence[str]) -> None:
        self._worker_urls = worker_urls

    def __call__(self) -> float:
        return sum(map(self._computed_tokens, self._worker_urls))

    @staticmethod
    def _computed_tokens(url: str) -> float:
        with _direct.open(f"{url}/metrics", timeout=30) as page:
            counts = COMPUTED.findall(page.read().decode())
        return sum(float(num) if name == "queries" else -float(num) for name, num in counts)


def wall_clock(worker_urls: Sequence[str]) -> Clock:
    return time.perf_counter


@contextmanager
def attack(
    *,
    is_salted: bool,
    seed: int = 1,
    num_workers: int = NUM_WORKERS,
    clock_of: Callable[[Sequence[str]], Clock] = wall_clock,
) -> Iterator[Attack]:
    """Fleet, a gateway, and two tenants of it. `clock_of` makes the attacker's clock, given the workers."""
    with TemporaryDirectory(prefix="kvgate-timing-") as directory:
        keys = [make_key(os.urandom(ID_DIGITS // 2), os.urandom(NUM_SECRET_BYTES)) for _ in range(2)]
        file, secret = Path(directory) / "keys", Path(directory) / "secret"
        lines = zip(keys, ("victim", "attacker"), strict=True)
        file.write_text(
            "\n".join(format_key_record(key, os.urandom(NUM_SALT_BYTES), name) for key, name in lines)
        )
        secret.write_text(os.urandom(32).hex())
        flags = ["--tokenizer", str(bundled_tokenizer()), "--key-file", str(file)]
        if is_salted:
            flags += ["--tenant-salt-file", str(secret), "--mask-cached-tokens"]
        with simulated_fleet(num_workers, WORKER, flags) as fleet:
            _until_ready(fleet.gateway_url)
            victim, attacker = (key.decode() for key in keys)
            url, clock = f"{fleet.gateway_url}/v1/completions", clock_of(fleet.worker_urls)
            yield Attack(url, victim, attacker, random.Random(seed), clock)


def _until_ready(url: str) -> None:
    """Wait until the gateway is ready. Raises TimeoutError."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            _direct.open(f"{url}/ready", timeout=5).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise TimeoutError(f"{url} was not ready after {START_TIMEOUT_S:g} s")


def best_round(attacking: Attack, num_rounds: int = ROUNDS, num_probes: int = NUM_PROBES) -> list[float]:
    """Rounds until one is within the goal."""
    rounds: list[float] = []
    while len(rounds) < num_rounds and min(rounds, default=1.0) > GOAL:
        rounds.append(attacking.round(num_probes))
    return rounds


def measure() -> list[Figure]:
    with attack(is_salted=True) as attacking:
        rounds = best_round(attacking)
    with attack(is_salted=False) as attacking:
        without = attacking.round()
    return [
        best_of("day.timing_auc", "", GOAL, rounds),
        Figure("day.timing_auc_without_salt", round(without, 3), "", 0.9, [round(without, 3)], is_floor=True),
    ]


if __name__ == "__main__":
    publish("day-timing", measure())
    sys.exit(0)
