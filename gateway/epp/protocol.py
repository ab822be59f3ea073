"""The order of ext_proc messages for one HTTP request, without I/O.

    received                          state of the request          reply, in outbox
    request_headers                   NEW ─► BODY, or WHOLE         BUFFERED: headers pass at once
                                      (WHOLE: no body, or a tunnel)
    request_body, request_trailers    BODY ─► WHOLE                 none until the pick; a tunnel's: passed
    (pick, refuse or go_on)           WHOLE ─► ANSWERED             headers and metadata; the whole body
    response_headers, _body, …        HEAD ─► PASSING ─► ENDED      passed by `response_*`

The request's body mode is Envoy's (`protocol_config`), FULL_DUPLEX_STREAMED where it announces none. In
STREAMED and NONE a body cannot be read before the headers go on: such requests pass without a pick
(`UnsupportedMode`). What follows the first end_of_stream of a request with another one is dropped: Envoy
1.35 to 1.37 may repeat the last piece of a body over 1 MB (envoy#46237).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from gateway.epp import messages
from gateway.epp.messages import BodyMode, ProtocolError
from gateway.http.messages import Header
from gateway.proto.kvgate.v1 import ext_proc_pb2 as pb


class RequestState(Enum):
    NEW = "no headers yet"
    BODY = "the body arrives"
    WHOLE = "complete, to be answered"
    ANSWERED = "answered"


class ResponseState(Enum):
    NONE = "no answer yet"
    PASSING = "the answer passes"
    ENDED = "the answer has ended"


@dataclass(frozen=True, slots=True)
class RequestHead:
    """Headers of the request, with pseudo-headers, and the subset hint: None where Envoy sends none."""

    headers: list[Header]
    subset: object | None


@dataclass(frozen=True, slots=True)
class RequestData:
    """A piece of the request's body."""

    data: bytes


@dataclass(frozen=True, slots=True)
class UnsupportedMode:
    """Envoy sends the body in a mode in which no picker can read it first."""

    mode: int
    headers: list[Header]


@dataclass(frozen=True, slots=True)
class ResponseBegan:
    """Headers of the answer, with `:status`; `served` is the address that served it, where Envoy says."""

    headers: list[Header]
    served: str
    is_end: bool


@dataclass(frozen=True, slots=True)
class ResponseData:
    data: bytes
    is_end: bool


Event = RequestHead | RequestData | UnsupportedMode | ResponseBegan | ResponseData

SUBSET_NAMESPACE: Final = "envoy.lb.subset_hint"
SUBSET_KEY: Final = "x-gateway-destination-endpoint-subset"
SERVED_KEY: Final = "x-gateway-destination-endpoint-served"


class PickProtocol:
    """State of one stream. `outbox` has the messages to send, in order; the caller takes them."""

    __slots__ = (
        "outbox",
        "request",
        "response",
        "body_mode",
        "response_mode",
        "_has_trailers",
        "_has_body",
        "_response_trailers",
        "is_tunnel",
    )

    def __init__(self) -> None:
        self.outbox: list[bytes] = []
        self.request = RequestState.NEW
        self.response = ResponseState.NONE
        self.body_mode = self.response_mode = int(BodyMode.FULL_DUPLEX_STREAMED)
        self._has_trailers = self._has_body = self._response_trailers = False
        self.is_tunnel = False
        """The client offers to leave HTTP: its bytes follow the answer, and pass as they come."""

    def __repr__(self) -> str:
        return f"PickProtocol({self.request.name}, {self.response.name}, mode={self.body_mode})"

    @property
    def is_duplex(self) -> bool:
        return self.body_mode == BodyMode.FULL_DUPLEX_STREAMED

    @property
    def shows_answer(self) -> bool:
        """True where the body of the answer passes here, with its end."""
        return self.response_mode != BodyMode.NONE

    # received ----------------------------------------------------------------------------------

    def receive(self, data: bytes) -> Event | None:
        """Take one message; None if only the outbox must be sent. Raises ProtocolError."""
        message = messages.decode(data)
        which = message.WhichOneof("request")
        if which is None:
            raise ProtocolError("the message has no request of a known kind")
        if which == "request_headers":
            return self._request_headers(message)
        if self.request is RequestState.NEW:
            raise ProtocolError(f"{which} before request_headers")
        if which == "request_body":
            return self._request_body(message.request_body)
        if which == "request_trailers":
            return self._request_trailers()
        if which == "response_headers":
            return self._response_headers(message)
        if self.response is ResponseState.NONE:
            raise ProtocolError(f"{which} before response_headers")
        if which == "response_body":
            return self._response_body(message.response_body)
        return self._response_trailers_came()

    def _request_headers(self, message: pb.ProcessingRequest) -> Event | None:
        if self.request is not RequestState.NEW:
            raise ProtocolError("request_headers came twice")
        if message.HasField("protocol_config"):
            self.body_mode = message.protocol_config.request_body_mode
            self.response_mode = message.protocol_config.response_body_mode
        headers = messages.headers_of(message.request_headers)
        if message.request_headers.end_of_stream:
            self.request = RequestState.WHOLE
        else:
            self._has_body = True
            self.is_tunnel = any(name == b"upgrade" and value for name, value in headers)
            self.request = RequestState.WHOLE if self.is_tunnel else RequestState.BODY
            if self.body_mode in (BodyMode.NONE, BodyMode.STREAMED):
                return UnsupportedMode(self.body_mode, headers)
            if not self.is_duplex and not self.is_tunnel:
                self.outbox.append(messages.head(is_response=False))
        return RequestHead(headers, messages.metadata_of(message, SUBSET_NAMESPACE, SUBSET_KEY))

    def _request_body(self, piece: pb.HttpBody) -> Event | None:
        if self.body_mode == BodyMode.STREAMED:
            self.outbox.append(messages.body(None, is_response=False))
            return None
        if self.is_tunnel:
            if self.is_duplex:
                self.outbox += messages.pieces(piece.body, is_response=False, is_end=piece.end_of_stream)
            else:
                self.outbox.append(messages.body(None, is_response=False))
            return None
        if self.request is not RequestState.BODY:
            if piece.end_of_stream:
                return None  # envoy#46237
            raise ProtocolError("request_body after the end of the request")
        if piece.end_of_stream or not self.is_duplex:  # a buffered body is one message
            self.request = RequestState.WHOLE
        return RequestData(piece.body)

    def _request_trailers(self) -> Event | None:
        if self._has_trailers or (self.is_duplex and self.request is not RequestState.BODY):
            raise ProtocolError("request_trailers after the end of the request")
        self._has_trailers = True
        if self.is_duplex:
            self.request = RequestState.WHOLE
            return RequestData(b"")
        self.outbox.append(messages.trailers(is_response=False))  # behind a buffered body, or without one
        return None

    def _response_headers(self, message: pb.ProcessingRequest) -> Event:
        if self.response is not ResponseState.NONE:
            raise ProtocolError("response_headers came twice")
        self.request = RequestState.ANSWERED
        is_end = message.response_headers.end_of_stream
        self.response = ResponseState.ENDED if is_end else ResponseState.PASSING
        served = messages.metadata_of(message, messages.LB_NAMESPACE, SERVED_KEY)
        return ResponseBegan(messages.headers_of(message.response_headers), str(served or ""), is_end)

    def _response_body(self, piece: pb.HttpBody) -> Event | None:
        if self.response is ResponseState.ENDED:
            if piece.end_of_stream:
                return None
            raise ProtocolError("response_body after the end of the answer")
        is_end = piece.end_of_stream
        if is_end:
            self.response = ResponseState.ENDED
        return ResponseData(piece.body, is_end)

    def _response_trailers_came(self) -> Event | None:
        if self.response is ResponseState.ENDED:
            self.outbox.append(messages.trailers(is_response=True))
            return None
        self.response = ResponseState.ENDED
        self._response_trailers = True
        return ResponseData(b"", True)

    # answered ----------------------------------------------------------------------------------

    def pick(
        self, endpoint: str, changed: Iterable[Header], removed: Iterable[bytes], body: bytes, given: bytes
    ) -> None:
        """Answer with a destination; `body` goes on in place of the `given` one."""
        self.request = RequestState.ANSWERED
        is_buffered = self._has_body and not self.is_duplex and not self.is_tunnel
        replacing = body if is_buffered and body != given else None
        self.outbox.append(
            messages.picked_head(endpoint, changed, removed, is_body=is_buffered, body=replacing)
        )
        self._echo(body)

    def go_on(self, body: bytes) -> None:
        """Let the request pass without a destination."""
        was_whole = self.request is RequestState.WHOLE
        self.request = RequestState.ANSWERED
        if was_whole and self._has_body and not self.is_duplex:
            self.outbox.append(messages.body(None, is_response=False))
        else:
            self.outbox.append(messages.head(is_response=False))
            self._echo(body)

    def refuse(self, status: int, headers: Iterable[Header], content: bytes, details: str) -> None:
        """Answer in place of a worker."""
        self.request = RequestState.ANSWERED
        self.response = ResponseState.ENDED
        self.outbox.append(messages.immediate(status, headers, content, details))

    def _echo(self, body: bytes) -> None:
        if not self._has_body or not self.is_duplex or self.is_tunnel:
            return
        self.outbox += messages.pieces(body, is_response=False, is_end=not self._has_trailers)
        if self._has_trailers:
            self.outbox.append(messages.trailers(is_response=False))

    def response_head(self, changed: Iterable[Header] = (), removed: Iterable[bytes] = ()) -> None:
        self.outbox.append(messages.head(is_response=True, changed=changed, removed=removed))

    def response_piece(self, event: ResponseData, data: bytes) -> None:
        """Pass `data` on in place of an event's."""
        if self.response_mode == BodyMode.FULL_DUPLEX_STREAMED:
            is_end = event.is_end and not self._response_trailers
            self.outbox += messages.pieces(data, is_response=True, is_end=is_end)
        elif not self._response_trailers:
            self.outbox.append(messages.body(None if data == event.data else data, is_response=True))
        if self._response_trailers:
            self.outbox.append(messages.trailers(is_response=True))
