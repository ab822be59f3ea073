"""Cases of h2spec 2.6, by its sections and numbers, as bytes that follow a client's greeting, and what is
answered.

Results are the last frame of an answer, or the first RST_STREAM or GOAWAY that names an error; `QUIET` where
only the greeting is acknowledged. Where h2spec accepts several results, the one of this server stands here.
`SECTIONS` has the number of its cases in each section; a few more of our own have other numbers.
"""

from dataclasses import dataclass

from gateway.server.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITIZED,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    rst_stream,
    settings,
    window_update,
)
from tests.support.http2 import POST, block, data, opened, request

ANSWERED = "END 1"
QUIET = "ACK 1"


def goaway(code: str) -> str:
    return f"GOAWAY {code}"


def rst(code: str, stream_id: int = 1) -> str:
    return f"RST {stream_id} {code}"


@dataclass(frozen=True)
class Case:
    name: str
    sent: bytes
    result: str


def fields(*changed: tuple[bytes, bytes]) -> bytes:
    """A whole request with more headers behind the usual ones."""
    return request(1, [*POST, *changed])


def without(*names: bytes) -> bytes:
    return request(1, [header for header in POST if header[0] not in names])


def with_method(method: bytes) -> bytes:
    return request(1, [(b":method", method), *[header for header in POST if header[0] != b":method"]])


def priority(stream_id: int, parent: int, weight: int = 0) -> bytes:
    return frame(PRIORITY, 0, stream_id, parent.to_bytes(4, "big") + bytes([weight]))


FIRST, REST = block()[:10], block()[10:]
LONG = b"\0" * 70_000
HALF_CLOSED = request()
OPEN = opened()
TRAILERS = frame(HEADERS, END_HEADERS | END_STREAM, 1, block([(b"x-test", b"ok")]))


def raw(fragment: bytes) -> bytes:
    return frame(HEADERS, END_HEADERS | END_STREAM, 1, fragment)


GENERIC = [
    Case("generic/1.1 preface", request(), ANSWERED),
    Case("generic/2.1 PRIORITY on an idle stream", priority(1, 0) + request(), ANSWERED),
    Case("generic/2.2 WINDOW_UPDATE on a half-closed stream", HALF_CLOSED + window_update(1, 1), ANSWERED),
    Case("generic/2.3 PRIORITY on a half-closed stream", HALF_CLOSED + priority(1, 0), ANSWERED),
    Case("generic/2.4 RST_STREAM on a half-closed stream", HALF_CLOSED + rst_stream(1, 8), QUIET),
    Case("generic/2.5 PRIORITY on a closed stream", HALF_CLOSED + priority(1, 0), ANSWERED),
    Case("generic/3.1.1 DATA", OPEN + data(1, b"test", is_end=True), ANSWERED),
    Case("generic/3.1.2 two DATA", OPEN + data(1, b"test") + data(1, b"test", is_end=True), ANSWERED),
    Case("generic/3.1.3 padded DATA", OPEN + frame(DATA, END_STREAM | PADDED, 1, b"\x02test\0\0"), ANSWERED),
    Case("generic/3.2.1 HEADERS", request(), ANSWERED),
    Case("generic/3.2.2 padded HEADERS", frame(HEADERS, 13, 1, b"\x02" + block() + b"\0\0"), ANSWERED),
    Case(
        "generic/3.2.3 HEADERS with a priority",
        frame(HEADERS, END_HEADERS | END_STREAM | PRIORITIZED, 1, bytes(4) + b"\xff" + block()),
        ANSWERED,
    ),
    Case("generic/3.3.1 PRIORITY of weight 1", priority(1, 0) + request(), ANSWERED),
    Case("generic/3.3.2 PRIORITY of weight 256", priority(1, 0, 255) + request(), ANSWERED),
    Case("generic/3.3.3 PRIORITY with a dependency", priority(1, 2) + request(), ANSWERED),
    Case("generic/3.3.4 exclusive PRIORITY", priority(1, 0x80000000) + request(), ANSWERED),
    Case("generic/3.3.5 PRIORITY of a later stream", priority(5, 0) + request(), ANSWERED),
    Case("generic/3.4.1 RST_STREAM", OPEN + rst_stream(1, 8) + request(3), "END 3"),
    Case("generic/3.5.1 SETTINGS", settings([(3, 100)]) + request(), ANSWERED),
    Case("generic/3.7.1 PING", frame(PING, 0, 0, b"h2spec\0\0"), "PONG"),
    Case("generic/3.8.1 GOAWAY", frame(GOAWAY, 0, 0, bytes(8)) + request(), ANSWERED),
    Case("generic/3.9.1 WINDOW_UPDATE of the connection", window_update(0, 1) + request(), ANSWERED),
    Case("generic/3.9.2 WINDOW_UPDATE of a stream", OPEN + window_update(1, 1) + TRAILERS, ANSWERED),
    Case(
        "generic/3.10.1 CONTINUATION",
        frame(HEADERS, END_STREAM, 1, FIRST) + frame(CONTINUATION, END_HEADERS, 1, REST),
        ANSWERED,
    ),
    Case(
        "generic/3.10.2 several CONTINUATION",
        frame(HEADERS, END_STREAM, 1, b"") + frame(CONTINUATION, 0, 1, FIRST)
        + frame(CONTINUATION, 0, 1, REST) + frame(CONTINUATION, END_HEADERS, 1, b""),
        ANSWERED,
    ),
    Case("generic/4.1 GET", with_method(b"GET"), ANSWERED),
    Case("generic/4.2 HEAD", with_method(b"HEAD"), ANSWERED),
    Case("generic/4.3 POST", with_method(b"POST"), ANSWERED),
    Case("generic/4.4 POST with trailers", OPEN + data(1, b"test") + TRAILERS, ANSWERED),
    Case("generic/5.1 indexed header", raw(block() + b"\x90"), ANSWERED),
    Case("generic/5.2 literal with indexing, indexed name", raw(block() + b"\x51\x01a"), ANSWERED),
    Case("generic/5.3 the same in Huffman coding", raw(block() + b"\x51\x81\x1f"), ANSWERED),
    Case("generic/5.4 literal with indexing, new name", raw(block() + b"\x40\x01a\x01b"), ANSWERED),
    Case("generic/5.5 the same in Huffman coding", raw(block() + b"\x40\x81\x1f\x81\x8f"), ANSWERED),
    Case("generic/5.6 literal without indexing, indexed name", raw(block() + b"\x0f\x01\x01a"), ANSWERED),
    Case("generic/5.7 the same in Huffman coding", raw(block() + b"\x0f\x01\x81\x1f"), ANSWERED),
    Case("generic/5.8 literal without indexing, new name", raw(block() + b"\x00\x01a\x01b"), ANSWERED),
    Case("generic/5.9 the same in Huffman coding", raw(block() + b"\x00\x81\x1f\x81\x8f"), ANSWERED),
    Case("generic/5.10 literal never indexed, indexed name", raw(block() + b"\x1f\x01\x01a"), ANSWERED),
    Case("generic/5.11 the same in Huffman coding", raw(block() + b"\x1f\x01\x81\x1f"), ANSWERED),
    Case("generic/5.12 literal never indexed, new name", raw(block() + b"\x10\x01a\x01b"), ANSWERED),
    Case("generic/5.13 the same in Huffman coding", raw(block() + b"\x10\x81\x1f\x81\x8f"), ANSWERED),
    Case("generic/5.14 table size update", raw(b"\x21" + block()), ANSWERED),
    Case("generic/5.15 table size updates", raw(b"\x20\x21" + block()), ANSWERED),
]  # fmt: skip

HTTP2 = [
    Case("http2/4.1.1 unknown kind of frame", frame(0xFF, 0, 0, bytes(8)) + request(), ANSWERED),
    Case("http2/4.1.2 undefined flags", frame(PING, 0x16, 0, bytes(8)), "PONG"),
    Case("http2/4.1.3 reserved bit", frame(PING, 0, 0x80000000, bytes(8)), "PONG"),
    Case("http2/4.2.1 DATA of 2^14", OPEN + data(1, bytes(1 << 14), is_end=True), ANSWERED),
    Case("http2/4.2.2 DATA over MAX_FRAME_SIZE", OPEN + data(1, LONG), goaway("FRAME_SIZE_ERROR")),
    Case("http2/4.2.3 HEADERS over MAX_FRAME_SIZE", raw(LONG), goaway("FRAME_SIZE_ERROR")),
    Case("http2/4.3.1 invalid header block", raw(b"\x40"), goaway("COMPRESSION_ERROR")),
    Case(
        "http2/4.3.2 PRIORITY within a header block",
        frame(HEADERS, 0, 1, FIRST) + priority(1, 0),
        goaway("PROTOCOL_ERROR"),
    ),
    Case(
        "http2/4.3.3 HEADERS within a header block",
        frame(HEADERS, 0, 1, FIRST) + request(3),
        goaway("PROTOCOL_ERROR"),
    ),
    Case("http2/5.1.1 idle: DATA", data(1, b"test", is_end=True), goaway("PROTOCOL_ERROR")),
    Case("http2/5.1.2 idle: RST_STREAM", rst_stream(1, 8), goaway("PROTOCOL_ERROR")),
    Case("http2/5.1.3 idle: WINDOW_UPDATE", window_update(1, 100), goaway("PROTOCOL_ERROR")),
    Case(
        "http2/5.1.4 idle: CONTINUATION",
        frame(CONTINUATION, END_HEADERS, 1, block()),
        goaway("PROTOCOL_ERROR"),
    ),
    Case("http2/5.1.8 closed by RST_STREAM: DATA", OPEN + rst_stream(1, 8) + data(1, b"a"), goaway("STREAM_CLOSED")),
    Case(
        "http2/5.1.9 closed by RST_STREAM: HEADERS",
        OPEN + rst_stream(1, 8) + TRAILERS,
        goaway("STREAM_CLOSED"),
    ),
    Case(
        "http2/5.1.10 closed by RST_STREAM: CONTINUATION",
        OPEN + rst_stream(1, 8) + frame(CONTINUATION, END_HEADERS, 1, block()),
        goaway("PROTOCOL_ERROR"),
    ),
    Case("http2/5.1.1.1 even stream", request(2), goaway("PROTOCOL_ERROR")),
    Case("http2/5.1.1.2 lower stream", request(5) + request(3), goaway("PROTOCOL_ERROR")),
    Case(
        "http2/5.1.2.1 more streams than announced",
        b"".join([opened(2 * number + 1) for number in range(1025)]),
        rst("REFUSED_STREAM", 2049),
    ),
    Case(
        "http2/5.3.1.1 HEADERS that depends on itself",
        frame(HEADERS, END_HEADERS | END_STREAM | PRIORITIZED, 1, b"\0\0\0\x01\0" + block()),
        goaway("PROTOCOL_ERROR"),
    ),
    Case("http2/5.3.1.2 PRIORITY that depends on itself", OPEN + priority(1, 1), rst("PROTOCOL_ERROR")),
    Case("http2/5.4.1.1 closed behind an invalid PING", frame(PING, 0, 3, bytes(8)), goaway("PROTOCOL_ERROR")),
    Case("http2/5.4.1.2 GOAWAY behind an invalid PING", frame(PING, 0, 3, bytes(8)), goaway("PROTOCOL_ERROR")),
    Case("http2/5.5.1 extension frame", frame(0x16, 0, 1, bytes(8)) + request(), ANSWERED),
    Case(
        "http2/5.5.2 extension frame within a header block",
        frame(HEADERS, 0, 1, FIRST) + frame(0x16, 0, 0, bytes(8)),
        goaway("PROTOCOL_ERROR"),
    ),
    Case("http2/6.1.1 DATA of stream 0", data(0, b"test"), goaway("PROTOCOL_ERROR")),
    Case("http2/6.1.3 padding over the length", OPEN + frame(DATA, PADDED, 1, b"\x05test"), goaway("PROTOCOL_ERROR")),
    Case("http2/6.1.4 padded without its length", OPEN + frame(DATA, PADDED, 1, b""), goaway("FRAME_SIZE_ERROR")),
    Case(
        "http2/6.2.1 HEADERS without END_HEADERS, then PRIORITY",
        frame(HEADERS, END_STREAM, 1, block()) + priority(1, 0),
        goaway("PROTOCOL_ERROR"),
    ),
    Case(
        "http2/6.2.2 HEADERS of another stream within a header block",
        frame(HEADERS, END_STREAM, 1, block()) + request(3),
        goaway("PROTOCOL_ERROR"),
    ),
    Case("http2/6.2.3 HEADERS of stream 0", request(0), goaway("PROTOCOL_ERROR")),
    Case(
        "http2/6.2.4 HEADERS with padding over the length",
        frame(HEADERS, END_HEADERS | PADDED, 1, b"\xff" + block()),
        goaway("PROTOCOL_ERROR"),
    ),
    Case(
        "http2/6.2.5 HEADERS too short for its priority",
        frame(HEADERS, END_HEADERS | PRIORITIZED, 1, b"\0\0"),
        goaway("FRAME_SIZE_ERROR"),
    ),
    Case("http2/6.3.1 PRIORITY of stream 0", priority(0, 1), goaway("PROTOCOL_ERROR")),
    Case("http2/6.3.2 PRIORITY of 4 bytes", OPEN + frame(PRIORITY, 0, 1, bytes(4)), rst("FRAME_SIZE_ERROR")),
    Case("http2/6.4.1 RST_STREAM of stream 0", rst_stream(0, 8), goaway("PROTOCOL_ERROR")),
    Case("http2/6.4.2 RST_STREAM of an idle stream", rst_stream(1, 8), goaway("PROTOCOL_ERROR")),
    Case("http2/6.4.3 RST_STREAM of 3 bytes", OPEN + frame(RST_STREAM, 0, 1, bytes(3)), goaway("FRAME_SIZE_ERROR")),
    Case("http2/6.5.1 ACK with settings", frame(SETTINGS, ACK, 0, b"\0"), goaway("FRAME_SIZE_ERROR")),
    Case("http2/6.5.2 SETTINGS of a stream", frame(SETTINGS, 0, 1, bytes(6)), goaway("PROTOCOL_ERROR")),
    Case("http2/6.5.3 SETTINGS of 3 bytes", frame(SETTINGS, 0, 0, bytes(3)), goaway("FRAME_SIZE_ERROR")),
    Case("http2/6.5.2.1 ENABLE_PUSH is 2", settings([(2, 2)]), goaway("PROTOCOL_ERROR")),
    Case("http2/6.5.2.2 INITIAL_WINDOW_SIZE over 2^31-1", settings([(4, 1 << 31)]), goaway("FLOW_CONTROL_ERROR")),
    Case("http2/6.5.2.3 MAX_FRAME_SIZE below 2^14", settings([(5, 16383)]), goaway("PROTOCOL_ERROR")),
    Case("http2/6.5.2.4 MAX_FRAME_SIZE over 2^24-1", settings([(5, 1 << 24)]), goaway("PROTOCOL_ERROR")),
    Case("http2/6.5.2.5 unknown setting", settings([(255, 1)]) + request(), ANSWERED),
    Case("http2/6.5.3.1 two values of INITIAL_WINDOW_SIZE", settings([(4, 100), (4, 1)]) + request(), "DATA 1 1"),
    Case("http2/6.5.3.2 SETTINGS without ACK", settings([]), "ACK 2"),
    Case("http2/6.7.1 PING", frame(PING, 0, 0, b"abcdefgh"), "PONG"),
    Case("http2/6.7.2 PING that is an answer", frame(PING, ACK, 0, b"unasked!"), QUIET),
    Case("http2/6.7.3 PING of a stream", frame(PING, 0, 1, bytes(8)), goaway("PROTOCOL_ERROR")),
    Case("http2/6.7.4 PING of 6 bytes", frame(PING, 0, 0, bytes(6)), goaway("FRAME_SIZE_ERROR")),
    Case("http2/6.8.1 GOAWAY of a stream", frame(GOAWAY, 0, 1, bytes(8)), goaway("PROTOCOL_ERROR")),
    Case("http2/6.8.2 GOAWAY of 4 bytes", frame(GOAWAY, 0, 0, bytes(4)), goaway("FRAME_SIZE_ERROR")),
    Case("http2/6.9.1 WINDOW_UPDATE by 0", window_update(0, 0), goaway("PROTOCOL_ERROR")),
    Case("http2/6.9.2 WINDOW_UPDATE of a stream by 0", OPEN + window_update(1, 0), rst("PROTOCOL_ERROR")),
    Case("http2/6.9.3 WINDOW_UPDATE of 3 bytes", frame(WINDOW_UPDATE, 0, 0, bytes(3)), goaway("FRAME_SIZE_ERROR")),
    Case("http2/6.9.1.1 window of one byte", settings([(4, 1)]) + request(), "DATA 1 1"),
    Case(
        "http2/6.9.1.2 connection window over 2^31-1",
        window_update(0, 0x7FFFFFFF) + window_update(0, 0x7FFFFFFF),
        goaway("FLOW_CONTROL_ERROR"),
    ),
    Case(
        "http2/6.9.1.3 stream window over 2^31-1",
        OPEN + window_update(1, 0x7FFFFFFF) + window_update(1, 0x7FFFFFFF),
        rst("FLOW_CONTROL_ERROR"),
    ),
    Case(
        "http2/6.9.2.1 INITIAL_WINDOW_SIZE behind HEADERS",
        settings([(4, 0)]) + request() + settings([(4, 1)]),
        "DATA 1 1",
    ),
    Case(
        "http2/6.9.2.3 INITIAL_WINDOW_SIZE makes a window too large",
        OPEN + window_update(1, 0x7FFF0000) + settings([(4, 0x7FFFFFFF)]),
        goaway("FLOW_CONTROL_ERROR"),
    ),
    Case(
        "http2/6.10.1 several CONTINUATION",
        frame(HEADERS, END_STREAM, 1, FIRST) + frame(CONTINUATION, 0, 1, REST)
        + frame(CONTINUATION, END_HEADERS, 1, b""),
        ANSWERED,
    ),
    Case(
        "http2/6.10.2 CONTINUATION, then another frame",
        frame(HEADERS, 0, 1, FIRST) + frame(CONTINUATION, 0, 1, REST) + data(1, b"test"),
        goaway("PROTOCOL_ERROR"),
    ),
    Case(
        "http2/6.10.3 CONTINUATION of stream 0",
        frame(HEADERS, 0, 1, FIRST) + frame(CONTINUATION, END_HEADERS, 0, REST),
        goaway("PROTOCOL_ERROR"),
    ),
    Case("http2/6.10.4 CONTINUATION behind HEADERS", OPEN + frame(CONTINUATION, END_HEADERS, 1, REST), goaway("PROTOCOL_ERROR")),
    Case(
        "http2/6.10.5 CONTINUATION behind the last one",
        frame(HEADERS, 0, 1, FIRST) + frame(CONTINUATION, END_HEADERS, 1, REST)
        + frame(CONTINUATION, END_HEADERS, 1, REST),
        goaway("PROTOCOL_ERROR"),
    ),
    Case(
        "http2/6.10.6 CONTINUATION behind DATA",
        OPEN + data(1, b"test") + frame(CONTINUATION, END_HEADERS, 1, REST),
        goaway("PROTOCOL_ERROR"),
    ),
    Case("http2/7.1 GOAWAY with an unknown code", frame(GOAWAY, 0, 0, bytes(4) + b"\0\0\0\xff") + request(), ANSWERED),
    Case("http2/7.2 RST_STREAM with an unknown code", OPEN + rst_stream(1, 0xFF) + request(3), "END 3"),
    Case("http2/8.1.1 second HEADERS without END_STREAM", OPEN + opened(), rst("PROTOCOL_ERROR")),
    Case("http2/8.1.2.1 upper case", fields((b"X-TEST", b"ok")), rst("PROTOCOL_ERROR")),
    Case("http2/8.1.2.1.1 unknown pseudo-header", request(1, [(b":test", b"ok"), *POST]), rst("PROTOCOL_ERROR")),
    Case("http2/8.1.2.1.2 pseudo-header of answers", request(1, [(b":status", b"200"), *POST]), rst("PROTOCOL_ERROR")),
    Case(
        "http2/8.1.2.1.3 pseudo-header in trailers",
        OPEN + frame(HEADERS, END_HEADERS | END_STREAM, 1, block([(b":method", b"GET")])),
        rst("PROTOCOL_ERROR"),
    ),
    Case("http2/8.1.2.1.4 pseudo-header behind a header", request(1, [(b"x-test", b"ok"), *POST]), rst("PROTOCOL_ERROR")),
    Case("http2/8.1.2.2.1 header of the connection", fields((b"connection", b"keep-alive")), rst("PROTOCOL_ERROR")),
    Case("http2/8.1.2.2.2 TE other than trailers", fields((b"te", b"gzip")), rst("PROTOCOL_ERROR")),
    Case("http2/8.1.2.3.1 empty :path", request(1, [(b":path", b"")]), rst("PROTOCOL_ERROR")),
    Case("http2/8.1.2.3.2 without :method", without(b":method"), rst("PROTOCOL_ERROR")),
    Case("http2/8.1.2.3.3 without :scheme", without(b":scheme"), rst("PROTOCOL_ERROR")),
    Case("http2/8.1.2.3.4 without :path", without(b":path"), rst("PROTOCOL_ERROR")),
    Case("http2/8.1.2.3.5 :method twice", request(1, [(b":method", b"GET"), *POST]), rst("PROTOCOL_ERROR")),
    Case("http2/8.1.2.3.6 :scheme twice", request(1, [(b":scheme", b"http"), *POST]), rst("PROTOCOL_ERROR")),
    Case("http2/8.1.2.3.7 :path twice", request(1, [(b":path", b"/"), *POST]), rst("PROTOCOL_ERROR")),
    Case(
        "http2/8.1.2.6.1 content-length of another size",
        opened(1, [*POST, (b"content-length", b"1")]) + data(1, b"test", is_end=True),
        rst("PROTOCOL_ERROR"),
    ),
    Case(
        "http2/8.1.2.6.2 content-length over the sum",
        opened(1, [*POST, (b"content-length", b"9")]) + data(1, b"test") + data(1, b"test", is_end=True),
        rst("PROTOCOL_ERROR"),
    ),
    Case("http2/8.2.1 PUSH_PROMISE", frame(PUSH_PROMISE, END_HEADERS, 1, bytes(4) + block()), goaway("PROTOCOL_ERROR")),
]  # fmt: skip

HPACK = [
    Case("hpack/2.3.3.1 index out of range", raw(b"\xc6" + block()), goaway("COMPRESSION_ERROR")),
    Case("hpack/2.3.3.2 name's index out of range", raw(b"\x7f\x07\x01a" + block()), goaway("COMPRESSION_ERROR")),
    Case("hpack/4.2.1 table size update behind a header", raw(block() + b"\x21"), goaway("COMPRESSION_ERROR")),
    Case("hpack/5.2.1 Huffman padding over 7 bits", raw(block() + b"\x00\x01a\x82\x1f\xff"), goaway("COMPRESSION_ERROR")),
    Case("hpack/5.2.2 Huffman padding of zeros", raw(block() + b"\x00\x01a\x81\x18"), goaway("COMPRESSION_ERROR")),
    Case("hpack/5.2.3 Huffman with EOS", raw(block() + b"\x00\x01a\x84\xff\xff\xff\xff"), goaway("COMPRESSION_ERROR")),
    Case("hpack/6.1.1 index 0", raw(b"\x80" + block()), goaway("COMPRESSION_ERROR")),
    Case("hpack/6.3.1 table size over SETTINGS", raw(b"\x3f\xe2\x1f" + block()), goaway("COMPRESSION_ERROR")),
]  # fmt: skip

HALF_CLOSED_CASES = [
    Case("http2/6.1.2 half-closed: DATA", data(1, b"test"), rst("STREAM_CLOSED")),
    Case("http2/5.1.5 half-closed: DATA", data(1, b"test"), rst("STREAM_CLOSED")),
    Case("http2/5.1.6 half-closed: HEADERS", TRAILERS, rst("STREAM_CLOSED")),
    Case("http2/5.1.7 half-closed: CONTINUATION", frame(CONTINUATION, 4, 1, REST), goaway("PROTOCOL_ERROR")),
]
"""Cases behind a whole request that is not answered yet."""

CLOSED_CASES = [
    Case("http2/5.1.11 closed: DATA", data(1, b"test"), goaway("STREAM_CLOSED")),
    Case("http2/5.1.12 closed: HEADERS", request(), goaway("STREAM_CLOSED")),
    Case("http2/5.1.13 closed: CONTINUATION", frame(CONTINUATION, 4, 1, REST), goaway("PROTOCOL_ERROR")),
    Case("http2/5.1.14 closed: RST_STREAM", rst_stream(1, 8), "ACK 0"),
    Case("http2/5.1.15 closed: WINDOW_UPDATE", window_update(1, 1), "ACK 0"),
]
"""Cases behind a whole request and its answer."""

FIRST_BYTES = [
    Case("http2/3.5.1 preface", PREFACE + settings([]) + request(), ANSWERED),
    Case("http2/3.5.2 invalid preface", b"INVALID CONNECTION PREFACE\r\n\r\n", goaway("PROTOCOL_ERROR")),
    Case("http2/3.5.3 no SETTINGS behind it", PREFACE + request(), goaway("PROTOCOL_ERROR")),
    Case("http2/3.5.4 an ACK behind it", PREFACE + frame(SETTINGS, ACK, 0, b""), goaway("PROTOCOL_ERROR")),
]
CASES = [*GENERIC, *HTTP2, *HPACK]

SECTIONS = {
    "generic": {"1": 1, "2": 5, "3.1": 3, "3.2": 3, "3.3": 5, "3.4": 1, "3.5": 1, "3.7": 1, "3.8": 1, "3.9": 2,
                "3.10": 2, "4": 4, "5": 15},
    "http2": {"3.5": 2, "4.1": 3, "4.2": 3, "4.3": 3, "5.1": 13, "5.1.1": 2, "5.1.2": 1, "5.3.1": 2, "5.4.1": 2,
              "5.5": 2, "6.1": 3, "6.2": 4, "6.3": 2, "6.4": 3, "6.5": 3, "6.5.2": 5, "6.5.3": 2, "6.7": 4, "6.8": 1,
              "6.9": 3, "6.9.1": 3, "6.9.2": 3, "6.10": 6, "7": 2, "8.1": 1, "8.1.2": 1, "8.1.2.1": 4, "8.1.2.2": 2,
              "8.1.2.3": 7, "8.1.2.6": 2, "8.2": 1},
    "hpack": {"2.3.3": 2, "4.2": 1, "5.2": 3, "6.1": 1, "6.3": 1},
}  # fmt: skip
"""Cases of h2spec in each section."""

ELSEWHERE = {"http2/6.9.2.2"}
"""A window that becomes negative is shrunk between two frames of an answer: test_send_queue.py."""
