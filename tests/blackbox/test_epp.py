"""The picker's ports of running gateways: TLS files, drains, and takeovers by the next gateway."""

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from gateway.epp.health import CHECK, EXT_PROC
from gateway.proto.kvgate.v1 import ext_proc_pb2 as pb
from loadtest.ports import free_port
from tests.support.blackbox.decide_service import service
from tests.support.blackbox.real_gateway import Gateway
from tests.support.blackbox.upgrades import generations
from tests.support.certificates import Authority
from tests.support.ext_proc import request_body, request_headers, response_body, response_headers
from tests.support.patience import patience, until
from tests.support.worlds.endpoint_picks import BODY, DONE

pytestmark = pytest.mark.interpreted

LIVE = b"\x08\x01"  # SERVING
READINESS = pb.HealthRequest(service="readiness").SerializeToString()
ANSWERED = ["response_headers", "response_body"]


async def test_streams_end_with_the_old_gateway_and_new_ones_go_to_the_next(tmp_path: Path) -> None:
    port = free_port()
    async with generations(tmp_path / "socket", "--epp-port", str(port)) as upgrades:
        await upgrades.begin()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            assert await channel.unary_unary(CHECK.decode())(b"") == LIVE
            held = channel.stream_stream(EXT_PROC.decode())()
            await held.write(b"")  # a message that decides nothing: the stream stays
            old = await upgrades.upgrade()
            assert await channel.unary_unary(CHECK.decode())(b"", wait_for_ready=True) == LIVE
            await old.logged("has taken over")
            assert old.process.returncode is None
            await held.done_writing()
            await held.code()
            assert await old.exited() == 0, "nothing is left for it"


async def test_a_stopping_picker_is_not_ready_first_and_serves_until_that_was_seen() -> None:
    """A second stream begins behind SIGTERM; both end whole, and so does a stream without an HTTP client."""
    async with service(1) as setup, grpc.aio.insecure_channel(setup.target) as channel:
        check, process = channel.unary_unary(CHECK.decode()), channel.stream_stream(EXT_PROC.decode())
        first = await picked(process())
        setup.gateway.process.terminate()

        async def is_ready() -> bool:
            return bool(await check(READINESS) == LIVE)

        async def is_off() -> bool:
            return not await is_ready()

        await until(is_off, "readiness is off")
        assert await check(b"") == LIVE
        second = await picked(process())
        for each in (first, second):
            await each.write(response_headers())
            await each.write(response_body(DONE, is_end=True))
            await each.done_writing()
            assert [reply.WhichOneof("response") async for reply in decoded(each)] == ANSWERED
            assert await each.code() is grpc.StatusCode.OK
        assert await asyncio.to_thread(setup.gateway.process.wait, patience(20)) == 0


async def picked(call: grpc.aio.StreamStreamCall) -> grpc.aio.StreamStreamCall:
    for message in (request_headers(), request_body(BODY, is_end=True)):
        await call.write(message)
    for kind in ("request_headers", "request_body"):
        assert pb.ProcessingResponse.FromString(await call.read()).HasField(kind)
    return call


async def decoded(call: grpc.aio.StreamStreamCall) -> AsyncIterator[pb.ProcessingResponse]:
    while (message := await call.read()) is not grpc.aio.EOF:
        yield pb.ProcessingResponse.FromString(message)


@pytest.mark.parametrize("num_processes", ["1", "2"])
async def test_a_certificate_of_its_own_and_plain_clients(tmp_path: Path, num_processes: str) -> None:
    authority, port = Authority(tmp_path), free_port()
    pair = authority.issue()
    flags = ("--epp-port", str(port), "--epp-cert-file", pair.cert, "--epp-key-file", pair.key)
    gateway = await Gateway.start(*flags, "--processes", num_processes)
    try:
        await until(lambda: _listens(port), "the port is bound")
        credentials = grpc.ssl_channel_credentials(Path(authority.file).read_bytes())
        async with (
            grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials) as secure,
            grpc.aio.insecure_channel(f"127.0.0.1:{port}") as plain,
        ):
            for channel in (secure, plain):
                check = channel.unary_unary(CHECK.decode())
                assert await check(b"", wait_for_ready=True) == LIVE
    finally:
        await gateway.stop()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
