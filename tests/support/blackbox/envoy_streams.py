"""Envoy before a gateway process: streams of ext_proc over gRPC, each for one request."""

from collections.abc import Sequence
from typing import Any

import grpc.aio

from gateway.epp.health import EXT_PROC
from gateway.epp.messages import BodyMode
from gateway.proto.kvgate.v1 import ext_proc_pb2 as pb
from tests.support.blackbox.http1_bytes import Header
from tests.support.blackbox.strict_client import DEADLINE_S
from tests.support.ext_proc import BUFFERED, DUPLEX, request_body, request_headers

DESTINATION = "x-gateway-destination-endpoint"


class EnvoyStreams:
    """Streams of ext_proc to a gateway, each for one request."""

    def __init__(self, channel: grpc.aio.Channel, *more: Header) -> None:
        self._process = channel.stream_stream(EXT_PROC.decode())
        self._more = more

    async def ask(
        self, target: str, body: bytes, kind: bytes = b"application/json", mode: BodyMode = DUPLEX
    ) -> tuple[int, str, bytes, str]:
        """Status of the refusal (0: none), the worker, and the body and the path that it gets."""
        headers: Sequence[Header] = (
            (b":method", b"POST"),
            (b":path", target.encode()),
            (b":authority", b"llm"),
            (b"content-type", kind),
            *self._more,
        )
        stream = self._process(timeout=DEADLINE_S)
        await stream.write(request_headers(headers, modes=(mode, BodyMode.NONE)))
        await stream.write(request_body(body, is_end=True))
        worker, path, got = "", target, bytearray()
        try:
            while True:
                reply = pb.ProcessingResponse.FromString(await stream.read())
                if reply.HasField("immediate_response"):
                    return reply.immediate_response.status.code, "", b"", ""
                which: Any = reply.request_body if reply.HasField("request_body") else reply.request_headers
                common = which.response
                given = {
                    each.header.key: each.header.raw_value.decode()
                    for each in common.header_mutation.set_headers
                }
                worker, path = given.get(DESTINATION, worker), given.get(":path", path)
                if not reply.HasField("request_body"):
                    continue
                if mode is BUFFERED:
                    return 0, worker, common.body_mutation.body or body, path
                got += common.body_mutation.streamed_response.body
                if common.body_mutation.streamed_response.end_of_stream:
                    return 0, worker, bytes(got), path
        finally:
            stream.cancel()
