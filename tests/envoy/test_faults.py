"""A picker that is killed or stopped: new requests pass where Envoy fails open, and none is sent in part."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.envoy.envoy import Setup, behind_envoy, picked_events
from tests.support.blackbox.http1_bytes import DONE, SSE_HEAD, chunked, completion, event, post
from tests.support.blackbox.scripted_worker import Call, answer_ok
from tests.support.blackbox.strict_client import Client, Cut
from tests.support.patience import patience, until

pytestmark = pytest.mark.envoy

SMALL = completion()
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


async def status(setup: Setup, body: bytes = SMALL) -> int:
    """The status of a request; 0 where none came in time, or the connection was cut."""
    try:
        async with asyncio.timeout(ASK_WITHIN_S):
            return (await setup.ask(post(body))).status
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


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_only_whole_bodies_reach_workers_while_the_picker_goes_under_load(how: signal.Signals) -> None:
    sent = completion("a" * 100_000)
    async with behind_envoy(2) as setup:
        num_passed, is_over = 0, asyncio.Event()

        async def load() -> None:
            nonlocal num_passed
            while not is_over.is_set():
                num_passed += await status(setup, sent) == 200

        clients = [asyncio.get_running_loop().create_task(load()) for _ in range(6)]
        await until(lambda: num_passed > 20, "requests are picked")
        async with without_picker(setup, how):
            await until(lambda: passes(setup), "Envoy takes the picker out")
            before = num_passed
            await until(lambda: num_passed > before + 20, "requests pass")
            is_over.set()
            await asyncio.gather(*clients)
        assert bodies(setup) == {sent, completion()}


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
    return picked_events(setup.gateway.metrics()).get("picked", 0)


@pytest.mark.parametrize("mode", ["true", "false"], ids=["open", "closed"])
async def test_a_picker_that_drains_fails_no_request_and_another_one_goes_on(mode: str) -> None:
    """New streams are served until Envoy has noticed that readiness is off, and open ones end whole."""
    edits = [("failure_mode_allow: true", f"failure_mode_allow: {mode}")]
    async with behind_envoy(2, edits=edits, num_pickers=2) as setup:
        is_over, may_end = asyncio.Event(), asyncio.Event()

        async def serve(call: Call) -> None:
            if b'"stream": true' not in call.body:
                return await answer_ok(call)
            await call.send(SSE_HEAD + chunked(event("one"), end=False))
            await may_end.wait()
            return await call.send(chunked(event("two"), DONE))

        for worker in setup.workers:
            worker.script = serve

        async def load() -> set[int]:
            found = set()
            while not is_over.is_set():
                found.add((await setup.ask(post(completion()))).status)
            return found

        streams = [await Client.open(setup.port) for _ in range(8)]
        for client in streams:
            await client.send(post(completion(stream=True)))
            assert (await client.head()).status == 200
        clients = [asyncio.get_running_loop().create_task(load()) for _ in range(3)]
        await until(lambda: asyncio.to_thread(setup.gateway.in_flight), "it has streams")
        setup.gateway.process.terminate()
        await until(lambda: not _listens(setup.epp_port), "it takes no more connections")
        may_end.set()
        for client in streams:
            rest = b"".join([piece async for piece in _rest(client)])
            assert event("two") in rest and rest.endswith(DONE)
            await client.close()
        assert await asyncio.to_thread(setup.gateway.process.wait, patience(20)) == 0
        is_over.set()
        assert set().union(*await asyncio.gather(*clients)) == {200}
        assert "aborted" not in setup.gateway.log() and "unfinished" not in setup.gateway.log()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def _rest(client: Client) -> AsyncIterator[bytes]:
    while piece := await client.piece():
        yield piece
