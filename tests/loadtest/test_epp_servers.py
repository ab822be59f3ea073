"""Pickers of the benchmark: the one that decides nothing, and grpc.aio in place of our server."""

import grpc

from gateway.epp.stream import GrpcStream, unary
from loadtest.epp_servers import AioServer, Undecided
from loadtest.ports import free_port
from tests.support.ext_proc import FakeStream, request_body, request_headers, response_body, response_headers


def test_a_request_goes_to_the_one_address_and_its_body_is_echoed() -> None:
    stream = FakeStream()
    handler = Undecided("127.0.0.1:9", stream)
    for message in (request_headers(), request_body(b"a"), request_body(b"b", is_end=True)):
        handler.message(message)
    head, body = stream.take()
    assert head.request_headers.response.header_mutation.set_headers[0].header.raw_value == b"127.0.0.1:9"
    assert body.request_body.response.body_mutation.streamed_response.body == b"ab"
    handler.message(response_headers())
    handler.message(response_body(b"c", is_end=True))
    _, body = stream.take()
    assert body.response_body.response.body_mutation.streamed_response.body == b"c"
    handler.half_closed()
    assert stream.finished == (0, "")


async def test_grpc_aio_carries_the_same_services() -> None:
    def echo(stream: GrpcStream) -> object:
        return unary(lambda message: (0, message))(stream)

    server, port = AioServer({b"/test.Echo/Run": echo}), free_port()  # type: ignore[dict-item]
    assert server.start("127.0.0.1", port, "epp_port") == port
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            assert await channel.unary_unary("/test.Echo/Run")(b"a", wait_for_ready=True) == b"a"
    finally:
        await server.stop(0)
