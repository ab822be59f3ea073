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
from tests.blackbox.harness import (
    DEADLINE_S,
    METRICS,
    Bench,
    Call,
    FakeWorker,
    completion,
    lasting,
    post,
    until,
    visiting,
    wire,
)

NUM_GOOD = 50
DECLARED = 1000
"""Blocks, by the harness's workers."""


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
    command = ("nice", sys.executable, "-m", "loadtest.liar", mode, str(amount))
    worker.sender = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    try:
        assert worker.sender.stdout
        worker.sources = await asyncio.wait_for(worker.sender.stdout.readline(), DEADLINE_S)
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
    """Wait until it is BLIND for that reason.

    Good requests are answered until then, and the good worker is up throughout.
    """
    num_good, reason = 0, ""
    async with asyncio.timeout(3 * DEADLINE_S):
        while why not in reason or num_good < NUM_GOOD:
            answer = await bench.ask(post(completion(f"good {num_good}")))
            assert answer.status == 200, answer.body
            assert (await bench.gateway.admin("GET", "/ready")).status == 200
            assert await bench.gateway.total("kvgate_worker_up") == len(bench.workers)
            reason = await blind_reason(bench, worker)
            num_good += 1
    assert await total(bench, worker, "kvgate_event_stream_overflows_total") == 1
    lines = lines_of(bench, worker, "KV events paused for")
    assert len(lines) == 1
    assert why in lines[0]


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


async def test_a_thousand_bad_batches_are_logged_once(bench: Bench) -> None:
    async with publishing(bench, "garbage", 1_000) as worker:
        await worker.send()

        async def all_counted() -> bool:
            return await total(bench, worker, "kvgate_event_stream_undecodable_batches_total") >= 900

        await until(all_counted, "bad batches are counted")
        assert len(lines_of(bench, worker, "do not decode")) == 1
        assert len(lines_of(bench, worker, "blocks are forgotten")) <= 1
