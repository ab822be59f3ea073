"""Answers of workers, well-formed or not, and the client's view of each. Also the fuzzer's seeds."""

from dataclasses import dataclass

CHUNKED = b"Transfer-Encoding: chunked"
EVENTS = b"Content-Type: text/event-stream"
EVENT, DONE = b'data: {"choices":[{"text":"a"}]}\n\n', b"data: [DONE]\n\n"
INJECTED = b"HTTP/1.1 200 OK\r\nX-Injected: 1\r\nContent-Length: 8\r\n\r\nINJECTED"


@dataclass(frozen=True, slots=True)
class AnswerCase:
    """Bytes of one answer, and the client's view of it.

    With `closes`, the worker closes the connection behind them. The client gets `status` and `body`;
    `is_whole` is False where it must see that the body is cut, `has_error` where an error event ends the
    stream. With `rests`, the worker's connection is kept for the next request.
    """

    name: str
    data: bytes
    status: int
    body: bytes = b""
    closes: bool = False
    is_whole: bool = True
    has_error: bool = False
    rests: bool = False


def head(*lines: bytes, first: bytes = b"HTTP/1.1 200 OK") -> bytes:
    return b"\r\n".join([first, *lines]) + b"\r\n\r\n"


def chunks(*parts: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + end


def length(num: int) -> bytes:
    return b"Content-Length: %d" % num


def good(name: str, data: bytes, body: bytes = b"hello", status: int = 200, **more: bool) -> AnswerCase:
    return AnswerCase(name, data, status, body, **({"rests": True} | more))


def bad(name: str, data: bytes, *, closes: bool = False) -> AnswerCase:
    """Answer that is malformed before its head is whole: 502, and none of its bytes reach the client."""
    return AnswerCase(name, data, 502, closes=closes)


def cut(name: str, data: bytes, body: bytes = b"", *, closes: bool = True) -> AnswerCase:
    return AnswerCase(name, data, 200, body, closes=closes, is_whole=False)


def ended(name: str, data: bytes, body: bytes = EVENT, *, closes: bool = True) -> AnswerCase:
    return AnswerCase(name, data, 200, body, closes=closes, has_error=True)


OK = head(length(5)) + b"hello"
ONCE = {"rests": False}

GOOD = [
    good("a length", OK),
    good("chunks", head(CHUNKED) + chunks(b"he", b"llo")),
    good("chunk extensions", head(CHUNKED) + b'5;a="b;c"\r\nhello\r\n0;d\r\n\r\n'),
    good("trailers", head(CHUNKED) + chunks(b"hello", end=b"0\r\nX-Injected: 1\r\n\r\n")),
    good("until it closes", head() + b"hello", closes=True, **ONCE),
    good("until it closes, nothing", head(), b"", closes=True, **ONCE),
    good("Connection: close", head(length(5), b"Connection: close") + b"hello", **ONCE),
    good("HTTP/1.0", head(length(5), first=b"HTTP/1.0 200 OK") + b"hello", **ONCE),
    good("HTTP/1.0 with keep-alive", head(length(5), b"Connection: keep-alive", first=b"HTTP/1.0 200 OK") + b"hello"),
    good("HTTP/1.0 with chunks", head(CHUNKED, first=b"HTTP/1.0 200 OK") + chunks(b"hello"), **ONCE),
    good("HTTP/1.0 until it closes", head(first=b"HTTP/1.0 200 OK") + b"hello", closes=True, **ONCE),
    good("100 before it", head(first=b"HTTP/1.1 100 Continue") + OK),
    good("hints before it", head(b"X-Injected: 1", first=b"HTTP/1.1 103 Early Hints") * 3 + OK),
    good("an empty line before it", b"\r\n" + OK),
    good("no reason", head(length(5), first=b"HTTP/1.1 200") + b"hello"),
    good("no reason but its space", head(length(5), first=b"HTTP/1.1 200 ") + b"hello"),
    good("204", head(first=b"HTTP/1.1 204 No Content"), b"", 204),
    good("304 with a length", head(length(5), first=b"HTTP/1.1 304 Not Modified"), b"", 304),
    good("an error", head(length(5), first=b"HTTP/1.1 500 No") + b"hello", status=500),
    good("an unknown status", head(length(5), first=b"HTTP/1.1 299 Odd") + b"hello", status=299),
    good("an offer of h2c", head(length(5), b"Connection: Upgrade", b"Upgrade: h2c") + b"hello"),
    good("a stream", head(EVENTS, CHUNKED) + chunks(EVENT, EVENT + DONE), EVENT * 2 + DONE),
    good("a stream until it closes", head(EVENTS) + EVENT + DONE, EVENT + DONE, closes=True, **ONCE),
    good("a stream with a length", head(EVENTS, length(len(EVENT))) + EVENT, EVENT),
    good("Latin-1 in a value", head(length(5), b"A: caf\xe9") + b"hello"),
]  # fmt: skip

TWO = [
    good("two answers", OK + INJECTED, **ONCE),
    good("two answers, the first chunked", head(CHUNKED) + chunks(b"hello") + INJECTED, **ONCE),
    good("two answers, the first closes", head(length(5), b"Connection: close") + b"hello" + INJECTED, **ONCE),
    good("a body longer than its length", head(length(5)) + b"hello, world", **ONCE),
    good("204 with a body", head(length(5), first=b"HTTP/1.1 204 No Content") + b"hello", b"", 204, **ONCE),
    good("304 with a body", head(length(5), first=b"HTTP/1.1 304 Not Modified") + b"hello", b"", 304, **ONCE),
    good("no length and an answer in the body", head(length(0)) + INJECTED, b"", **ONCE),
    good("interim behind it", OK + head(first=b"HTTP/1.1 100 Continue") + INJECTED, **ONCE),
    good("NUL behind it", OK + b"\0", **ONCE),
    good("a stream and another answer", head(EVENTS, CHUNKED) + chunks(EVENT, DONE) + INJECTED, EVENT + DONE, **ONCE),
]  # fmt: skip

BAD = [
    bad("nothing", b"", closes=True),
    bad("half a head", b"HTTP/1.1 200 OK\r\nContent-Le", closes=True),
    bad("interim and nothing", head(first=b"HTTP/1.1 100 Continue"), closes=True),
    bad("garbage", b"garbage\r\n\r\n"),
    bad("NULs", b"\0" * 64),
    bad("TLS", b"\x15\x03\x01\x00\x02\x02\x46"),
    bad("SSH", b"SSH-2.0-OpenSSH\r\n"),
    bad("HTTP/0.9", b"hello", closes=True),
    bad("a version of its own", head(length(5), first=b"HTTP/9.9 200 OK") + b"hello"),
    bad("HTTP/2.0", head(length(5), first=b"HTTP/2.0 200 OK") + b"hello"),
    bad("HTTP/0.9 in a status line", head(length(5), first=b"HTTP/0.9 200 OK") + b"hello"),
    bad("ICY", head(length(5), first=b"ICY 200 OK") + b"hello"),
    bad("101 unasked", head(b"Connection: Upgrade", b"Upgrade: x", first=b"HTTP/1.1 101 Switching") + INJECTED),
    bad("101 without an upgrade", head(first=b"HTTP/1.1 101 Switching") + INJECTED),
    bad("a status of two digits", head(length(5), first=b"HTTP/1.1 20 OK") + b"hello"),
    bad("a status of four digits", head(length(5), first=b"HTTP/1.1 2000 OK") + b"hello"),
    bad("a status in letters", head(length(5), first=b"HTTP/1.1 abc OK") + b"hello"),
    bad("a negative status", head(length(5), first=b"HTTP/1.1 -20 OK") + b"hello"),
    bad("status 000", head(length(5), first=b"HTTP/1.1 000 No") + b"hello" + INJECTED),
    bad("status 099, then another", head(length(5), first=b"HTTP/1.1 099 No") + b"hello" + INJECTED),
    bad("status 600", head(length(5), first=b"HTTP/1.1 600 No") + b"hello"),
    bad("interim with a body", head(length(5), first=b"HTTP/1.1 103 Hints") + b"hello" + INJECTED),
    bad("two spaces before the status", head(length(5), first=b"HTTP/1.1  200 OK") + b"hello"),
    bad("a request", b"POST /v1/completions HTTP/1.1\r\nHost: a\r\n\r\n"),
    bad("a head of LFs", b"HTTP/1.1 200 OK\nContent-Length: 5\n\nhello"),
    bad("a head of CRs", b"HTTP/1.1 200 OK\rContent-Length: 5\r\rhello"),
    bad("CR in a value", head(b"A: b\rX-Injected: 1", length(5)) + b"hello"),
    bad("LF in a value", head(b"A: b\nX-Injected: 1", length(5)) + b"hello"),
    bad("NUL in a value", head(b"A: b\0X-Injected: 1", length(5)) + b"hello"),
    bad("a control in a value", head(b"A: \x1b[2J", length(5)) + b"hello"),
    bad("CR in the reason", head(length(5), first=b"HTTP/1.1 200 OK\rX-Injected: 1") + b"hello"),
    bad("a folded field", head(b"A: b\r\n c", length(5)) + b"hello"),
    bad("space before a colon", head(b"A : b", length(5)) + b"hello"),
    bad("space before the length's colon", head(b"Content-Length : 5") + b"hello"),
    bad("no colon", head(b"Abc", length(5)) + b"hello"),
    bad("no name", head(b": b", length(5)) + b"hello"),
    bad("two lengths", head(length(5), length(6)) + b"hello"),
    bad("two equal lengths", head(length(5), length(5)) + b"hello"),
    bad("a list of lengths", head(b"Content-Length: 5, 5") + b"hello"),
    bad("a negative length", head(b"Content-Length: -1") + b"hello"),
    bad("a length in hex", head(b"Content-Length: 0x5") + b"hello"),
    bad("no length said", head(b"Content-Length:") + b"hello"),
    bad("a length over 64 bits", head(b"Content-Length: 99999999999999999999") + b"hello"),
    bad("length and chunks", head(length(5), CHUNKED) + chunks(b"hello")),
    bad("chunks and length", head(CHUNKED, length(5)) + chunks(b"hello")),
    bad("gzip", head(b"Transfer-Encoding: gzip") + b"hello", closes=True),
    bad("gzip, chunked", head(b"Transfer-Encoding: gzip, chunked") + chunks(b"hello")),
    bad("chunked, gzip", head(b"Transfer-Encoding: chunked, gzip") + b"hello", closes=True),
    bad("gzip and chunked in two lines", head(b"Transfer-Encoding: gzip", CHUNKED) + chunks(b"hello")),
    bad("chunked twice", head(CHUNKED, CHUNKED) + chunks(b"hello")),
    bad("no coding said", head(b"Transfer-Encoding:") + b"hello", closes=True),
    bad("identity and a length", head(b"Transfer-Encoding: identity", length(5)) + b"hello"),
]  # fmt: skip

CUT = [
    cut("a body shorter than its length", head(length(9)) + b"hello", b"hello"),
    cut("no body for its length", head(length(9))),
    cut("chunks without an end", head(CHUNKED) + chunks(b"hello", end=b""), b"hello"),
    cut("half a last chunk", head(CHUNKED) + chunks(b"hello", end=b"0\r\n"), b"hello"),
    cut("half a chunk", head(CHUNKED) + b"9\r\nhello", b"hello"),
    cut("half a trailer", head(CHUNKED) + chunks(b"hello", end=b"0\r\nA: b"), b"hello"),
    cut("a chunk's size that is none", head(CHUNKED) + chunks(b"hello", end=b"zz\r\n"), b"hello", closes=False),
    cut("no chunk's size", head(CHUNKED) + b"\r\nhello", closes=False),
    cut("space behind a chunk's size", head(CHUNKED) + b"5 \r\nhello\r\n0\r\n\r\n", closes=False),
    cut("a chunk's size with 0x", head(CHUNKED) + b"0x5\r\nhello\r\n0\r\n\r\n", closes=False),
    cut("a chunk's size over 64 bits", head(CHUNKED) + b"10000000000000005\r\nhello", closes=False),
    cut("a chunk longer than its size", head(CHUNKED) + b"5\r\nhello, world\r\n0\r\n\r\n", b"hello", closes=False),
    cut("LF behind a chunk's size", head(CHUNKED) + b"5\nhello\r\n0\r\n\r\n", closes=False),
    cut("LF behind a chunk", head(CHUNKED) + b"5\r\nhello\n0\r\n\r\n", b"hello", closes=False),
    cut("LF in a chunk extension", head(CHUNKED) + b"5;a\nb\r\nhello\r\n0\r\n\r\n", closes=False),
    cut("a length as a trailer", head(CHUNKED) + chunks(b"hello", end=b"0\r\nContent-Length: 5\r\n\r\n"), b"hello", closes=False),
    cut("CR in a trailer", head(CHUNKED) + chunks(b"hello", end=b"0\r\nA: b\rX-Injected: 1\r\n\r\n"), b"hello", closes=False),
    cut("an answer for a chunk", head(CHUNKED) + chunks(b"hello", end=b"") + INJECTED, b"hello", closes=False),
    ended("a stream without an end", head(EVENTS, CHUNKED) + chunks(EVENT, end=b"")),
    ended("a stream in mid-event", head(EVENTS, CHUNKED) + chunks(EVENT, EVENT[:9], end=b"")),
    ended("a stream with a broken chunk", head(EVENTS, CHUNKED) + chunks(EVENT, end=b"zz\r\n") + EVENT, closes=False),
    ended("a stream with an answer for a chunk", head(EVENTS, CHUNKED) + chunks(EVENT, end=b"") + INJECTED, closes=False),
    ended("a stream shorter than its length", head(EVENTS, length(999)) + EVENT),
    ended("a stream of nothing", head(EVENTS, CHUNKED), b""),
]  # fmt: skip

ANSWERS = [*GOOD, *TWO, *BAD, *CUT]
