"""Figure `day.retry_load_factor`: the load on workers by retries, while half of them lose their requests.

Six simulated workers, of which three accept, read the request, and close before the first byte, while their
probes are green: the worst that a gateway can meet, since nothing but lost requests shows it. Clients do not
retry by themselves. The factor is requests that reached workers by requests of clients, once the budget of
retries has settled. A second run has nothing but that budget: workers that lose requests are not left out; in
a third they lose probes too.
"""

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass

import aiohttp
import uvloop

from gateway.app import bundled_tokenizer
from loadtest.extent import extent
from loadtest.fleet import RunningFleet, simulated_fleet
from loadtest.report import Figure, publish

NUM_WORKERS = 6
NUM_CLIENTS = 48
NUM_SETTLE = extent(100, 400)
NUM_ASKED = extent(100, 4000)
GOAL = 1.2
WORKER = ("--kv-blocks", "20000", "--prefill-tokens-per-s", "100000", "--decode-tokens-per-s", "200")


@dataclass(frozen=True, slots=True)
class RetryOutcome:
    """Outcome of clients' requests: how many reached workers, and how many were answered."""

    num_asked: int
    num_reached: int
    num_answered: int

    @property
    def load_factor(self) -> float:
        return self.num_reached / self.num_asked

    @property
    def lost_share(self) -> float:
        return 1 - self.num_answered / self.num_asked


async def reached(session: aiohttp.ClientSession, fleet: RunningFleet) -> int:
    total = 0
    for url in fleet.worker_urls:
        async with session.get(f"{url}/sim/stats") as answer:
            total += (await answer.json())["requests"]
    return total


async def burst(session: aiohttp.ClientSession, fleet: RunningFleet, num: int) -> int:
    """Number of answered requests, by clients that each have one at a time."""
    left = iter(range(num))

    async def one() -> int:
        num_good = 0
        for number in left:
            body = {"model": "m", "prompt": [number % 1000 + 1] * 40, "max_tokens": 4, "ignore_eos": True}
            async with session.post(f"{fleet.gateway_url}/v1/completions", json=body) as answer:
                await answer.read()
                num_good += answer.status == 200
        return num_good

    return sum(await asyncio.gather(*[one() for _ in range(NUM_CLIENTS)]))


async def num_up(session: aiohttp.ClientSession, fleet: RunningFleet) -> int:
    async with session.get(f"{fleet.admin_url}/admin/workers") as answer:
        endpoints = (await answer.json())["endpoints"]
    return sum(worker["is_up"] for endpoint in endpoints for worker in endpoint["workers"])


async def outcome(fleet: RunningFleet, fault: str, num_asked: int) -> RetryOutcome:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        async with asyncio.timeout(30):
            while await num_up(session, fleet) < NUM_WORKERS:  # noqa: ASYNC110  state of another process
                await asyncio.sleep(0.05)
        for url in fleet.worker_urls[1::2]:
            async with session.post(f"{url}/sim/faults", json={"connections": fault}) as answer:
                assert answer.status == 200, await answer.text()
        await burst(session, fleet, NUM_SETTLE)
        before = await reached(session, fleet)
        num_good = await burst(session, fleet, num_asked)
        return RetryOutcome(num_asked, await reached(session, fleet) - before, num_good)


def run(fault: str, num_asked: int = NUM_ASKED, *flags: str) -> RetryOutcome:
    """Run with a `fault` at half of the workers (`engines/sim/faults.py`)."""
    with ExitStack() as stack:
        gateway = ("--tokenizer", str(bundled_tokenizer()), "--probe-interval-s", "0.5", *flags)
        fleet = stack.enter_context(simulated_fleet(NUM_WORKERS, WORKER, gateway))
        runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        return runner.run(outcome(fleet, fault, num_asked))


def measure() -> list[Figure]:
    figures = []
    for suffix, fault, *flags in (
        ("", "die"),
        (".no_ejection", "die", "--eject-after-failures", "0"),
        (".probes_fail", "reset"),
    ):
        outcome = run(fault, NUM_ASKED, *flags)
        print(outcome)
        factor, lost = round(outcome.load_factor, 4), round(outcome.lost_share * 100, 2)
        figures.append(Figure(f"day.retry_load_factor{suffix}", factor, "x", GOAL, [factor]))
        figures.append(Figure(f"day.retry_lost{suffix}", lost, "%", None, [lost]))
    return figures


if __name__ == "__main__":
    publish("day_retries", measure())
