"""Limits in time, each by a short flag; and the limits that do not exist.

Nothing but the flags limits an answer: every timer of the data path is `idle_timeout_s`,
`first_byte_timeout_s` or `total_timeout_s`, of which the last two are off unless set. The HTTP client
library with a default of 300 s in all is not on this path, and where it is used (probes, /tokenize)
each call has its own limit. That a stream outlives any fixed time is shown here with the limits made
short and the stream longer than each of them; `tests/proxy/test_exchange.py` moves the clock by hours.
"""

import asyncio

import pytest

from tests.support.blackbox.bench import Bench, running
from tests.support.blackbox.black_hole import IDS, BlackHole
from tests.support.blackbox.http1_bytes import DONE, SSE_HEAD, chunked, completion, event, post, wire
from tests.support.blackbox.scripted_worker import Call, hang, says
from tests.support.blackbox.strict_client import Client, Cut
from tests.support.patience import patience


async def stalls(call: Call) -> None:
    await call.send(SSE_HEAD + chunked(event("a"), event("lost")[:9], end=False))
    await hang(call)


async def ends_with_error(client: Client) -> None:
    assert b'"error"' in await client.event()
    assert await client.piece() == b""


class Moving:
    """Stream of events that are each sent after the client has seen the one before."""

    def __init__(self) -> None:
        self.seen: asyncio.Queue[bool] = asyncio.Queue()

    async def __call__(self, call: Call) -> None:
        await call.send(SSE_HEAD)
        while not call.gone.is_set():
            await call.send(chunked(event("a"), end=False))
            if not await self.seen.get():
                await call.send(chunked(DONE))
                return

    async def run(self, client: Client, seconds: float) -> None:
        """Keep the stream going for this long, and end it."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end:
            assert await client.event() == event("a")
            self.seen.put_nowait(True)
        assert await client.event() == event("a")
        self.seen.put_nowait(False)
        assert await client.event() == DONE
        assert await client.piece() == b""


async def test_a_stalled_stream_ends_with_an_error_event() -> None:
    async with running("--idle-timeout-s", "0.4") as bench:
        worker = await bench.worker(script=stalls)
        client = await bench.client()
        await client.send(post(completion(IDS, stream=True)))
        await client.head()
        assert await client.event() == event("a")
        await ends_with_error(client)
        async with asyncio.timeout(patience(20)):
            await worker.calls[0].gone.wait()
        await bench.nothing_in_flight()

        worker.script = says(wire(200, b"", (b"Content-Length", b"9"), length=False) + b"{")
        with pytest.raises(Cut):
            await (await bench.client()).ask(post(completion(IDS)))


async def test_a_moving_stream_and_a_late_first_byte_have_no_limit() -> None:
    """Both live several times as long as the idle timeout."""
    async with running("--idle-timeout-s", "1") as bench:
        moving, may_answer = Moving(), asyncio.Event()

        async def script(call: Call) -> None:
            if b'"stream": true' in call.body:
                return await moving(call)
            await may_answer.wait()
            return await call.send(wire(200, b"late"))

        worker = await bench.worker(script=script)
        silent, streaming = await bench.client(), await bench.client()
        await silent.send(post(completion(IDS)))
        await worker.called()
        await streaming.send(post(completion(IDS, stream=True)))
        await streaming.head()
        await moving.run(streaming, 3.0)
        may_answer.set()
        assert (await silent.answer()).body == b"late"
        assert len(worker.calls) == 2
        assert await bench.gateway.total("kvgate_worker_failed_requests_total") == 0


async def test_a_first_byte_timeout_applies_where_set() -> None:
    async with running("--first-byte-timeout-s", "0.4") as bench:
        worker = await bench.worker(script=hang)
        client = await bench.client()
        answer = await client.ask(post(completion(IDS, stream=True)))
        assert answer.status == 504
        assert answer.error["code"] == "worker_timeout"
        async with asyncio.timeout(patience(20)):
            await worker.calls[0].gone.wait()
        moving = worker.script = Moving()
        await client.send(post(completion(IDS, stream=True)))
        await client.head()
        await moving.run(client, 0.8)  # it limits the first byte only


async def test_a_total_timeout_applies_where_set() -> None:
    async with running("--total-timeout-s", "0.6") as bench:
        moving = Moving()
        worker = await bench.worker(script=moving)
        client = await bench.client()
        await client.send(post(completion(IDS, stream=True)))
        await client.head()
        while (got := await client.event()) == event("a"):
            moving.seen.put_nowait(True)
        assert b'"error"' in got
        async with asyncio.timeout(patience(20)):
            await worker.calls[0].gone.wait()


async def test_a_connection_that_is_not_made_times_out() -> None:
    flags = ("--connect-timeout-s", "0.5", "--probe-interval-s", "60", "--probe-timeout-s", "30")
    async with running(*flags) as bench:
        dark = await bench.worker()
        await dark.die()
        hole = BlackHole(dark)
        try:
            answer = await bench.ask(post(completion(IDS)))
            assert answer.status == 502
            assert await bench.gateway.is_up(dark), "it did not refuse, so it may be up"
            assert await bench.gateway.total("kvgate_retries_total") == 0
            good = await bench.worker()
            while not (await bench.gateway.total("kvgate_retries_total")):
                assert (await bench.ask(post(completion(IDS)))).status == 200
            assert good.calls
        finally:
            hole.close()


async def test_connections_to_workers_rest_for_a_limited_time() -> None:
    async with running("KVGATE_POOL_IDLE_S=0.2") as bench:
        worker = await bench.worker()
        client = await bench.client()
        for n in range(2):
            assert (await client.ask(post(completion(IDS)))).status == 200
            async with asyncio.timeout(patience(20)):
                await worker.calls[n].gone.wait()
        assert worker.calls[0].link is not worker.calls[1].link


async def test_a_connection_in_use_is_not_resting(bench: Bench) -> None:
    async with running("KVGATE_POOL_IDLE_S=0.1") as own:
        moving = Moving()
        worker = await own.worker(script=says(wire(200, b"{}")))
        client = await own.client()
        assert (await client.ask(post(completion(IDS)))).status == 200
        worker.script = moving
        await client.send(post(completion(IDS, stream=True)))
        await client.head()
        await moving.run(client, 0.5)
