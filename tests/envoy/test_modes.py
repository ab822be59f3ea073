"""Body modes of a real Envoy, and timeouts of workers: changed bodies arrive whole, and nothing hangs."""

import json

import pytest

from tests.envoy.envoy import OFFER, WEBSOCKETS, Setup, behind_envoy, modes, picked_events, switching
from tests.support.blackbox.http1_bytes import (
    DONE,
    SSE_HEAD,
    chunked,
    completion,
    event,
    post,
    wire,
)
from tests.support.blackbox.scripted_worker import Call
from tests.support.blackbox.strict_client import Client, Cut
from tests.support.patience import until

pytestmark = pytest.mark.envoy

PAIRS = [
    ("BUFFERED", "BUFFERED"),
    ("BUFFERED", "STREAMED"),
    ("BUFFERED", "FULL_DUPLEX_STREAMED"),
    ("FULL_DUPLEX_STREAMED", "BUFFERED"),
    ("FULL_DUPLEX_STREAMED", "STREAMED"),
    ("FULL_DUPLEX_STREAMED", "FULL_DUPLEX_STREAMED"),
]
ANSWER = {
    "choices": [{"index": 0, "text": "x", "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 30, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 16}},
}
DESTINATION = b"x-gateway-destination-endpoint"


async def is_free(setup: Setup) -> bool:
    return await setup.in_flight() == 0


async def answer(call: Call) -> None:
    if b'"stream": true' in call.body:
        return await call.send(SSE_HEAD + chunked(event("one"), DONE))
    return await call.send(wire(200, json.dumps(ANSWER).encode(), (b"Content-Type", b"application/json")))


def in_chunks(body: bytes) -> bytes:
    head, _, _ = post(b"").partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-length")]
    return b"\r\n".join([*lines, b"Transfer-Encoding: chunked", b"", chunked(body)])


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
async def test_changed_bodies_arrive_whole_in_each_pair_of_modes(pair: tuple[str, str]) -> None:
    """The gateway asks for usage and takes it out again, and masks a number of the answer."""
    async with behind_envoy(1, "--mask-cached-tokens", edits=modes(*pair)) as setup:
        (worker,) = setup.workers
        worker.script = answer
        for sent in (post(completion(stream=True)), in_chunks(completion(stream=True))):
            stream = await setup.ask(sent)
            assert stream.status == 200 and stream.body == event("one") + DONE
        plain = (await setup.ask(post(completion()))).json
        assert plain["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert [call.wish for call in worker.calls] == [completion(stream=True)] * 2 + [completion()]
        assert all(call.wish != call.body for call in worker.calls[:2]), "usage was asked for"
        await until(lambda: is_free(setup), "bookings are released")


@pytest.mark.parametrize("mode", ["NONE", "STREAMED", "BUFFERED_PARTIAL"])
async def test_what_cannot_be_read_passes_whole_and_without_a_clients_destination(mode: str) -> None:
    early = ("mutations: [{remove: x-gateway-destination-endpoint}]", "mutations: [{remove: x-other}]")
    async with behind_envoy(1, edits=[*modes(mode, mode), early]) as setup:
        body = completion("a" * 300_000)
        assert (await setup.ask(post(body, (DESTINATION, b"127.0.0.1:9")))).status == 200
        (call,) = setup.workers[0].calls
        assert call.body == body and not call.values(DESTINATION)
        counts = picked_events(setup.gateway.metrics())
        assert counts["unsupported_mode"] >= 1 and counts["spoofed_header"] == 1
        await until(lambda: is_free(setup), "nothing is booked")


@pytest.mark.parametrize("mode", ["NONE", "STREAMED", "FULL_DUPLEX_STREAMED"])
async def test_a_websocket_is_picked_in_each_mode_that_streams(mode: str) -> None:
    async with behind_envoy(1, edits=[*modes(mode, mode), WEBSOCKETS]) as setup:
        setup.workers[0].script = switching
        client = await Client.open(setup.port)
        await client.send(OFFER)
        await client.switched()
        await client.send(b"ping")
        assert await client.exactly(4) == b"pong"
        assert setup.workers[0].calls[0].value(DESTINATION) == setup.workers[0].id.encode()
        await client.close()
        await until(lambda: is_free(setup), "the booking is released")


async def silent(call: Call) -> None:
    await call.gone.wait()


async def test_a_worker_without_a_first_byte_in_time_is_answered_for_and_left() -> None:
    async with behind_envoy(1, "KVGATE_FIRST_BYTE_TIMEOUT_S=0.3") as setup:
        setup.workers[0].script = silent
        late = await setup.ask(post(completion()))
        assert late.status == 504 and late.error["code"] == "worker_timeout"
        (call,) = setup.workers[0].calls
        await until(call.gone.is_set, "Envoy leaves the worker")
        assert await is_free(setup)


async def test_a_stream_that_stalls_is_cut_and_its_worker_left() -> None:
    async def stalls(call: Call) -> None:
        await call.send(SSE_HEAD + chunked(event("one"), event("two")[:20], end=False))
        await call.gone.wait()

    async with behind_envoy(1, "KVGATE_IDLE_TIMEOUT_S=0.5") as setup:
        setup.workers[0].script = stalls
        client = await Client.open(setup.port)
        await client.send(post(completion(stream=True)))
        assert (await client.head()).status == 200 and await client.piece() == event("one")
        with pytest.raises(Cut):
            await client.piece()
        (call,) = setup.workers[0].calls
        await until(call.gone.is_set, "Envoy leaves the worker")
        assert await is_free(setup)
        await client.close()
