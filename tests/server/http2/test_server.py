"""A server with real sockets, and clients by others: grpcio's, of both kinds."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from gateway.core.errors import ConfigError
from gateway.runtime.tls import grpc_tls
from gateway.server.http2.server import GrpcServer
from gateway.server.http2.service import GrpcStream
from tests.support.certificates import Authority
from tests.support.patience import patience, until

pytestmark = pytest.mark.process

RUN = "/test.Echo/Run"
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]


class Echo:
    """Sends each message back; the last one is the status. "hold" keeps the stream open."""

    log: list[str]

    def __init__(self, stream: GrpcStream) -> None:
        self.stream = stream
        self.last = b"0"
        self.open.append(self)

    open: list["Echo"] = []

    def message(self, message: bytes) -> None:
        self.stream.send(message)
        self.last = message

    def half_closed(self) -> None:
        if self.last != b"hold":
            self.stream.finish(
                int(self.last) if self.last.isdigit() and len(self.last) < 3 else 0, "as ásked"
            )

    def aborted(self, why: str) -> None:
        self.open.remove(self)
        self.log.append(why)


class Running:
    def __init__(self, tls_files: tuple[str, str] = ("", "")) -> None:
        self.log: list[str] = []
        self.echoes: list[Echo] = []
        kind = type("Echo", (Echo,), {"log": self.log, "open": self.echoes})
        self.server = GrpcServer({RUN.encode(): kind}, grpc_tls(*tls_files))
        self.port = self.server.start("127.0.0.1", 0, "epp_port")

    def channel(self) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(f"127.0.0.1:{self.port}", options=UNLIMITED)

    def tls_channel(self, root: bytes) -> grpc.aio.Channel:
        credentials = grpc.ssl_channel_credentials(root)
        return grpc.aio.secure_channel(f"127.0.0.1:{self.port}", credentials, options=UNLIMITED)


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    running = Running()
    yield running
    await running.server.stop(0)


async def test_streams_in_both_directions(running: Running) -> None:
    async with running.channel() as channel:
        call = channel.stream_stream(RUN)()
        for text in (b"one", b"", b"three"):
            await call.write(text)
            assert await call.read() == text
        await call.write(b"3")
        await call.done_writing()
        assert await call.read() == b"3"
        with pytest.raises(grpc.aio.AioRpcError, match="as ásked"):
            await call.read()
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_unary_calls_and_unknown_methods(running: Running) -> None:
    async with running.channel() as channel:
        assert await channel.unary_unary(RUN)(b"0") == b"0"
        for path in ("/test.No/Run", "/test.Echo/No"):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary(path)(b"")
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_grpcs_own_threads_are_a_client_too(running: Running) -> None:
    def ask() -> list[bytes]:
        with grpc.insecure_channel(f"127.0.0.1:{running.port}", options=UNLIMITED) as channel:
            calls = [channel.unary_unary(RUN).future(b"%d" % (number * 1000)) for number in range(50)]
            return [call.result(timeout=patience(60)) for call in calls]

    assert await asyncio.to_thread(ask) == [b"%d" % (number * 1000) for number in range(50)]


async def test_large_messages_pass_and_too_large_ones_are_refused(running: Running) -> None:
    async with running.channel() as channel:
        large = bytes(range(256)) * 80_000
        assert await channel.unary_unary(RUN)(large) == large
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(RUN)(bytes(71 << 20))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_many_calls_at_once(running: Running) -> None:
    async with running.channel() as channel:
        sent = [b"%d" % number * 500 for number in range(100, 2500)]
        assert await asyncio.gather(*(channel.unary_unary(RUN)(each) for each in sent)) == sent
    await until(lambda: running.server.num_streams == 0, "streams are closed")


async def test_a_cancelled_call_aborts_its_handler(running: Running) -> None:
    async with running.channel() as channel:
        call = channel.stream_stream(RUN)()
        await call.write(b"hold")
        assert await call.read() == b"hold"
        call.cancel()
        await until(lambda: running.log, "the handler is aborted")
        assert "reset by the client" in running.log[0] and running.server.num_streams == 0
        assert await channel.unary_unary(RUN)(b"0") == b"0"


async def test_a_deadline_is_kept(running: Running) -> None:
    async with running.channel() as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(RUN)(b"hold", timeout=0.3)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: running.log, "the handler is aborted")


async def test_a_slow_reader_gets_everything(running: Running) -> None:
    async with running.channel() as channel:
        call = channel.stream_stream(RUN)()
        sent = [bytes([number]) * 100_000 for number in range(200)]

        async def write() -> None:
            for each in sent:
                await call.write(each)
            await call.done_writing()

        writing = asyncio.get_running_loop().create_task(write())
        assert [await call.read() for _ in sent] == sent
        await writing


async def test_draining_lets_streams_end_and_sends_new_ones_elsewhere(running: Running) -> None:
    async with running.channel() as channel:
        call = channel.stream_stream(RUN)()
        await call.write(b"hold")
        assert await call.read() == b"hold"
        stopping = asyncio.get_running_loop().create_task(running.server.stop(60))
        await until(lambda: _is_refused(running.port), "the port is closed")
        await call.write(b"0")
        assert await call.read() == b"0"
        assert not stopping.done()
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK
        await stopping
        assert running.log == [] and running.server.num_connections == 0


def _is_refused(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


async def test_leaving_waits_for_streams_until_it_is_stopped(running: Running) -> None:
    async with running.channel() as channel:
        call = channel.stream_stream(RUN)()
        await call.write(b"hold")
        await call.read()
        assert await running.server.leave(0.01, asyncio.Event()) is False
        stop = asyncio.Event()
        leaving = asyncio.get_running_loop().create_task(running.server.leave(60, stop))
        await call.write(b"0")
        assert await call.read() == b"0"
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK
        assert await leaving is True


async def test_stopping_cuts_what_does_not_end(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    async with running.channel() as channel:
        call = channel.stream_stream(RUN)()
        await call.write(b"hold")
        await call.read()
        await running.server.stop(0)
        assert running.log == ["the server stops"] and "1 streams ended unfinished" in caplog.text
        assert await call.code() is grpc.StatusCode.UNAVAILABLE


async def test_plain_and_self_signed_clients_share_the_port(running: Running) -> None:
    address = ("127.0.0.1", running.port)
    pem = await asyncio.to_thread(ssl.get_server_certificate, address)
    options = [*UNLIMITED, ("grpc.ssl_target_name_override", "kvgate")]
    credentials = grpc.ssl_channel_credentials(pem.encode())
    async with (
        grpc.aio.secure_channel(f"127.0.0.1:{running.port}", credentials, options=options) as secure,
        running.channel() as plain,
    ):
        for channel in (secure, plain, secure):
            assert await channel.unary_unary(RUN)(b"0") == b"0"


async def test_http2_is_agreed_upon_and_clients_without_alpn_are_served(running: Running) -> None:
    for protocols, agreed in ((["h2"], "h2"), ([], None)):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if protocols:
            context.set_alpn_protocols(protocols)
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port, ssl=context)
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == agreed
        assert len(await reader.readexactly(9)) == 9, "SETTINGS"
        writer.close()
        await writer.wait_closed()


async def test_its_own_certificate_is_verified(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue()
    running = Running((pair.cert, pair.key))
    try:
        async with running.tls_channel(Path(authority.file).read_bytes()) as channel:
            assert await channel.unary_unary(RUN)(b"0") == b"0"
    finally:
        await running.server.stop(0)


async def test_mistaken_clients_are_logged_once_and_closed(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        await reader.read()
        writer.close()
    lines = [each for each in caplog.messages if "speaks gRPC (HTTP/2) only" in each]
    assert len(lines) == 1 and lines[0].startswith("epp_port: HTTP/1.1")


async def test_a_client_that_refuses_the_certificate_is_logged(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        await asyncio.open_connection("127.0.0.1", running.port, ssl=ssl.create_default_context())
    await until(lambda: "TLS handshake with 127.0.0.1 failed" in caplog.text, "the failure is logged")


async def test_a_taken_port_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="epp_port: cannot listen"):
            GrpcServer({}).start("127.0.0.1", taken.getsockname()[1], "epp_port")


async def test_processes_share_a_port() -> None:
    first, second = GrpcServer({}), GrpcServer({})
    port = first.start("127.0.0.1", 0, "epp_port")
    assert second.start("127.0.0.1", port, "epp_port") == port
    await first.stop(0)
    await second.stop(0)
    assert repr(first) == "GrpcServer([], 0 connections)"
