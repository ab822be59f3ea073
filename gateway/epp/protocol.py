"""The order of ext_proc messages for one HTTP request, without I/O.

    received                          state of the request          reply, in outbox
    request_headers                   NEW ─► BODY, or WHOLE         BUFFERED: headers pass at once
                                      (WHOLE: no body, or a tunnel)
    request_body, request_trailers    BODY ─► WHOLE                 none until the pick; a tunnel's: passed
    (pick)                            WHOLE ─► ANSWERED             headers and metadata; the whole body
    response_headers, _body, …        HEAD ─► PASSING ─► ENDED      passed by `response_*`
    (refuse)                          any ─► ANSWERED, REPLACED     immediate response; the rest is dropped

The request's body mode is Envoy's (`protocol_config`), FULL_DUPLEX_STREAMED where it announces none. In
modes other than that and BUFFERED a whole body cannot be read before the headers go on: such requests pass
without a pick (`UnsupportedMode`), but for tunnels, which are picked at their headers. What follows the first
end_of_stream of a request with another one is dropped: Envoy 1.35 to 1.37 may repeat the last piece of a body
over 1 MB (envoy#46237).
"""

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final

from gateway.core.value import Value
from gateway.epp import messages, processing_request
from gateway.epp.dynamic_metadata import MetadataKey
from gateway.epp.messages import BodyMode, ProtocolError
from gateway.epp.processing_request import ProcessingRequest
from gateway.http.messages import Header


class RequestState(Enum):
    NEW = "no headers yet"
    BODY = "the body arrives"
    WHOLE = "complete, to be answered"
    ANSWERED = "answered"


class ResponseState(Enum):
    NONE = "no answer yet"
    PASSING = "the answer passes"
    ENDED = "the answer has ended"
    REPLACED = "answered in its place: messages that were on their way are dropped"


class RequestHead(Value):
    """Headers of the request, with pseudo-headers, and the subset hint: None where Envoy sends none."""

    __match_args__ = ("headers", "subset")
    __slots__ = __match_args__

    def __init__(self, headers: list[Header], subset: object | None) -> None:
        self.headers: Final = headers
        self.subset: Final = subset


class RequestData(Value):
    """A piece of the request's body."""

    __match_args__ = ("data",)
    __slots__ = __match_args__

    def __init__(self, data: bytes) -> None:
        self.data: Final = data


class UnsupportedMode(Value):
    """Envoy sends the body in a mode in which no picker can read all of it first."""

    __match_args__ = ("mode", "headers")
    __slots__ = __match_args__

    def __init__(self, mode: int, headers: list[Header]) -> None:
        self.mode: Final = mode
        self.headers: Final = headers


class ResponseBegan(Value):
    """Headers of the answer, with `:status`; `served` is the address that served it, where Envoy says."""

    __match_args__ = ("headers", "served", "is_end")
    __slots__ = __match_args__

    def __init__(self, headers: list[Header], served: str, is_end: bool) -> None:
        self.headers: Final = headers
        self.served: Final = served
        self.is_end: Final = is_end


class ResponseData(Value):
    """A piece of the answer's body."""

    __match_args__ = ("data", "is_end")
    __slots__ = __match_args__

    def __init__(self, data: bytes, is_end: bool) -> None:
        self.data: Final = data
        self.is_end: Final = is_end


Event = RequestHead | RequestData | UnsupportedMode | ResponseBegan | ResponseData

READABLE: Final = frozenset({int(BodyMode.FULL_DUPLEX_STREAMED), int(BodyMode.BUFFERED)})
"""Modes in which the whole body comes before the headers must go on."""

SUBSET: Final = MetadataKey("envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset")
SERVED: Final = MetadataKey(messages.LB_NAMESPACE, "x-gateway-destination-endpoint-served")

_DUPLEX: Final = int(BodyMode.FULL_DUPLEX_STREAMED)
_NAMES: Final = {
    processing_request.REQUEST_BODY: "request_body",
    processing_request.REQUEST_TRAILERS: "request_trailers",
    processing_request.RESPONSE_HEADERS: "response_headers",
    processing_request.RESPONSE_BODY: "response_body",
    processing_request.RESPONSE_TRAILERS: "response_trailers",
}


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
        "_is_passed",
        "is_tunnel",
    )

    def __init__(self) -> None:
        self.outbox: list[bytes] = []
        self.request = RequestState.NEW
        self.response = ResponseState.NONE
        self.body_mode = self.response_mode = int(BodyMode.FULL_DUPLEX_STREAMED)
        self._has_trailers = self._has_body = self._response_trailers = False
        self.is_tunnel = self._is_passed = False
        """The client offers to leave HTTP: its bytes follow the answer, and pass as they come."""

    def __repr__(self) -> str:
        return f"PickProtocol({self.request.name}, {self.response.name}, mode={self.body_mode})"

    @property
    def is_duplex(self) -> bool:
        return self.body_mode == _DUPLEX

    @property
    def is_buffered(self) -> bool:
        """True for a request that is answered behind its body."""
        return self._has_body and not self.is_duplex and not self.is_tunnel

    @property
    def shows_answer(self) -> bool:
        """True where the body of the answer passes here, with its end."""
        return self.response_mode != BodyMode.NONE

    # received ----------------------------------------------------------------------------------

    def receive(self, data: bytes) -> Event | None:
        """Take one message; None if only the outbox must be sent. Raises ProtocolError."""
        if self.response is ResponseState.REPLACED:
            return None
        message = processing_request.decode(data)
        kind = message.kind
        if kind == processing_request.REQUEST_HEADERS:
            return self._request_headers(message)
        if kind == 0:
            raise ProtocolError("the message has no request of a known kind")
        if self.request is RequestState.NEW:
            raise ProtocolError(f"{_NAMES[kind]} before request_headers")
        if kind == processing_request.REQUEST_BODY:
            return self._request_body(message.body, message.is_end)
        if kind == processing_request.RESPONSE_HEADERS:
            return self._response_headers(message)
        if kind == processing_request.REQUEST_TRAILERS:
            return self._request_trailers()
        if self.response is ResponseState.NONE:
            raise ProtocolError(f"{_NAMES[kind]} before response_headers")
        if kind == processing_request.RESPONSE_BODY:
            return self._response_body(message.body, message.is_end)
        return self._response_trailers_came()

    def _request_headers(self, message: ProcessingRequest) -> Event:
        if self.request is not RequestState.NEW:
            raise ProtocolError("request_headers came twice")
        if message.has_modes:
            self.body_mode, self.response_mode = message.request_mode, message.response_mode
        headers = message.headers
        if message.is_end:
            self.request = RequestState.WHOLE
        else:
            self._has_body = True
            self.is_tunnel = any(name == b"upgrade" and value for name, value in headers)
            self.request = RequestState.WHOLE if self.is_tunnel else RequestState.BODY
            if not self.is_tunnel:
                if self.body_mode not in READABLE:
                    return UnsupportedMode(self.body_mode, headers)
                if not self.is_duplex:
                    self.outbox.append(messages.head(is_response=False))
        return RequestHead(headers, SUBSET.value_in(message.metadata))

    def _request_body(self, data: bytes, is_end: bool) -> Event | None:
        if self.request is RequestState.BODY:
            if is_end or not self.is_duplex:  # a buffered body is one message
                self.request = RequestState.WHOLE
            return RequestData(data)
        if self.is_tunnel or self._is_passed:
            if self.is_duplex:
                self.outbox += messages.pieces(data, is_response=False, is_end=is_end)
            else:
                self.outbox.append(messages.body(None, is_response=False))
        elif not is_end:  # envoy#46237
            raise ProtocolError("request_body after the end of the request")
        return None

    def _request_trailers(self) -> Event | None:
        if self._has_trailers or (self.is_duplex and self.request is not RequestState.BODY):
            raise ProtocolError("request_trailers after the end of the request")
        self._has_trailers = True
        if self.is_duplex:
            self.request = RequestState.WHOLE
            return RequestData(b"")
        self.outbox.append(messages.trailers(is_response=False))  # behind a buffered body, or without one
        return None

    def _response_headers(self, message: ProcessingRequest) -> Event:
        if self.response is not ResponseState.NONE:
            raise ProtocolError("response_headers came twice")
        self.request = RequestState.ANSWERED
        self.response = ResponseState.ENDED if message.is_end else ResponseState.PASSING
        served = SERVED.value_in(message.metadata)
        return ResponseBegan(message.headers, str(served or ""), message.is_end)

    def _response_body(self, data: bytes, is_end: bool) -> Event | None:
        if self.response is ResponseState.PASSING:
            if is_end:
                self.response = ResponseState.ENDED
            return ResponseData(data, is_end)
        if not is_end:
            raise ProtocolError("response_body after the end of the answer")
        return None

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
        replacing = body if self.is_buffered and body != given else None
        self.outbox.append(
            messages.picked_head(endpoint, changed, removed, is_body=self.is_buffered, body=replacing)
        )
        self._echo(body)

    def go_on(self, removed: Sequence[bytes]) -> None:
        """Let the request pass unread and without a destination, and each part of its body as it comes."""
        self.request, self._is_passed = RequestState.ANSWERED, True
        self.outbox.append(messages.head(is_response=False, removed=removed))

    def refuse(self, status: int, headers: Iterable[Header], content: bytes, details: str) -> None:
        """Answer in place of a worker: what Envoy has of an answer, or of changes, is void."""
        self.request = RequestState.ANSWERED
        self.response = ResponseState.REPLACED
        self.outbox.append(messages.immediate(status, headers, content, details))

    def _echo(self, body: bytes) -> None:
        if not self._has_body or not self.is_duplex or self.is_tunnel:
            return
        self.outbox += messages.pieces(body, is_response=False, is_end=not self._has_trailers)
        if self._has_trailers:
            self.outbox.append(messages.trailers(is_response=False))

    def response_head(self, changed: Sequence[Header] = (), removed: Sequence[bytes] = ()) -> None:
        self.outbox.append(messages.head(is_response=True, changed=changed, removed=removed))

    def response_piece(self, event: ResponseData, data: bytes) -> None:
        """Pass `data` on in place of an event's."""
        if self.response_mode == _DUPLEX:
            is_end = event.is_end and not self._response_trailers
            self.outbox += messages.pieces(data, is_response=True, is_end=is_end)
        elif not self._response_trailers:
            self.outbox.append(messages.body(None if data == event.data else data, is_response=True))
        if self._response_trailers:
            self.outbox.append(messages.trailers(is_response=True))
