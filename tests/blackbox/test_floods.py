"""A worker that publishes too many KV events, beside a good one: only the first loses by it.

The events come from a separate process (`loadtest/liar.py`), as fast as sockets take them.
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from loadtest import liar
from tests.support.blackbox.bench import Bench, lasting, visiting
from tests.support.blackbox.http1_bytes import completion, post, wire
from tests.support.blackbox.real_gateway import START_S
from tests.support.blackbox.scripted_worker import METRICS, Call, FakeWorker
from tests.support.blackbox.strict_client import DEADLINE_S
from tests.support.patience import patience, until

NUM_GOOD = 50
NUM_LIARS = 3
NUM_HOARDERS = 13
PORTION_BLOCKS = 1024
"""Blocks of each worker that may be applied between two checks of the limits."""
DECLARED = 1000
"""Blocks, by the scripted workers."""


@pytest_asyncio.fixture(loop_scope="session")
async def bench() -> AsyncIterator[Bench]:
    """Gateway of each test: counts, logs and pauses start at zero."""
    async with (
        lasting("--events", "auto", "--probe-interval-s", "0.2") as gateway,
        visiting(gateway) as bench,
    ):
        yield bench


class Publishing(FakeWorker):
    """Worker with the publisher of the process `sender`; `declared` is its number of blocks."""

    sender: asyncio.subprocess.Process
    sources: bytes = b""
    declared = DECLARED

    def _own(self, call: Call) -> bytes:
        if call.target == b"/kv_event_sources":
            return wire(200, self.sources)
        if call.target == b"/metrics":
            return wire(200, METRICS.replace(f'"{DECLARED}"', f'"{self.declared}"').encode())
        return super()._own(call)

    async def send(self) -> None:
        assert self.sender.stdin
        self.sender.stdin.write(b"go\n")
        await self.sender.stdin.drain()


@contextlib.asynccontextmanager
async def publishing(
    bench: Bench, mode: str, amount: int, declared: int = DECLARED
) -> AsyncIterator[Publishing]:
    """Add a worker that the gateway follows, and that has sent nothing yet."""
    worker = Publishing()
    worker.declared = declared
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-m", "loadtest.liar", mode, str(amount))
    worker.sender = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    try:
        assert worker.sender.stdout
        worker.sources = await asyncio.wait_for(worker.sender.stdout.readline(), patience(START_S))
        await worker.start()
        bench.workers.append(worker)
        await bench.gateway.join(worker)

        async def is_followed() -> bool:
            return bool((await reported(bench, worker))["events_connected"])

        await until(is_followed, "its events are followed")
        yield worker
    finally:
        with contextlib.suppress(ProcessLookupError):
            worker.sender.kill()
        await worker.sender.wait()


async def reported(bench: Bench, worker: FakeWorker) -> dict[str, Any]:
    endpoints = (await bench.gateway.admin("GET", "/admin/workers")).json["endpoints"]
    return next(w for e in endpoints if e["url"] == worker.url for w in e["workers"])


async def blind_reason(bench: Bench, worker: FakeWorker) -> str:
    blind = (await reported(bench, worker))["blind"]
    return str(blind["reason"]) if blind else ""


async def is_cut(bench: Bench, worker: FakeWorker, why: str) -> None:
    """Wait until it is BLIND for that reason, and cut once.

    Good requests are answered until then and after, and the good worker is up throughout.
    """
    num_good = 0
    async with asyncio.timeout(3 * DEADLINE_S):
        while why not in await blind_reason(bench, worker):
            await is_answered(bench, num_good)
            num_good += 1
    assert await total(bench, worker, "kvgate_event_stream_overflows_total") == 1
    (line,) = pauses(bench, worker)
    assert why in line
    for number in range(num_good, NUM_GOOD):  # the reason may change, since the pause may end meanwhile
        await is_answered(bench, number)


async def is_answered(bench: Bench, number: int) -> None:
    answer = await bench.ask(post(completion(f"good {number}")))
    assert answer.status == 200, answer.body
    assert (await bench.gateway.admin("GET", "/ready")).status == 200
    assert await bench.gateway.total("kvgate_worker_up") == len(bench.workers)


def pauses(bench: Bench, worker: FakeWorker) -> list[str]:
    return lines_of(bench, worker, "KV events paused for")


async def total(bench: Bench, worker: FakeWorker, metric: str) -> float:
    key, metrics = f'worker="{worker.id}"', await bench.gateway.metrics()
    return sum(value for name, value in metrics.items() if name.startswith(metric + "{") and key in name)


async def kept(bench: Bench, worker: FakeWorker) -> float:
    return await total(bench, worker, "kvgate_index_blocks")


def lines_of(bench: Bench, worker: FakeWorker, text: str) -> list[str]:
    return [line for line in bench.gateway.log if text in line and f"worker {worker.id}:" in line]


async def test_blocks_beyond_the_declared_number_are_not_kept(bench: Bench) -> None:
    await bench.worker()
    async with publishing(bench, "hoard", 40 * DECLARED) as worker:
        await worker.send()
        await is_cut(bench, worker, "it declares 1,000 on its GPU")
        assert worker.sender.stdout
        await worker.sender.stdout.readline()  # all is sent
        assert await kept(bench, worker) == 0
        assert "stores 1" in await blind_reason(bench, worker)


async def test_several_liars_are_each_cut_and_named(bench: Bench) -> None:
    """Their own limits hold beside one another, and an honest worker's blocks stay."""
    await bench.worker()
    async with contextlib.AsyncExitStack() as stack:
        honest = await stack.enter_async_context(publishing(bench, "hoard", 500))
        liars = [
            await stack.enter_async_context(publishing(bench, "hoard", 30 * DECLARED))
            for _ in range(NUM_LIARS)
        ]
        for each in (honest, *liars):
            await each.send()
        for each in liars:
            await is_cut(bench, each, "it declares 1,000 on its GPU")
        for each in liars:
            assert each.sender.stdout
            await each.sender.stdout.readline()  # all is sent
        assert [await kept(bench, each) for each in liars] == [0] * NUM_LIARS
        await keeps_its_blocks(bench, honest)


async def keeps_its_blocks(bench: Bench, honest: FakeWorker) -> None:
    async def is_applied() -> bool:
        return await kept(bench, honest) == 500

    await until(is_applied, "the honest worker's blocks are there")
    assert await blind_reason(bench, honest) == ""
    assert await total(bench, honest, "kvgate_event_stream_overflows_total") == 0


async def test_the_sum_of_many_workers_is_bounded_at_the_expense_of_the_largest() -> None:
    """Each worker is within its own limit, but all together may have eight times as many only."""
    own = 4096
    most = 8 * own + (NUM_HOARDERS + 2) * PORTION_BLOCKS
    flags = ("--events", "auto", "--probe-interval-s", "0.2", f"KVGATE_INDEX_MAX_WORKER_BLOCKS={own}")
    async with lasting(*flags) as gateway, visiting(gateway) as bench, contextlib.AsyncExitStack() as stack:
        await bench.worker()
        honest = await stack.enter_async_context(publishing(bench, "hoard", 500))
        await honest.send()
        await keeps_its_blocks(bench, honest)
        hoarders = [
            await stack.enter_async_context(publishing(bench, "hoard", 4000)) for _ in range(NUM_HOARDERS)
        ]
        for each in hoarders:  # one after the other: together they would be cut for their speed

            async def is_applied(each: FakeWorker = each) -> bool:
                assert (await bench.ask(post(completion()))).status == 200
                assert await bench.gateway.total("kvgate_index_blocks") <= most
                return bool(pauses(bench, each)) or await kept(bench, each) == 4000

            await each.send()
            await until(is_applied, "it is kept or cut")
        cut = [each for each in hoarders if pauses(bench, each)]
        assert cut
        for each in cut:
            (line,) = pauses(bench, each)
            assert "all workers together store more than 32,768 blocks" in line
            assert "all workers together" in await blind_reason(bench, each)
            assert await kept(bench, each) == 0
        await keeps_its_blocks(bench, honest)


async def test_a_flood_is_cut_unread_and_costs_others_nothing(bench: Bench) -> None:
    await bench.worker()
    async with publishing(bench, "flood", 300) as worker:
        await worker.send()
        await is_cut(bench, worker, "publishes faster than events are applied")
        assert worker.sender.returncode is None


async def test_a_giant_message_is_rejected_unread(bench: Bench) -> None:
    await bench.worker()
    async with publishing(bench, "giant", 0, declared=10 * liar.GIANT_BLOCKS) as worker:
        await worker.send()
        await is_cut(bench, worker, "message of at least ")
        assert await kept(bench, worker) == 0


async def test_a_message_of_too_many_blocks_is_undecodable_and_named(bench: Bench) -> None:
    await bench.worker()
    async with publishing(bench, "giant", 1, declared=10 * liar.GIANT_BLOCKS) as worker:
        await worker.send()

        async def is_blind() -> bool:
            return "could not be decoded" in await blind_reason(bench, worker)

        await until(is_blind, "its stream is BLIND")
        assert await bench.gateway.total("kvgate_event_stream_undecodable_batches_total") == 1
        line = next(
            line for line in bench.gateway.log if "an event of 500,000 blocks, beyond 131,072" in line
        )
        assert worker.id in line


@pytest.mark.parametrize("declared", [60_000, 10**12])
async def test_a_large_event_within_the_limit_is_applied_whole(bench: Bench, declared: int) -> None:
    await bench.worker()
    async with publishing(bench, "giant", 2, declared=declared) as worker:
        await worker.send()

        async def is_applied() -> bool:
            return await kept(bench, worker) == 60_000

        await until(is_applied, "all of it is applied")
        assert await blind_reason(bench, worker) == ""


async def test_requests_are_answered_while_a_large_event_is_applied(bench: Bench) -> None:
    """The loop goes from its portions to requests and back: its blocks are seen half applied."""
    await bench.worker()
    for _ in range(10):
        seen: list[float] = [0]
        async with publishing(bench, "giant", 2, declared=60_000) as worker:
            await worker.send()
            while seen[-1] < 60_000:
                assert (await bench.ask(post(completion()))).status == 200
                seen.append(await kept(bench, worker))
        if any(0 < each < 60_000 for each in seen):
            return
    raise AssertionError("all blocks of each event were applied in one step")


async def test_a_thousand_bad_batches_are_logged_once(bench: Bench) -> None:
    async with publishing(bench, "garbage", 1_000) as worker:
        await worker.send()

        async def all_counted() -> bool:
            return await total(bench, worker, "kvgate_event_stream_undecodable_batches_total") >= 900

        await until(all_counted, "bad batches are counted")
        assert len(lines_of(bench, worker, "cannot be decoded")) == 1
        assert len(lines_of(bench, worker, "blocks are forgotten")) <= 1
