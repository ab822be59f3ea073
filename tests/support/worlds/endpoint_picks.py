"""Gateway that picks endpoints for Envoy, in this process."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from gateway.discovery.dns import Resolve
from gateway.epp.door import Door
from gateway.epp.picker import StreamPicker
from gateway.proto.kvgate.v1 import ext_proc_pb2 as pb
from gateway.proxy.api import Api
from tests.support.ext_proc import FakeStream, request_body, request_headers
from tests.support.worlds.exchanges import ExchangeWorld

BODY = b'{"model":"m","prompt":[1,2,3],"stream":true}'
W1, W2 = "10.0.0.1:8000", "10.0.0.2:8000"
EVENT = b'data: {"choices":[{"text":"a"}]}\n\n'
DONE = b"data: [DONE]\n\n"
DESTINATION = "x-gateway-destination-endpoint"


def resolve_as(names: Mapping[str, str]) -> Resolve:
    """DNS with these names; `names` may change."""

    async def resolve(host: str, port: int) -> list[str]:
        if host not in names:
            raise OSError("no such name")
        return names[host].split()

    return resolve


class Epp(ExchangeWorld):
    """A gateway; `stream` opens a stream."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str, **options: Any) -> None:
        super().__init__(monkeypatch, *names, **options)
        self.door = Door(
            api=Api(self.dispatch, self.router.fleet, self.metrics),
            dispatch=self.dispatch,
            max_body_bytes=1000,
        )

    def stream(self) -> tuple[StreamPicker, FakeStream]:
        stream = FakeStream()
        return StreamPicker(self.door, stream), stream

    def picked(self, **given: Any) -> tuple[StreamPicker, FakeStream]:
        """A stream with a picked request."""
        picker, stream = self.stream()
        picker.message(request_headers(**given))
        picker.message(request_body(BODY))
        picker.message(request_body(b"", is_end=True))
        return picker, stream

    @property
    def is_free(self) -> bool:
        """Nothing is booked or held any more."""
        return self.is_clean() and not self.context.bodies.num_bytes and not len(self.door.held)


def destination(message: pb.ProcessingResponse) -> str:
    """The destination of a pick; header and metadata must agree."""
    reply = message.request_body if message.HasField("request_body") else message.request_headers
    given = {
        each.header.key: each.header.raw_value.decode() for each in reply.response.header_mutation.set_headers
    }
    assert message.dynamic_metadata["envoy.lb"][DESTINATION] == given[DESTINATION]
    assert reply.response.clear_route_cache
    return given[DESTINATION]


def refusal(messages: list[pb.ProcessingResponse]) -> tuple[int, dict[str, str], Any]:
    assert len(messages) == 1
    reply = messages[0].immediate_response
    headers = {each.header.key: each.header.raw_value.decode() for each in reply.headers.set_headers}
    return reply.status.code, headers, msgspec.json.decode(reply.body)
