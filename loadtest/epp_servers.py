"""Endpoint pickers to be measured, each a process: `python -m loadtest.epp_servers KIND …`.

own      the gateway as it is: the arguments are those of `kvgate`
grpc.aio the same gateway, with its services carried by grpc.aio
nothing  PORT ADDRESS: our gRPC server with a service that sends each request to one address, undecided
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import grpc
import uvloop

from gateway.cli import main as kvgate
from gateway.epp import protocol
from gateway.epp.health import CHECK, EXT_PROC, service_of
from gateway.epp.protocol import PickProtocol, RequestState
from gateway.epp.stream import GrpcStream, Service, Services, StreamHandler
from gateway.server.http2 import server
from gateway.server.http2.server import GrpcServer


class AioStream:
    """Stream of grpc.aio with a queue of the messages that a service sends."""

    __slots__ = ("path", "headers", "queue", "status")

    def __init__(self, path: bytes) -> None:
        self.path = path
        self.headers: list[tuple[bytes, bytes]] = []
        self.queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.status = (0, "")

    def send(self, message: bytes) -> None:
        self.queue.put_nowait(message)

    def finish(self, status: int, message: str = "") -> None:
        self.status = (status, message)
        self.queue.put_nowait(None)


class AioServer:
    """grpc.aio in the place of `GrpcServer`."""

    def __init__(self, services: Services, *others: object) -> None:
        self._server: Any = grpc.aio.server(options=[("grpc.max_receive_message_length", 70 << 20)])
        for path, make in services.items():
            _, service, method = path.decode().split("/")
            one = {method: _handler(make, path)}
            handler = grpc.method_handlers_generic_handler(service, one)
            self._server.add_generic_rpc_handlers([handler])
        self._starting: asyncio.Task[None] | None = None

    def start(self, host: str, port: int, role: str) -> int:
        self._server.add_insecure_port(f"{host}:{port}")
        self._starting = asyncio.get_running_loop().create_task(self._server.start())
        return port

    def drain(self) -> None: ...

    async def stop(self, grace_s: float) -> None:
        await self._server.stop(grace_s)


STREAMS = ("Process", "Session")
"""Methods with many messages each way: the others are carried as the unary calls that they are."""


def _handler(make: Service, path: bytes) -> grpc.RpcMethodHandler:
    if path.decode().endswith(STREAMS):
        return grpc.stream_stream_rpc_method_handler(partial(_run, make, path))
    return grpc.unary_unary_rpc_method_handler(partial(_answer, make, path))


async def _answer(make: Service, path: bytes, message: bytes, context: Any) -> bytes:
    stream = AioStream(path)
    handler = make(stream)
    handler.message(message)
    handler.half_closed()
    answer = await stream.queue.get()
    if answer is None:
        status, text = stream.status
        await context.abort(next(each for each in grpc.StatusCode if each.value[0] == status), text)
    return answer or b""


async def _run(
    make: Service, path: bytes, requests: AsyncIterator[bytes], context: Any
) -> AsyncIterator[bytes]:
    stream = AioStream(path)
    handler = make(stream)
    reading = asyncio.get_running_loop().create_task(_read(handler, requests))
    try:
        while (message := await stream.queue.get()) is not None:
            yield message
    finally:
        reading.cancel()
        handler.aborted("the stream has ended")


async def _read(handler: StreamHandler, requests: AsyncIterator[bytes]) -> None:
    async for message in requests:
        handler.message(message)
    handler.half_closed()


class Undecided:
    """Handler that sends every request to one address, as pickers must: the body is echoed."""

    def __init__(self, address: str, stream: GrpcStream) -> None:
        self._address, self._stream = address, stream
        self._protocol = PickProtocol()
        self._parts: list[bytes] = []

    def message(self, message: bytes) -> None:
        state = self._protocol
        event = state.receive(message)
        if isinstance(event, protocol.RequestData):
            self._parts.append(event.data)
        elif isinstance(event, protocol.ResponseBegan):
            state.response_head()
        elif isinstance(event, protocol.ResponseData):
            state.response_piece(event, event.data)
        if state.request is RequestState.WHOLE:
            body = b"".join(self._parts)
            state.pick(self._address, [], [], body, body)
        outbox, state.outbox = state.outbox, []
        for each in outbox:
            self._stream.send(each)

    def half_closed(self) -> None:
        self._stream.finish(0)

    def aborted(self, why: str) -> None: ...


async def _serve_nothing(port: int, address: str) -> None:
    services = {CHECK: service_of(lambda: True), EXT_PROC: partial(Undecided, address)}
    GrpcServer(services).start("127.0.0.1", port, "epp_port")
    await asyncio.Event().wait()


def main(argv: list[str]) -> int:
    kind, *rest = argv
    if kind == "grpc.aio":
        server.GrpcServer = AioServer  # type: ignore[misc,assignment]
    if kind in ("own", "grpc.aio"):
        return kvgate(rest)
    uvloop.run(_serve_nothing(int(rest[0]), rest[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
