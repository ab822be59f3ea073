"""Benchmark `make bench-bookings`: does a burst that comes to four gateways spread as one gateway would
spread it?

Bursts of 64 equal prompts in front of four simulated workers, one of which has the prompt already: a gateway
that does not know the others' requests sends all of its own there. The figure is how many of a hundred
requests went elsewhere than with one gateway: with bookings of their own, shared, shared where the burst
takes a second to come, shared where all of it comes to one of the four, and in turn.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack

import aiohttp
import uvloop

from gateway.app import bundled_tokenizer
from gateway.redis.embedded import EmbeddedServer
from loadtest.extent import extent
from loadtest.fleet import RunningFleet, gateway_before, simulated_fleet
from loadtest.report import Figure, publish

NUM_WORKERS = 4
NUM_GATEWAYS = extent(2, 4)
BURST = 64
NUM_BURSTS = extent(1, 5)
PROMPT_TOKENS = 1500
GOAL = 10.0
WORKER = ("--kv-blocks", "20000", "--prefill-tokens-per-s", "20000", "--decode-tokens-per-s", "20")
"""Flags of a worker: responses last for longer than a burst."""
MEET_S = 1.5
"""Seconds for gateways to discover each other, and for events to come in."""

ALL_CASES = (
    ("own", "own", 0.0, NUM_GATEWAYS),
    ("shared", "shared", 0.0, NUM_GATEWAYS),
    ("shared.paced", "shared", 1.0, NUM_GATEWAYS),
    ("shared.one_asked", "shared", 0.0, 1),
    ("atomic", "atomic", 0.0, NUM_GATEWAYS),
)
CASES = extent(ALL_CASES[-1:], ALL_CASES)
"""Cases: name, `--booking`, seconds that a burst takes to arrive, gateways that it is sent to."""

Spread = list[int]
"""Requests per worker, the most first."""


def main() -> None:
    server = EmbeddedServer()
    server.start()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            (alone, *_) = runner.run(bursts(server.url, "own", num_gateways=1))
            print("one gateway", alone)
            figures = []
            for name, booking, pace_s, num_asked in CASES:
                spreads = runner.run(bursts(server.url, booking, pace_s=pace_s, num_asked=num_asked))
                print(name, spreads)
                shares = sorted(moved(alone, spread) for spread in spreads)
                goal = None if name in ("own", "shared.one_asked") else GOAL
                figures.append(
                    Figure(f"redis.burst_moved.{name}", shares[NUM_BURSTS // 2], "%", goal, shares)
                )
    finally:
        server.stop()
    publish("bench_bookings", figures)


def moved(alone: Spread, spread: Spread) -> float:
    return sum(abs(one - other) for one, other in zip(alone, spread, strict=True)) * 50 / sum(alone)


async def bursts(
    redis: str,
    booking: str,
    *,
    num_gateways: int = NUM_GATEWAYS,
    num_asked: int = NUM_GATEWAYS,
    pace_s: float = 0.0,
) -> list[Spread]:
    flags = (
        "--tokenizer",
        str(bundled_tokenizer()),
        "--expose-headers",
        "--redis",
        redis,
        "--booking",
        booking,
    )
    with ExitStack() as stack:
        fleets = [stack.enter_context(simulated_fleet(NUM_WORKERS, WORKER, flags))]
        for _ in range(num_gateways - 1):
            fleets.append(stack.enter_context(gateway_before(fleets[0].worker_urls, flags)))
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            await asyncio.sleep(MEET_S)
            await burst(session, fleets, [1, 2, 3], 0.0)  # connections are open from now on
            spreads = []
            for number in range(NUM_BURSTS):
                prompt = [(number * 7919 + i * 31) % 1000 + 1 for i in range(PROMPT_TOKENS)]
                await ask(session, fleets[0], prompt)
                await asyncio.sleep(MEET_S)
                spreads.append(await burst(session, fleets[:num_asked], prompt, pace_s))
            return spreads


async def burst(
    session: aiohttp.ClientSession, fleets: Sequence[RunningFleet], prompt: list[int], pace_s: float
) -> Spread:
    async def one(number: int) -> str:
        await asyncio.sleep(pace_s * number / BURST)
        return await ask(session, fleets[number % len(fleets)], prompt)

    workers = Counter(await asyncio.gather(*map(one, range(BURST))))
    assert workers.total() == BURST and len(workers) <= NUM_WORKERS, workers
    return sorted((*workers.values(), *[0] * (NUM_WORKERS - len(workers))), reverse=True)


async def ask(session: aiohttp.ClientSession, fleet: RunningFleet, prompt: list[int]) -> str:
    body = {"model": "m", "prompt": prompt, "max_tokens": 8}
    async with session.post(f"{fleet.gateway_url}/v1/completions", json=body) as answer:
        assert answer.status == 200, await answer.text()
        await answer.read()
        return answer.headers["x-kvgate-worker"]


if __name__ == "__main__":
    main()
