"""Benchmark `make bench-waits`: how long a request will wait in the admission queue, and how long it did.

A gateway in front of simulated workers that are saturated; each request notes the gateway's estimate as it
joins the queue (the one of Retry-After, of the message and of `/admin/admission`), and then its own wait. The
error is a factor: 2 is twice as long as estimated, or half. Scenarios differ in what frees a worker: the end
of an answer, a computed prompt, a worker that joins, a change of the answers' length.
"""

import asyncio
import statistics
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import aiohttp
import uvloop

from engines.sim import Sim, SimConfig
from gateway.app import Gateway, bundled_tokenizer
from gateway.config import config_of
from loadtest.extent import extent
from loadtest.report import Figure, publish

RUN_S = extent(1.0, 6.0)
NUM_CLIENTS = extent(36, 48)
EARLY_S = 2.0
"""Seconds from the first wait on in which little is known yet; they have a figure of their own."""
LEAST_S = 0.2
"""A shorter wait is no reason to come back later; both sides count as this long at least."""
GOAL, EARLY_GOAL = 2.0, 5.0
WORDS = "the queue in front of a saturated worker is served in turn and "


@dataclass(frozen=True, slots=True)
class QueueScenario:
    """Load of a saturated fleet. `flags` are the gateway's, `sim` the workers'. From the middle of the run on
    `joins` more workers are there, and answers have `later_tokens`."""

    flags: dict[str, Any]
    sim: dict[str, Any]
    prompt_words: int = 8
    tokens: int = 100
    later_tokens: int = 0
    joins: int = 0


SCENARIOS = {
    "answers": QueueScenario({"queue_above_in_flight": 4}, {"decode_tokens_per_s": 100.0}),
    "prompts": QueueScenario(
        {"queue_above_ttft_s": 0.5},
        {"prefill_tokens_per_s": 4000.0, "max_batched_tokens": 512},
        prompt_words=500,
        tokens=4,
    ),
    "joins": QueueScenario({"queue_above_in_flight": 4}, {"decode_tokens_per_s": 100.0}, joins=2),
    "longer": QueueScenario({"queue_above_in_flight": 4}, {"decode_tokens_per_s": 200.0}, later_tokens=300),
}


@dataclass(slots=True)
class Waits:
    """Pairs of estimate and wait, in seconds, with the time since the first one."""

    pairs: list[tuple[float, float, float]] = field(default_factory=list)

    def factors(self, *, is_early: bool) -> list[float]:
        return [
            factor_of(estimate_s, wait_s)
            for at_s, estimate_s, wait_s in self.pairs
            if (at_s < EARLY_S) is is_early
        ]


def factor_of(estimate_s: float, wait_s: float) -> float:
    """The error as a factor of at least 1."""
    estimate_s, wait_s = max(estimate_s, LEAST_S), max(wait_s, LEAST_S)
    return max(estimate_s / wait_s, wait_s / estimate_s)


def main() -> None:
    figures: list[Figure] = []
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for name, scenario in SCENARIOS.items():
            figures += figures_of(name, runner.run(measured(scenario)))
    publish("bench_waits", figures)


def figures_of(name: str, waits: Waits) -> list[Figure]:
    later, early = waits.factors(is_early=False), waits.factors(is_early=True)
    rows: Sequence[tuple[str, list[float], float | None]] = (
        (f"wait.error.{name}", later or early, GOAL),
        (f"wait.error_early.{name}", early, EARLY_GOAL),
    )
    found = [
        Figure(row, round(statistics.median(factors), 2), "factor", goal, [round(p90(factors), 2)])
        for row, factors, goal in rows
        if factors
    ]
    longest = max((wait_s for _, _, wait_s in waits.pairs), default=0.0)
    return [*found, Figure(f"wait.longest.{name}", round(longest, 2), "s", None, [float(len(waits.pairs))])]


def p90(values: Sequence[float]) -> float:
    return sorted(values)[int(0.9 * (len(values) - 1))]


async def measured(scenario: QueueScenario) -> Waits:
    """Run a scenario with closed-loop clients, more than the workers have room for."""
    waits = Waits()
    async with AsyncExitStack() as stack:
        sims = [await sim_of(stack, scenario) for _ in range(2)]
        gateway = await gateway_of(stack, scenario, sims)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        watch(gateway, waits)
        loop = asyncio.get_running_loop()
        half_s, end_s, numbers = loop.time() + RUN_S / 2, loop.time() + RUN_S, count()

        async def client() -> None:
            while (now := loop.time()) < end_s:
                is_late = scenario.later_tokens and now >= half_s
                tokens = scenario.later_tokens if is_late else scenario.tokens
                prompt = f"{next(numbers)} " + WORDS * (scenario.prompt_words // 12 + 1)
                await ask(session, gateway.port, prompt, tokens)

        async def grow() -> None:
            await asyncio.sleep(RUN_S / 2)
            for _ in range(scenario.joins):
                gateway.add_worker((await sim_of(stack, scenario)).url)

        await asyncio.gather(grow(), *(client() for _ in range(NUM_CLIENTS)))
    return waits


async def sim_of(stack: AsyncExitStack, scenario: QueueScenario) -> Sim:
    sim = await Sim(SimConfig(port=0, **scenario.sim)).start()
    stack.push_async_callback(sim.stop)
    return sim


async def gateway_of(stack: AsyncExitStack, scenario: QueueScenario, sims: Sequence[Sim]) -> Gateway:
    config = config_of(
        worker=[sim.url for sim in sims],
        tokenizer=[str(bundled_tokenizer())],
        port=0,
        admin_port=0,
        **scenario.flags,
    )
    gateway = Gateway(config)
    await gateway.start()
    stack.push_async_callback(gateway.stop)
    async with asyncio.timeout(20):
        while not gateway.fleet.is_ready(None):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return gateway


def watch(gateway: Gateway, waits: Waits) -> None:
    """Note the estimate of each request that joins a queue, and its wait once it leaves."""
    gate = gateway.parts.requests.dispatch.context.gate
    assert gate is not None, "the scenario has a queue"
    queues, join, release = gate.queues, gate.queues.wait, gate.queues.go
    estimates: dict[int, tuple[float, float]] = {}
    loop, began = asyncio.get_running_loop(), 0.0

    def joined(waiter: Any, request: Any, prompt: Any, ticket: Any) -> None:
        nonlocal began
        join(waiter, request, prompt, ticket)
        now = loop.time()
        began = began or now
        estimates[id(request)] = now - began, queues.expected_wait_s(request.model)

    def released(waiter: Any, request: Any, prompt: Any, decided: Any) -> bool:
        at_s, estimate_s = estimates.pop(id(request))
        waits.pairs.append((at_s, estimate_s, request.queued_s))
        return release(waiter, request, prompt, decided)

    queues.wait, queues.go = joined, released  # type: ignore[method-assign]


async def ask(session: aiohttp.ClientSession, port: int, prompt: str, tokens: int) -> None:
    body = {"model": "m", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True}
    async with session.post(f"http://127.0.0.1:{port}/v1/completions", json=body) as answer:
        await answer.read()
        assert answer.status in (200, 429), answer.status


if __name__ == "__main__":
    main()
