"""A second opinion: h11 says where requests and answers end, and what is malformed.

Known differences, all to the safe side or without effect on framing. h11 takes, and kvgate refuses: bare
LF, folded fields, equal lengths said twice, both framings at once, spaces behind a chunk's size, controls
in values, unknown methods. h11 refuses, and kvgate takes (`_TAKEN`, in this order): two spaces in a request
line, RTSP and ICE for HTTP, chunk sizes of over sixteen digits, keep-alive in HTTP/1.0, controls in a
reason, which is not passed on, empty lines before a message, Transfer-Encoding as a trailer, which is
dropped.
"""

import re
from dataclasses import dataclass

import h11

REFUSALS = frozenset({400, 408, 413, 417, 431, 501, 505})
"""Statuses that a malformed request may be answered with; the connection is closed behind it."""

_TAKEN = [
    re.compile(rb"[A-Z] {2,}| {2,}(HTTP|RTSP|ICE)/"),
    re.compile(rb"(RTSP|ICE)/1\.[01]\r\n"),
    re.compile(rb"^0{16,}", re.MULTILINE),
    re.compile(rb"HTTP/1\.0\r\n.*keep-alive", re.DOTALL | re.IGNORECASE),
    re.compile(rb"HTTP/1\.[01] \d\d\d [^\r\n]*[^\r\n\t -~\x80-\xff]"),
    re.compile(rb"\n[\r\n]+HTTP/"),
    re.compile(rb"^0+(;.*)?\r\n(.*\r\n)*Transfer-Encoding:", re.MULTILINE | re.IGNORECASE),
]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Bodies and methods of the whole messages; with `is_malformed`, the bytes behind them are no message."""

    bodies: tuple[bytes, ...]
    methods: tuple[bytes, ...]
    is_malformed: bool


def takes_more(data: bytes) -> bool:
    """True if kvgate is known to read more in it than h11 does."""
    return any(taken.search(data) for taken in _TAKEN)


def requests(data: bytes) -> Verdict:
    """All requests of a client, in order; each is assumed to be answered before the next is read."""
    bodies: list[bytes] = []
    methods: list[bytes] = []
    is_malformed = False
    while data := data.lstrip(b"\r\n"):
        parser = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
        parser.receive_data(data)
        try:
            message = _message(parser)
        except h11.RemoteProtocolError:
            is_malformed = True
            break
        if message is None:
            break
        methods.append(message[0])
        bodies.append(message[1])
        if parser.our_state is h11.MUST_CLOSE or parser.their_state is h11.MUST_CLOSE:
            break
        data = parser.trailing_data[0]
    return Verdict(tuple(bodies), tuple(methods), is_malformed)


def _message(parser: h11.Connection) -> tuple[bytes, bytes] | None:
    """Method and body of one request; None: it is not whole."""
    method = body = b""
    while True:
        event = parser.next_event()
        if isinstance(event, h11.Request):
            method = event.method
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            return method, body
        elif event is h11.NEED_DATA or event is h11.PAUSED:
            return None


def answer(data: bytes, *, closes: bool) -> tuple[int, bytes] | None:
    """Final status and body of a worker's answer; None: it is not whole, or no answer."""
    parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
    parser.send(h11.Request(method="POST", target="/", headers=[("host", "a"), ("content-length", "0")]))
    parser.send(h11.EndOfMessage())
    status, body, has_ended = 0, b"", not closes
    parser.receive_data(data.lstrip(b"\r\n"))
    while True:
        try:
            event = parser.next_event()
        except h11.RemoteProtocolError:
            return None
        if isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            return status, body
        elif event is h11.NEED_DATA and not has_ended:
            has_ended = True
            parser.receive_data(b"")
        elif not isinstance(event, h11.InformationalResponse):
            return None
