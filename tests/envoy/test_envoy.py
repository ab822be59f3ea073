"""The configurations of deploy/envoy in a real Envoy, before a gateway's picker and scripted workers."""

import asyncio
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.envoy.envoy import ENVOY, FOLDER, behind_envoy, picked_events
from tests.support.blackbox.http1_bytes import DONE, SSE_HEAD, chunked, completion, event, post
from tests.support.blackbox.scripted_worker import Call
from tests.support.blackbox.strict_client import Client
from tests.support.patience import patience, until

pytestmark = pytest.mark.envoy


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.name)
def test_envoy_accepts_each_configuration(path: Path) -> None:
    done = subprocess.run(
        [ENVOY, "--mode", "validate", "-c", str(path)], capture_output=True, timeout=patience(60)
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("num_workers", [1, 2, 3])
@pytest.mark.parametrize("name", ["envoy.yaml", "original-dst.yaml"])
async def test_envoy_follows_the_picker(name: str, num_workers: int) -> None:
    async with behind_envoy(num_workers, "--policy", "round_robin", name=name) as setup:
        for _ in range(2 * num_workers):
            assert (await setup.ask(post(completion()))).status == 200
        assert [len(worker.calls) for worker in setup.workers] == [2] * num_workers
        assert all(call.body == completion() for worker in setup.workers for call in worker.calls)
        await until(lambda: _is_free(setup.in_flight), "bookings are released")
        counts = picked_events(setup.gateway.metrics())
        assert counts["picked"] == 2 * num_workers and "served_elsewhere" not in counts


async def _is_free(in_flight: object) -> bool:
    assert callable(in_flight)
    return bool(await in_flight() == 0)


async def test_a_streamed_answer_passes_as_it_comes_and_is_read() -> None:
    async with behind_envoy(1) as setup:
        may_go_on = asyncio.Event()

        async def stream(call: Call) -> None:
            await call.send(SSE_HEAD + chunked(event("one"), end=False))
            await may_go_on.wait()
            await call.send(chunked(event("two"), DONE))

        setup.workers[0].script = stream
        client = await Client.open(setup.port)
        await client.send(post(completion(stream=True)))
        assert (await client.head()).status == 200
        first = await client.piece()
        assert b"one" in first and b"two" not in first
        assert await setup.in_flight() == 1
        may_go_on.set()
        rest = b""
        while piece := await client.piece():
            rest += piece
        assert b"two" in rest and b"[DONE]" in rest
        await client.close()
        await until(lambda: _is_free(setup.in_flight), "the booking is released")
        assert 'kvgate_ttft_seconds_count{worker="' in setup.gateway.metrics()


async def test_a_body_of_20_mb_arrives_whole() -> None:
    async with behind_envoy(1) as setup:
        body = completion("a" * 20_000_000)
        assert (await setup.ask(post(body))).status == 200
        (call,) = setup.workers[0].calls
        assert call.body == body


async def test_a_clients_own_destination_is_not_obeyed() -> None:
    for name in ("envoy.yaml", "original-dst.yaml"):
        async with behind_envoy(2, "--policy", "round_robin", name=name) as setup:
            own = (b"x-gateway-destination-endpoint", setup.workers[1].id.encode())
            for _ in range(4):
                assert (await setup.ask(post(completion(), own))).status == 200
            assert [len(worker.calls) for worker in setup.workers] == [2, 2]


async def test_refusals_of_the_gateway_reach_the_client() -> None:
    async with behind_envoy(1) as setup:
        unknown = await setup.ask(post(completion(model="unknown")))
        assert unknown.status == 404 and unknown.error["code"] == "model_not_found"
        assert (await setup.ask(post(b"no json"))).status == 400
        assert not setup.workers[0].calls


async def test_a_buffered_body_goes_where_the_picker_says() -> None:
    edits = [("request_body_mode: FULL_DUPLEX_STREAMED", "request_body_mode: BUFFERED")]
    async with behind_envoy(2, "--policy", "round_robin", edits=edits) as setup:
        for _ in range(4):
            assert (await setup.ask(post(completion()))).status == 200
        assert [len(worker.calls) for worker in setup.workers] == [2, 2]


async def test_a_client_that_leaves_frees_its_booking() -> None:
    async with behind_envoy(1) as setup:
        gone = asyncio.Event()

        async def stream(call: Call) -> None:
            await call.send(SSE_HEAD + chunked(event("one"), end=False))
            await call.gone.wait()
            gone.set()

        setup.workers[0].script = stream
        client = await Client.open(setup.port)
        await client.send(post(completion(stream=True)))
        await client.head()
        await client.close()
        await until(gone.is_set, "the worker's connection ends")
        await until(lambda: _is_free(setup.in_flight), "the booking is released")


async def test_requests_pass_while_the_picker_is_dead() -> None:
    async with behind_envoy(2) as setup:
        os.kill(setup.gateway.process.pid, signal.SIGKILL)

        async def passes() -> bool:
            return (await setup.ask(post(completion()))).status == 200

        await until(passes, "Envoy takes the dead picker out")
        for _ in range(4):
            assert await passes()
        assert all(call.body == completion() for worker in setup.workers for call in worker.calls)
