"""A client's side of HTTP/2 in tests: bytes to send, and what a connection answers, as words."""

from collections.abc import Callable, Iterable, Sequence

from hpack import Decoder, Encoder

from gateway.http.messages import Header
from gateway.server.http2 import frames
from gateway.server.http2.connection import Http2Connection
from gateway.server.http2.events import Event, StreamGone
from gateway.server.http2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PREFACE,
    SETTINGS,
    Frame,
    FrameReader,
    frame,
    number,
)
from gateway.server.http2.grpc_framing import RESPONSE_HEAD, trailers
from gateway.server.http2.limits import Http2Limits
from gateway.server.http2.service import GrpcStream

POST: Sequence[Header] = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/test.Echo/Run"),
    (b":authority", b"kvgate"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
)
HELLO = PREFACE + frames.settings([])

CODES = {
    frames.NO_ERROR: "NO_ERROR",
    frames.PROTOCOL_ERROR: "PROTOCOL_ERROR",
    frames.INTERNAL_ERROR: "INTERNAL_ERROR",
    frames.FLOW_CONTROL_ERROR: "FLOW_CONTROL_ERROR",
    frames.STREAM_CLOSED: "STREAM_CLOSED",
    frames.FRAME_SIZE_ERROR: "FRAME_SIZE_ERROR",
    frames.REFUSED_STREAM: "REFUSED_STREAM",
    frames.CANCEL: "CANCEL",
    frames.COMPRESSION_ERROR: "COMPRESSION_ERROR",
    frames.ENHANCE_YOUR_CALM: "ENHANCE_YOUR_CALM",
}


def block(headers: Iterable[Header] = POST) -> bytes:
    """A header block without entries of the dynamic table, so that blocks stand in any order."""
    encoder = Encoder()
    encoder.header_table_size = 0
    encoded: bytes = encoder.encode(list(headers))
    return encoded


def request(
    stream_id: int = 1, headers: Iterable[Header] = POST, flags: int = END_HEADERS | END_STREAM
) -> bytes:
    return frame(HEADERS, flags, stream_id, block(headers))


def opened(stream_id: int = 1, headers: Iterable[Header] = POST) -> bytes:
    """HEADERS of a request with a body."""
    return request(stream_id, headers, END_HEADERS)


def data(stream_id: int, payload: bytes, *, is_end: bool = False) -> bytes:
    return frame(DATA, END_STREAM if is_end else 0, stream_id, payload)


def message(payload: bytes) -> bytes:
    """A gRPC message with its prefix."""
    return b"\0" + len(payload).to_bytes(4, "big") + payload


def with_path(path: bytes) -> list[Header]:
    return [(name, path if name == b":path" else value) for name, value in POST]


def read(out: bytes) -> list[Frame]:
    """Frames of written bytes; all of them are whole."""
    reader = FrameReader(1 << 24)
    reader.feed(out)
    found = []
    while (each := reader.next()) is not None:
        found.append(each)
    assert reader.num_held == 0, "a part of a frame was written"
    return found


def words(each: Frame) -> str:
    """A frame that matters to a test, as one word or two; "" for greetings and window updates."""
    payload = each.payload
    if each.kind == frames.GOAWAY:
        return f"GOAWAY {CODES[number(payload, 4)]}"
    if each.kind == frames.RST_STREAM:
        return f"RST {each.stream_id} {CODES[number(payload, 0)]}"
    if each.kind == HEADERS and each.flags & END_STREAM:
        return f"END {each.stream_id}"
    if each.kind == DATA:
        return f"DATA {each.stream_id} {len(payload)}"
    if each.kind == frames.PING:
        return "PONG" if each.flags & frames.ACK else "PING"
    if each.kind == SETTINGS and each.flags & frames.ACK:
        return "ACK"
    return ""


def events_of(http2: Http2Connection, sent: bytes, now: float = 0.0) -> list[Event]:
    """Events that these bytes bring."""
    found = []
    http2.feed(sent, now)
    while http2.advance():
        if http2.event is not None:
            found.append(http2.event)
    return found


class Answering:
    """A connection without gRPC that answers each whole request with some bytes, and its end."""

    def __init__(self, limits: Http2Limits | None = None, answer: bytes = b"answer") -> None:
        self.http2 = Http2Connection(limits or Http2Limits(), RESPONSE_HEAD)
        self.out = b""
        self.now = 0.0
        self.events: list[object] = []
        self._answer = answer

    def feed(self, sent: bytes) -> None:
        for event in events_of(self.http2, sent, self.now):
            self.events.append(event)
            if not isinstance(event, StreamGone) and event.is_end:
                self.http2.send(event.stream, self._answer, b"")
                self.http2.end(event.stream, trailers(0, ""))
        while out := self.http2.take():
            self.out += out

    def answers(self) -> list[str]:
        """Written frames as words, without greetings."""
        return [said for each in read(self.out) if (said := words(each)) and said != "ACK"]

    @property
    def num_acks(self) -> int:
        return sum(words(each) == "ACK" for each in read(self.out))


def headers_of(out: bytes) -> dict[int, list[Header]]:
    """Headers and trailers by stream, decoded by hpack."""
    decoder, found = Decoder(), dict[int, list[Header]]()
    for each in read(out):
        if each.kind == HEADERS:
            found.setdefault(each.stream_id, []).extend(decoder.decode(each.payload, raw=True))
    return found


def messages_of(out: bytes) -> dict[int, list[bytes]]:
    """gRPC messages by stream."""
    bodies, found = dict[int, bytes](), dict[int, list[bytes]]()
    for each in read(out):
        if each.kind == DATA:
            bodies[each.stream_id] = bodies.get(each.stream_id, b"") + each.payload
    for stream_id, body in bodies.items():
        parts = found.setdefault(stream_id, [])
        while body:
            size = number(body, 1)
            parts.append(body[5 : 5 + size])
            body = body[5 + size :]
    return found


class EchoHandler:
    """Echoes messages; the end of the client's side ends the stream."""

    def __init__(self, stream: GrpcStream) -> None:
        self.stream = stream
        self.events: list[str] = []

    def message(self, message: bytes) -> None:
        self.events.append(message.decode())
        if message == b"raise":
            raise ValueError("a bug")
        if message == b"finish":
            self.stream.finish(9, "enough")
        else:
            self.stream.send(message)

    def half_closed(self) -> None:
        self.events.append("END")
        self.stream.finish(0)

    def aborted(self, why: str) -> None:
        self.events.append(f"aborted: {why}")


class GrpcTimer:
    def __init__(self, seconds: float, callback: Callable[[], None]) -> None:
        self.seconds, self.callback = seconds, callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True
