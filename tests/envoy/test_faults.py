"""A picker that is killed or stopped: new requests pass where Envoy fails open, and none is sent in part."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.envoy.envoy import Setup, behind_envoy
from tests.support.blackbox.http1_bytes import DONE, SSE_HEAD, chunked, completion, event, post
from tests.support.blackbox.scripted_worker import Call
from tests.support.blackbox.strict_client import Client, Cut
from tests.support.patience import until

pytestmark = pytest.mark.envoy

ASK_WITHIN_S = 1.0
"""An unanswered request is given up: a stopped picker hangs it for ever in FULL_DUPLEX_STREAMED."""


@asynccontextmanager
async def without_picker(setup: Setup, how: signal.Signals) -> AsyncIterator[None]:
    """The picker killed, or stopped and continued at the end."""
    os.kill(setup.gateway.process.pid, how)
    try:
        yield
    finally:
        if how is signal.SIGSTOP:
            os.kill(setup.gateway.process.pid, signal.SIGCONT)


async def status(setup: Setup) -> int:
    """The status of a request; 0 where none came in time, or the connection was cut."""
    try:
        async with asyncio.timeout(ASK_WITHIN_S):
            return (await setup.ask(post(completion()))).status
    except (TimeoutError, Cut):
        return 0


async def passes(setup: Setup) -> bool:
    return await status(setup) == 200


def bodies(setup: Setup) -> set[bytes]:
    return {call.body for worker in setup.workers for call in worker.calls}


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_requests_pass_without_the_picker_where_envoy_fails_open(how: signal.Signals) -> None:
    """EppUnavailableFailOpen, for POST with bodies."""
    async with behind_envoy(2) as setup, without_picker(setup, how):
        await until(lambda: passes(setup), "Envoy takes the picker out")
        assert [await status(setup) for _ in range(4)] == [200] * 4
        assert bodies(setup) == {completion()} and all(worker.calls for worker in setup.workers)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_nothing_is_sent_without_the_picker_where_envoy_fails_closed(how: signal.Signals) -> None:
    async with behind_envoy(1, name="original-dst.yaml") as setup, without_picker(setup, how):
        await until(lambda: _is_refused(setup), "Envoy takes the picker out")
        assert {await status(setup) for _ in range(4)} <= {500, 503} and not setup.workers[0].calls


async def _is_refused(setup: Setup) -> bool:
    return await status(setup) in (500, 503)


async def test_a_body_in_flight_at_a_kill_reaches_no_worker_in_part() -> None:
    async with behind_envoy(1) as setup:
        whole = post(completion("a" * 300_000))
        client = await Client.open(setup.port)
        await client.send(whole[:200_000])
        async with without_picker(setup, signal.SIGKILL):
            try:
                await client.send(whole[200_000:])
                answer = await client.answer()
                assert answer.status in (500, 503, 504)
            except (Cut, ConnectionError):
                pass  # the answer was cut: no less an end
            assert not setup.workers[0].calls
        await client.close()


async def test_a_stream_at_a_kill_ends_and_is_not_taken_for_a_whole_one() -> None:
    async with behind_envoy(1) as setup:
        may_go_on = asyncio.Event()

        async def stream(call: Call) -> None:
            await call.send(SSE_HEAD + chunked(event("one"), end=False))
            await may_go_on.wait()
            await call.send(chunked(event("two"), DONE))

        setup.workers[0].script = stream
        client = await Client.open(setup.port)
        await client.send(post(completion(stream=True)))
        assert (await client.head()).status == 200 and b"one" in await client.piece()
        async with without_picker(setup, signal.SIGKILL):
            may_go_on.set()
            rest, is_cut = b"", False
            try:
                while piece := await client.piece():
                    rest += piece
            except Cut:
                is_cut = True
            assert is_cut or b"[DONE]" in rest
        await client.close()


async def test_a_picker_that_comes_back_is_asked_again() -> None:
    async with behind_envoy(2, "--policy", "round_robin") as setup:
        async with without_picker(setup, signal.SIGSTOP):
            await until(lambda: passes(setup), "Envoy takes the picker out")
        picked = _picked(setup)

        async def grows() -> bool:
            await status(setup)
            return await asyncio.to_thread(_picked, setup) > picked

        await until(grows, "the picker is asked again")


def _picked(setup: Setup) -> int:
    lines = setup.gateway.metrics().splitlines()
    name = 'kvgate_epp_events_total{kind="picked"}'
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith(name))
