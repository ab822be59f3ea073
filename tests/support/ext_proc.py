"""Envoy's side of ext_proc in tests: messages, and a stream that keeps what it gets."""

from collections.abc import Mapping, Sequence

from gateway.epp.messages import BodyMode
from gateway.http.messages import Header
from gateway.proto.kvgate.v1 import ext_proc_pb2 as pb

POST: Sequence[Header] = (
    (b":method", b"POST"),
    (b":path", b"/v1/completions"),
    (b":authority", b"llm"),
    (b"x-request-id", b"7"),
    (b"content-type", b"application/json"),
)
DUPLEX, BUFFERED = BodyMode.FULL_DUPLEX_STREAMED, BodyMode.BUFFERED


class FakeStream:
    """A gRPC stream: sent messages, and how it was finished."""

    path = b"/envoy.service.ext_proc.v3.ExternalProcessor/Process"

    def __init__(self) -> None:
        self.headers: list[Header] = []
        self.sent: list[bytes] = []
        self.finished: tuple[int, str] | None = None

    def send(self, message: bytes) -> None:
        assert self.finished is None, "nothing follows the end"
        self.sent.append(message)

    def finish(self, status: int, message: str = "") -> None:
        assert self.finished is None, "a stream ends once"
        self.finished = (status, message)

    def take(self) -> list[pb.ProcessingResponse]:
        """The messages since the last call, decoded."""
        taken = [pb.ProcessingResponse.FromString(each) for each in self.sent]
        self.sent.clear()
        return taken


def request_headers(
    headers: Sequence[Header] = POST,
    *,
    is_end: bool = False,
    modes: tuple[int, int] | None = (DUPLEX, DUPLEX),
    subset: object | None = None,
) -> bytes:
    message = pb.ProcessingRequest()
    _fill(message.request_headers, headers, is_end)
    if modes is not None:
        message.protocol_config.request_body_mode, message.protocol_config.response_body_mode = modes
    if subset is not None:
        _metadata(message, "envoy.lb.subset_hint", {"x-gateway-destination-endpoint-subset": subset})
    return bytes(message.SerializeToString())


def request_body(data: bytes, *, is_end: bool = False) -> bytes:
    message = pb.ProcessingRequest()
    message.request_body.body, message.request_body.end_of_stream = data, is_end
    return bytes(message.SerializeToString())


def response_headers(
    status: int = 200,
    headers: Sequence[Header] = ((b"content-type", b"text/event-stream"),),
    *,
    is_end: bool = False,
    served: str = "",
) -> bytes:
    message = pb.ProcessingRequest()
    _fill(message.response_headers, [(b":status", b"%d" % status), *headers], is_end)
    if served:
        _metadata(message, "envoy.lb", {"x-gateway-destination-endpoint-served": served})
    return bytes(message.SerializeToString())


def response_body(data: bytes, *, is_end: bool = False) -> bytes:
    message = pb.ProcessingRequest()
    message.response_body.body, message.response_body.end_of_stream = data, is_end
    return bytes(message.SerializeToString())


def trailers(*, is_response: bool = False) -> bytes:
    message = pb.ProcessingRequest()
    (message.response_trailers if is_response else message.request_trailers).SetInParent()
    return bytes(message.SerializeToString())


def _fill(target: pb.HttpHeaders, headers: Sequence[Header], is_end: bool) -> None:
    for name, value in headers:
        target.headers.headers.add(key=name.decode(), raw_value=value)
    target.end_of_stream = is_end


def _metadata(message: pb.ProcessingRequest, namespace: str, values: Mapping[str, object]) -> None:
    struct = message.metadata_context.filter_metadata[namespace]
    for key, value in values.items():
        struct[key] = value
