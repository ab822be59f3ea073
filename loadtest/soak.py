"""`make soak`: the simulated fleet under steady traffic for MINUTES (10), watching the gateway's memory.

Clients hold growing conversations, streamed and not, some of which leave in mid-answer. Caches of
workers, gateway and tokenizer fill in the first part (warm-up); from then on memory must stay flat.
"""

import asyncio
import os
import random
import statistics
import time
from dataclasses import dataclass, field

import aiohttp
import uvloop

from gateway.app import bundled_tokenizer
from loadtest.fleet import RunningFleet, rss_mb, simulated_fleet
from loadtest.report import Figure, publish
from loadtest.workloads.conversations import Conversations

NUM_CLIENTS = 24
WARM_UP_SHARE = 0.4
SAMPLE_S = 1.0
SIM_FLAGS = ["--kv-blocks", "2048", "--prefill-tokens-per-s", "50000", "--decode-tokens-per-s", "400"]
LEAVES_EARLY = 0.02


@dataclass(slots=True)
class Tally:
    num_answered: int = 0
    num_left: int = 0
    failures: list[str] = field(default_factory=list)
    rss_mb: list[float] = field(default_factory=list)


def main() -> None:
    minutes = float(os.environ.get("MINUTES", "10"))
    tokenizer = ["--tokenizer", str(bundled_tokenizer())]
    with (
        simulated_fleet(3, SIM_FLAGS, tokenizer) as fleet,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        tally = runner.run(soak(fleet, minutes * 60))
    publish("soak", figures(tally, minutes))


async def soak(fleet: RunningFleet, seconds: float) -> Tally:
    tally = Tally()
    deadline = time.monotonic() + seconds
    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
        for seed in range(NUM_CLIENTS):
            group.create_task(client(session, fleet, seed, deadline, tally))
        while time.monotonic() < deadline:
            tally.rss_mb.append(rss_mb(fleet.gateway_pid))
            await asyncio.sleep(SAMPLE_S)
    return tally


async def client(
    session: aiohttp.ClientSession, fleet: RunningFleet, seed: int, deadline: float, tally: Tally
) -> None:
    rng = random.Random(seed)
    source = Conversations("m", seed)
    while time.monotonic() < deadline:
        for body in source.turns(rng.randint(2, 12)):
            if time.monotonic() > deadline:
                return
            await one(
                session, fleet, body | {"stream": rng.random() < 0.5}, rng.random() < LEAVES_EARLY, tally
            )


async def one(
    session: aiohttp.ClientSession, fleet: RunningFleet, body: dict[str, object], leaves: bool, tally: Tally
) -> None:
    url = f"{fleet.gateway_url}/v1/chat/completions"
    try:
        async with session.post(url, json=body) as answer:
            if leaves:
                tally.num_left += 1
                answer.close()
                return
            data = await answer.read()
            if answer.status != 200 or b'"error"' in data:
                tally.failures.append(f"{answer.status}: {data[:200]!r}")
            tally.num_answered += 1
    except aiohttp.ClientError as exc:
        tally.failures.append(repr(exc))


def figures(tally: Tally, minutes: float) -> list[Figure]:
    warm = tally.rss_mb[int(len(tally.rss_mb) * WARM_UP_SHARE) :]
    part = max(len(warm) // 6, 1)
    before, after = statistics.median(warm[:part]), statistics.median(warm[-part:])
    growth = (after - before) / before * 100
    print(f"{tally.num_answered} answered, {tally.num_left} left early, {len(tally.failures)} failed")
    for failure in tally.failures[:10]:
        print("  failed:", failure)
    return [
        Figure("soak.rss_growth_percent", round(growth, 2), "%", 5, [round(growth, 2)]),
        Figure("soak.rss_mb", round(after, 1), "MB", None, [round(before, 1), round(after, 1)]),
        Figure("soak.failed_requests", len(tally.failures), "requests", 0, [len(tally.failures)]),
        Figure("soak.requests_per_s", round(tally.num_answered / minutes / 60, 1), "1/s", None, []),
    ]


if __name__ == "__main__":
    main()
