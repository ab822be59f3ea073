"""Wrong orders and garbage over real sockets, by grpc's own client: each stream ends with its status, nothing
stays booked, and the connection serves the next stream."""

import asyncio
import gc

import grpc
import pytest

from gateway.epp.health import EXT_PROC
from gateway.http.messages import Header
from gateway.proto.kvgate.v1 import ext_proc_pb2 as pb
from gateway.server.http2.frames import FrameReader, frame
from tests.support.blackbox.decide_service import Service, service
from tests.support.ext_proc import (
    BUFFERED,
    POST,
    request_body,
    request_headers,
    response_body,
    response_headers,
    trailers,
)
from tests.support.http2 import HELLO, data, headers_of, message, opened, words
from tests.support.http2 import POST as CALL
from tests.support.patience import patience, until
from tests.support.worlds.endpoint_picks import BODY, W1

pytestmark = pytest.mark.process

HEAD, DATA, LAST = request_headers(), request_body(BODY), request_body(b"", is_end=True)
GARBAGE = b"\xff\xff\xff"
INVALID = grpc.StatusCode.INVALID_ARGUMENT


async def replies(channel: grpc.aio.Channel, *messages: bytes) -> tuple[list[bytes], grpc.StatusCode]:
    """The replies to a stream of these messages, and its status."""
    call = channel.stream_stream(EXT_PROC.decode())(iter(messages))
    found = []
    try:
        async with asyncio.timeout(patience(20)):
            async for reply in call:
                found.append(reply)
    except grpc.aio.AioRpcError:
        pass  # the status is looked at below
    return found, await call.code()


async def is_picked(channel: grpc.aio.Channel) -> bool:
    """A sound request on the same connection."""
    found, code = await replies(channel, HEAD, DATA, LAST)
    head = pb.ProcessingResponse.FromString(found[0])
    return code is grpc.StatusCode.OK and head.HasField("request_headers")


@pytest.mark.parametrize("flags", [(), ("--processes", "2")])
async def test_each_fault_ends_its_own_stream(flags: tuple[str, ...]) -> None:
    faults = [
        (DATA,),
        (trailers(),),
        (response_body(b"x"),),
        (b"",),
        (GARBAGE,),
        (HEAD, HEAD),
        (HEAD, GARBAGE),
        (HEAD, DATA, LAST, DATA),
        (HEAD, DATA, LAST, HEAD),
        (HEAD, DATA, LAST, response_body(b"x")),
        (b"\x0a" * 1_000_000,),
    ]
    async with service(1, *flags) as setup, grpc.aio.insecure_channel(setup.target) as channel:
        for messages in faults:
            assert (await replies(channel, *messages))[1] is INVALID, messages[0][:20]
            assert await is_picked(channel)
        await until(setup.is_free, "nothing stays booked")
        gc.collect()


UNUSUAL = [
    ((HEAD, request_body(b"\x1f\x8b\x08\x00"), LAST), 400),
    ((HEAD, LAST), 400),
    ((request_headers(is_end=True),), 400),
    ((request_headers([(b":method", b"GET"), (b":path", b"/v1/completions")], is_end=True),), 405),
    ((request_headers([(b":method", b"GET"), (b":path", b"/")], is_end=True),), 404),
    ((request_headers([]), LAST), 404),
    ((request_headers(modes=(BUFFERED, 0)), request_body(b"x", is_end=True)), 400),
    ((request_headers(subset=""), DATA, LAST), 503),
    ((request_headers(subset=["[::1]:8000", "unknown", W1]), DATA, LAST), 503),
    ((request_headers([*POST, (b"upgrade", b"x")]), DATA, LAST), 501),
]


async def test_unusual_requests_are_answered_in_place_of_a_worker() -> None:
    async with service(1) as setup, grpc.aio.insecure_channel(setup.target) as channel:
        for messages, status in UNUSUAL:
            found, code = await replies(channel, *messages)
            answers = [
                pb.ProcessingResponse.FromString(each).immediate_response.status.code for each in found
            ]
            assert [each for each in answers if each] == [status] and code is grpc.StatusCode.OK
        assert await setup.is_free()
        gc.collect()


PROCESS: list[Header] = [(name, EXT_PROC if name == b":path" else value) for name, value in CALL]
GOOD = b"".join(map(message, (HEAD, DATA, LAST)))
PICKED = message(HEAD) + message(DATA)
FRAMING = [
    ("a length of 4 GiB", data(1, PICKED + b"\0\xff\xff\xff\xff"), b"8"),
    ("a compressed message", data(1, PICKED + b"\x01\0\0\0\x01a"), b"12"),
    ("unknown flags", data(1, b"\x07\0\0\0\x01a"), b"13"),
    ("the end within a message", data(1, GOOD + b"\0\0\0\0\x09half", is_end=True), b"13"),
    ("the end within a length", data(1, message(HEAD) + b"\0\0", is_end=True), b"13"),
]


async def until_end(reader: asyncio.StreamReader, stream_id: int) -> list[Header]:
    """Headers of a stream, with its trailers."""
    frames, out = FrameReader(1 << 20), b""
    while True:
        async with asyncio.timeout(patience(20)):
            received = await reader.read(65536)
        assert received, "the connection ended"
        frames.feed(received)
        while (each := frames.next()) is not None:
            out += frame(each.kind, each.flags, each.stream_id, each.payload)
            if words(each) == f"END {stream_id}":
                return headers_of(out)[stream_id]


@pytest.mark.parametrize(("name", "sent", "status"), FRAMING, ids=[name for name, _, _ in FRAMING])
async def test_each_fault_of_framing_ends_its_stream_and_the_connection_lives(
    name: str, sent: bytes, status: bytes
) -> None:
    async with service(1) as setup:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(setup.target.rpartition(":")[2]))
        writer.write(HELLO + opened(1, PROCESS) + sent)
        assert (b"grpc-status", status) in await until_end(reader, 1)
        writer.write(opened(3, PROCESS) + data(3, GOOD + message(response_headers(is_end=True)), is_end=True))
        assert (b"grpc-status", b"0") in await until_end(reader, 3)
        writer.write(opened(5, PROCESS) + data(5, GOOD) + data(5, GOOD)[:20])  # a frame that never ends
        await until(lambda: _is_picked(setup), "the last stream is picked")
        writer.close()
        await until(setup.is_free, "nothing stays booked")


async def _is_picked(setup: Service) -> bool:
    return await setup.in_flight() == 1


async def test_a_stream_that_is_cancelled_frees_all() -> None:
    async with service(1) as setup, grpc.aio.insecure_channel(setup.target) as channel:
        for num_messages in (1, 2, 3):
            call = channel.stream_stream(EXT_PROC.decode())()
            for message in (HEAD, DATA, LAST)[:num_messages]:
                await call.write(message)
            if num_messages == 3:
                await call.read()
            call.cancel()
            assert await is_picked(channel)  # the connection lives on
        await until(setup.is_free, "nothing stays booked")
