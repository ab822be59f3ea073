"""Requests of clients, hostile or odd: each with the rule of RFC 9110 and 9112 and kvgate's answer.

One table for four readers: kvgate in any splits (`test_requests.py`), uvicorn and nginx beside it
(`test_others.py`), and the fuzzer: these cases are its seeds.
"""

from dataclasses import dataclass

COMPLETIONS = b"/v1/completions"
P = b'{"model":"m","prompt":[1,2,3]}'
Q = b'{"model":"m","prompt":[4,5,6,7,8]}'
HOST, CHUNKED = b"Host: gateway", b"Transfer-Encoding: chunked"
LENGTH = b"Content-Length: %d" % len(P)
CONTINUE = b"Expect: 100-continue"


@dataclass(frozen=True, slots=True)
class Case:
    """`answers` are the statuses in order; then the connection is open or closed. `worker` are the
    bodies that reach a worker, each in a request of its own. `rfc` is the rule for a server."""

    name: str
    data: bytes
    answers: tuple[int, ...]
    is_open: bool
    worker: tuple[bytes, ...]
    rfc: str
    methods: tuple[bytes, ...] = ()


def head(*lines: bytes, first: bytes = b"POST /v1/completions HTTP/1.1", host: bool = True) -> bytes:
    return b"\r\n".join([first, *([HOST] if host else []), *lines]) + b"\r\n\r\n"


def chunks(*parts: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + end


OK, OK2 = head(LENGTH) + P, head(b"Content-Length: %d" % len(Q)) + Q
HEALTH = b"GET /health HTTP/1.1\r\nHost: gateway\r\n\r\n"
HEX = b"%x" % len(P)


def taken(name: str, data: bytes, rfc: str, *worker: bytes, answers: str = "200", end: str = "open") -> Case:
    statuses = tuple(map(int, answers.split()))
    return Case(name, data, statuses, end == "open", worker or (P,), rfc)


def refused(name: str, data: bytes, rfc: str, status: int = 400, *, after: str = "") -> Case:
    """Case that is answered and closed; `after` are the statuses of earlier answers, one of them a worker's."""
    before = tuple(map(int, after.split()))
    return Case(name, data, (*before, status), False, (P,) if before else (), rfc)


def own(name: str, data: bytes, rfc: str, *answers: int, is_open: bool = True, head_of: int = -1) -> Case:
    """Case that the gateway answers itself."""
    methods = tuple(b"HEAD" if i == head_of else b"GET" for i in range(len(answers)))
    return Case(name, data, answers, is_open, (), rfc, methods)


PERSISTENCE = [
    taken("a length", OK, "6.2: the body is as long as it says"),
    taken("chunked", head(CHUNKED) + chunks(P[:9], P[9:]), "7.1: MUST be understood"),
    taken("two on one connection", OK + OK2, "9.3: persistent by default", P, Q, answers="200 200"),
    taken("three, one of them ours", OK + HEALTH + OK2, "9.3.2: answers in order", P, Q, answers="200 200 200"),
    taken(
        "many pipelined", (OK + OK2) * 20, "9.3.2: may be queued", *(P, Q) * 20, answers="200 " * 40
    ),
    taken("Connection: close", head(LENGTH, b"Connection: close") + P, "9.6: closes", end="closed"),
    taken("Connection: a, Close", head(LENGTH, b"Connection: a, Close") + P, "9.6: closes", end="closed"),
    taken(
        "a request behind a close", head(LENGTH, b"Connection: close") + P + OK2,
        "9.6: MUST NOT process it", end="closed",
    ),
    taken("HTTP/1.0", head(LENGTH, first=b"POST /v1/completions HTTP/1.0") + P, "9.3: closes", end="closed"),
    taken(
        "HTTP/1.0 with keep-alive", head(LENGTH, b"Connection: keep-alive", first=b"POST /v1/completions HTTP/1.0") + P,
        "9.3: may persist",
    ),
    taken(
        "HTTP/1.0 without Host", head(LENGTH, first=b"POST /v1/completions HTTP/1.0", host=False) + P,
        "3.2: Host is asked of HTTP/1.1", end="closed",
    ),
    own("HEAD", b"HEAD /health HTTP/1.1\r\nHost: a\r\n\r\n" + HEALTH, "9110 9.3.2: no body", 200, 200, head_of=0),
    own("HEAD of nothing", b"HEAD /no HTTP/1.1\r\nHost: a\r\n\r\n" + HEALTH, "9110 9.3.2: no body", 404, 200, head_of=0),
    own("GET with a body", b"GET /health HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello" + HEALTH,
        "6: framing does not depend on the method", 200, 200),
    own("GET with chunks", b"GET /health HTTP/1.1\r\nHost: a\r\n" + CHUNKED + b"\r\n\r\n" + chunks(b"hello") + HEALTH,
        "6: framing does not depend on the method", 200, 200),
    own("a length of 0", head(b"Content-Length: 0") + HEALTH, "6.2: no body", 400, 200),
    own("no framing", head() + HEALTH, "6.3: no body", 400, 200),
    own("an incomplete head", b"GET /health HTTP/1.1\r\nHost: a\r\n", "8: wait for the rest"),
    own("an incomplete body", head(LENGTH) + P[:-1], "8: wait for the rest"),
    own("incomplete chunks", head(CHUNKED) + chunks(P, end=b"0\r\n"), "8: wait for the rest"),
]  # fmt: skip

CHUNKS = [
    taken("chunk extension", head(CHUNKED) + HEX + b";a=b\r\n" + P + b"\r\n0;c\r\n\r\n", "7.1.1: MUST ignore"),
    taken("quoted extension", head(CHUNKED) + HEX + b';a="b;c"\r\n' + P + b"\r\n0\r\n\r\n", "7.1.1: MUST ignore"),
    taken("zeros before the size", head(CHUNKED) + b"0000000000000" + HEX + b"\r\n" + P + b"\r\n00\r\n\r\n", "7.1: 1*HEXDIG"),
    taken("large hex digits", head(CHUNKED) + HEX.upper() + b"\r\n" + P + b"\r\n0\r\n\r\n", "7.1: HEXDIG"),
    taken("Chunked in capitals", head(b"Transfer-Encoding: CHUNKED") + chunks(P), "7: names ignore case"),
    taken("tab before chunked", head(b"Transfer-Encoding:\tchunked") + chunks(P), "5: OWS"),
    taken("space behind chunked", head(b"Transfer-Encoding: chunked ") + chunks(P), "5: OWS"),
    taken("trailers", head(CHUNKED) + chunks(P, end=b"0\r\nX-Sum: 1\r\n\r\n") + OK2, "7.1.2: may be dropped", P, Q, answers="200 200"),
    taken(
        "trailers that pose as headers", head(CHUNKED) + chunks(P, end=b"0\r\nAuthorization: x\r\nHost: evil\r\n\r\n"),
        "9110 6.5.1: MUST NOT be merged",
    ),
    refused("a length as a trailer", head(CHUNKED) + chunks(P, end=b"0\r\nContent-Length: 5\r\n\r\n"), "9110 6.5.1: MUST NOT be sent"),
    refused("a coding as a trailer", head(CHUNKED) + chunks(P, end=b"0\r\nTransfer-Encoding: chunked\r\n\r\n"), "9110 6.5.1: MUST NOT be sent"),
    refused("a trailer with LF", head(CHUNKED) + chunks(P, end=b"0\r\nA: b\n\r\n"), "2.2: may take LF in fields"),
    refused("extension with LF", head(CHUNKED) + HEX + b";a\nX\r\n" + P + b"\r\n0\r\n\r\n", "7.1: CRLF"),
    refused("extension that ends in LF", head(CHUNKED) + HEX + b";a\n" + P + b"\r\n0\r\n\r\n", "7.1: CRLF"),
    refused("extension with CR", head(CHUNKED) + HEX + b";a\rX\r\n" + P + b"\r\n0\r\n\r\n", "7.1: CRLF"),
    refused("extension with NUL", head(CHUNKED) + HEX + b";a\0\r\n" + P + b"\r\n0\r\n\r\n", "7.1.1: token"),
    refused("CRLF in a quoted extension", head(CHUNKED) + HEX + b';a="b\r\nc"\r\n' + P + b"\r\n0\r\n\r\n", "7.1.1: quoted-string"),
    refused("an empty extension", head(CHUNKED) + HEX + b";\r\n" + P + b"\r\n0\r\n\r\n", "7.1.1: token"),
    refused("space before an extension", head(CHUNKED) + HEX + b" ;a\r\n" + P + b"\r\n0\r\n\r\n", "7.1.1: BWS MUST be parsed"),
    refused("space behind the size", head(CHUNKED) + HEX + b" \r\n" + P + b"\r\n0\r\n\r\n", "7.1: no space there"),
    refused("space before the size", head(CHUNKED) + b" " + HEX + b"\r\n" + P + b"\r\n0\r\n\r\n", "7.1: no space there"),
    refused("tab behind the size", head(CHUNKED) + HEX + b"\t\r\n" + P + b"\r\n0\r\n\r\n", "7.1: no space there"),
    refused("0x before the size", head(CHUNKED) + b"0x" + HEX + b"\r\n" + P + b"\r\n0\r\n\r\n", "7.1: 1*HEXDIG"),
    refused("+ before the size", head(CHUNKED) + b"+" + HEX + b"\r\n" + P + b"\r\n0\r\n\r\n", "7.1: 1*HEXDIG"),
    refused("- before the size", head(CHUNKED) + b"-" + HEX + b"\r\n" + P + b"\r\n0\r\n\r\n", "7.1: 1*HEXDIG"),
    refused("_ in the size", head(CHUNKED) + b"1_0\r\n" + P[:16] + b"\r\n0\r\n\r\n", "7.1: 1*HEXDIG"),
    refused("no size", head(CHUNKED) + b"\r\n" + P + b"\r\n0\r\n\r\n", "7.1: 1*HEXDIG"),
    refused("size over 64 bits", head(CHUNKED) + b"1000000000000001e\r\n" + P + b"\r\n0\r\n\r\n", "7.1: MUST prevent overflow"),
    own("size over 32 bits", head(CHUNKED) + b"100000000" + HEX + b"\r\n" + P + b"\r\n0\r\n\r\n", "7.1: MUST prevent overflow"),
    own("size of all bits", head(CHUNKED) + b"ffffffffffffffff\r\n" + P + b"\r\n0\r\n\r\n", "7.1: MUST prevent overflow"),
    refused("LF behind the size", head(CHUNKED) + HEX + b"\n" + P + b"\r\n0\r\n\r\n", "7.1: CRLF"),
    refused("CR behind the size", head(CHUNKED) + HEX + b"\r" + P + b"\r\n0\r\n\r\n", "7.1: CRLF"),
    refused("LF behind the data", head(CHUNKED) + HEX + b"\r\n" + P + b"\n0\r\n\r\n", "7.1: CRLF"),
    refused("nothing behind the data", head(CHUNKED) + HEX + b"\r\n" + P + b"0\r\n\r\n", "7.1: CRLF"),
    refused("data longer than its size", head(CHUNKED) + HEX + b"\r\n" + P + b"XX\r\n0\r\n\r\n", "7.1: CRLF"),
    refused("LF behind the last chunk", head(CHUNKED) + HEX + b"\r\n" + P + b"\r\n0\n\n", "7.1: CRLF"),
    refused("LF at the end", head(CHUNKED) + chunks(P, end=b"0\r\n\n"), "7.1: CRLF"),
]  # fmt: skip

LENGTHS = [
    refused("CL.TE", head(b"Content-Length: 6", CHUNKED) + b"0\r\n\r\nX", "6.1: ought to be an error"),
    refused("TE.CL", head(CHUNKED, b"Content-Length: 4") + b"5c\r\nGPOST / HTTP/1.1\r\n\r\n0\r\n\r\n", "6.1: ought to be an error"),
    refused("CL.TE with a whole request", head(LENGTH, CHUNKED) + b"0\r\n\r\n" + OK2, "6.1: ought to be an error"),
    refused("length and identity", head(LENGTH, b"Transfer-Encoding: identity") + P, "6.1: not a coding any more"),
    refused("two equal lengths", head(LENGTH, LENGTH) + P, "6.3: error, or one of them"),
    refused("two lengths", head(LENGTH, b"Content-Length: 5") + P, "6.3: MUST be an error"),
    refused("two lengths, 0 first", head(b"Content-Length: 0", LENGTH) + P, "6.3: MUST be an error"),
    refused("a list of equal lengths", head(LENGTH + b", %d" % len(P)) + P, "6.3: error, or one of them"),
    refused("a list of lengths", head(LENGTH + b", 5") + P, "6.3: MUST be an error"),
    refused("length with +", head(b"Content-Length: +%d" % len(P)) + P, "9110 8.6: 1*DIGIT"),
    refused("length with -", head(b"Content-Length: -%d" % len(P)) + P, "9110 8.6: 1*DIGIT"),
    refused("length in hex", head(b"Content-Length: 0x1e") + P, "9110 8.6: 1*DIGIT"),
    refused("length with _", head(b"Content-Length: 3_0") + P, "9110 8.6: 1*DIGIT"),
    refused("length with a fraction", head(LENGTH + b".0") + P, "9110 8.6: 1*DIGIT"),
    refused("length with an exponent", head(b"Content-Length: 3e1") + P, "9110 8.6: 1*DIGIT"),
    refused("length in other digits", head("Content-Length: \u0663\u0660".encode()) + P, "9110 8.6: 1*DIGIT"),
    refused("length with a space in it", head(b"Content-Length: 3 0") + P, "9110 8.6: 1*DIGIT"),
    refused("no length said", head(b"Content-Length:") + P, "9110 8.6: 1*DIGIT"),
    refused("length over 64 bits", head(b"Content-Length: 18446744073709551646") + P, "6.3: MUST prevent overflow"),
    refused("length over the limit", head(b"Content-Length: 99999999999") + P, "9110 15.5.14", 413),
    refused("length with a vertical tab", head(b"Content-Length: \x0b%d" % len(P)) + P, "5.5: not in a value"),
    taken("length with zeros", head(b"Content-Length: 000%d" % len(P)) + P, "9110 8.6: 1*DIGIT"),
    taken("length in spaces", head(b"Content-Length:  \t%d \t " % len(P)) + P, "5: OWS"),
    own("CL.0: a body that is a request", head(b"Content-Length: %d" % len(HEALTH), first=b"POST /no HTTP/1.1") + HEALTH,
        "6.3: the body is a body whatever the answer", 404),
    own("0.CL: a request behind no length", head() + OK[:10], "6.3: what follows is the next request", 400),
    refused("CL.TE, the coding in capitals", head(b"CONTENT-LENGTH: 6", b"TRANSFER-ENCODING: chunked") + b"0\r\n\r\nX", "6.1: ought to be an error"),
]  # fmt: skip

CODINGS = [
    refused("chunked twice", head(CHUNKED, CHUNKED) + chunks(P), "6.1: MUST NOT be applied twice"),
    refused("chunked, chunked", head(b"Transfer-Encoding: chunked, chunked") + chunks(P), "6.1: MUST NOT be applied twice"),
    refused("chunked, identity", head(b"Transfer-Encoding: chunked, identity") + chunks(P), "6.3: chunked MUST be last"),
    refused("identity", head(b"Transfer-Encoding: identity") + P, "6.3: chunked MUST be last"),
    refused("identity, chunked", head(b"Transfer-Encoding: identity, chunked") + chunks(P), "6.1: 501", 501),
    refused("gzip, chunked", head(b"Transfer-Encoding: gzip, chunked") + chunks(P), "6.1: 501", 501),
    refused("gzip", head(b"Transfer-Encoding: gzip") + P, "6.3: chunked MUST be last"),
    refused("gzip, then chunked in a line of its own", head(b"Transfer-Encoding: gzip", CHUNKED) + chunks(P), "6.1: 501"),
    refused("chunked, then gzip in a line of its own", head(CHUNKED, b"Transfer-Encoding: gzip") + chunks(P), "6.3: chunked MUST be last"),
    refused("xchunked", head(b"Transfer-Encoding: xchunked") + chunks(P), "6.1: 501", 501),
    refused("chunkedx", head(b"Transfer-Encoding: chunkedx") + chunks(P), "6.1: 501"),
    refused("chunked;a=b", head(b"Transfer-Encoding: chunked;a=b") + chunks(P), "7: chunked has no parameters"),
    refused("quoted chunked", head(b'Transfer-Encoding: "chunked"') + chunks(P), "6.1: 501"),
    refused("comma before chunked", head(b"Transfer-Encoding: ,chunked") + chunks(P), "9110 5.6.1: empty elements may be taken", 501),
    refused("comma behind chunked", head(b"Transfer-Encoding: chunked,") + chunks(P), "9110 5.6.1: empty elements may be taken"),
    refused("no coding said", head(b"Transfer-Encoding:") + P, "6.1"),
    refused("vertical tab before chunked", head(b"Transfer-Encoding:\x0bchunked") + chunks(P), "5.5: not in a value"),
    refused("form feed behind chunked", head(b"Transfer-Encoding: chunked\x0c") + chunks(P), "5.5: not in a value"),
    refused("NUL behind chunked", head(b"Transfer-Encoding: chunked\0") + chunks(P), "5.5: not in a value"),
    refused("no-break space before chunked", head(b"Transfer-Encoding: \xa0chunked") + chunks(P), "6.1: 501", 501),
    refused("folded chunked", head(b"Transfer-Encoding:\r\n chunked") + chunks(P), "5.2: 400 or replace"),
    refused("chunked in HTTP/1.0", head(CHUNKED, first=b"POST /v1/completions HTTP/1.0") + chunks(P), "6.1: MUST be taken for faulty"),
    refused("space before the colon of a coding", head(LENGTH, b"Transfer-Encoding : chunked") + P, "5.1: MUST 400"),
    refused("tab before the colon of a coding", head(LENGTH, b"Transfer-Encoding\t: chunked") + P, "5.1: MUST 400"),
    refused("space before the name of a coding", head(LENGTH, b" Transfer-Encoding: chunked") + P, "5.2: 400 or replace"),
    refused("a coding behind a bare LF", head(LENGTH, b"A: b\nTransfer-Encoding: chunked") + P, "2.2: may be a line's end"),
    refused("a coding behind a bare CR", head(LENGTH, b"A: b\rTransfer-Encoding: chunked") + P, "2.2: MUST be an error or a space"),
    refused("a coding behind CR CR LF", head(LENGTH, b"A: b\r\r\nTransfer-Encoding: chunked") + P, "2.2: MUST be an error or a space"),
    taken("TE is not Transfer-Encoding", head(LENGTH, b"TE: chunked") + P, "9110 10.1.4"),
    taken("an underscore in the coding's name", head(LENGTH, b"Transfer_Encoding: chunked") + P, "9110 5.1: another field"),
    taken("an underscore in the length's name", head(b"Content_Length: 5", CHUNKED) + chunks(P), "9110 5.1: another field"),
    taken("Connection names the length", head(LENGTH, b"Connection: Content-Length") + P, "9110 7.6.1: hop by hop"),
    taken("Connection names the coding", head(CHUNKED, b"Connection: transfer-encoding") + chunks(P), "9110 7.6.1: hop by hop"),
]  # fmt: skip

FIELDS = [
    refused("no Host", head(LENGTH, host=False) + P, "3.2: MUST 400"),
    refused("two Hosts", head(LENGTH, b"Host: evil") + P, "3.2: MUST 400"),
    refused("two equal Hosts", head(LENGTH, HOST) + P, "3.2: MUST 400"),
    taken("an empty Host", head(b"Host:", LENGTH, host=False) + P, "3.2: where there is no authority"),
    refused("a folded field", head(LENGTH, b"A: b\r\n c") + P, "5.2: 400 or replace"),
    refused("a field folded by a tab", head(LENGTH, b"A: b\r\n\tc") + P, "5.2: 400 or replace"),
    refused("space before the first field", head(b" A: b", LENGTH, host=False) + P, "2.2: reject, or drop the line"),
    refused("space before the colon", head(LENGTH, b"A : b") + P, "5.1: MUST 400"),
    refused("space in a name", head(LENGTH, b"A B: c") + P, "9110 5.1: token"),
    refused("no name", head(LENGTH, b": b") + P, "9110 5.1: token"),
    refused("no colon", head(LENGTH, b"Abc") + P, "5: a field line has one"),
    refused("( in a name", head(LENGTH, b"A(: b") + P, "9110 5.1: token"),
    refused("a control in a name", head(LENGTH, b"A\x01: b") + P, "9110 5.1: token"),
    refused("UTF-8 in a name", head(LENGTH, "\u00e9: b".encode()) + P, "9110 5.1: token"),
    refused("NUL in a name", head(LENGTH, b"A\0: b") + P, "9110 5.1: token"),
    refused("NUL in a value", head(LENGTH, b"A: b\0c") + P, "9110 5.5: MUST reject or replace"),
    refused("CR in a value", head(LENGTH, b"A: b\rc") + P, "9110 5.5: MUST reject or replace"),
    refused("LF in a value", head(LENGTH, b"A: b\nC: d") + P, "2.2: may be a line's end"),
    refused("a control in a value", head(LENGTH, b"A: b\x01c") + P, "9110 5.5: invalid, may be kept"),
    refused("DEL in a value", head(LENGTH, b"A: b\x7fc") + P, "9110 5.5: invalid, may be kept"),
    taken("Latin-1 in a value", head(LENGTH, b"A: caf\xe9") + P, "9110 5.5: obs-text"),
    taken("UTF-8 in a value", head(LENGTH, "A: caf\u00e9".encode()) + P, "9110 5.5: obs-text"),
    taken("an empty value", head(b"A:", LENGTH) + P, "9110 5.5"),
    taken("a tab in a value", head(b"A: b\tc", LENGTH) + P, "9110 5.5"),
    refused("a head of bare LFs", OK.replace(b"\r\n", b"\n"), "2.2: may be a line's end"),
    refused("a head of bare CRs", OK.replace(b"\r\n", b"\r"), "2.2: MUST be an error or a space"),
    refused("LF at the head's end", head(LENGTH)[:-2] + b"\n" + P, "2.2: may be a line's end"),
    refused("CR at the head's end", head(LENGTH)[:-2] + b"\r" + P, "2.2: MUST be an error or a space"),
    refused("Expect: magic", head(LENGTH, b"Expect: magic") + P, "9110 10.1.1: may 417", 417),
    refused("Expect twice", head(LENGTH, CONTINUE, b"Expect: magic") + P, "9110 10.1.1: may 417", 417),
    taken("Expect: 100-continue", head(LENGTH, CONTINUE) + P, "9110 10.1.1: 100, or the answer", answers="100 200"),
    taken("Expect: 100-Continue, chunked", head(CHUNKED, b"Expect: 100-Continue") + chunks(P), "9110 10.1.1", answers="100 200"),
    taken("Expect of HTTP/1.0", head(LENGTH, CONTINUE, first=b"POST /v1/completions HTTP/1.0") + P, "9110 10.1.1: MUST ignore", end="closed"),
    taken("Expect, then another", head(LENGTH, CONTINUE) + P + OK2, "9110 10.1.1", P, Q, answers="100 200 200"),
    refused("Expect over the limit, a request as body", head(b"Content-Length: 99999999999", CONTINUE) + OK, "9110 10.1.1: no 100, closed", 413),
    own("Expect without a body", head(b"Content-Length: 0", CONTINUE) + HEALTH, "9110 10.1.1: MUST NOT be sent", 100, 400, 200),
    taken("an offer of h2c", head(LENGTH, b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMA") + P, "9110 7.8: may be ignored"),
    taken("an offer of h2c with chunks", head(CHUNKED, b"Connection: Upgrade", b"Upgrade: h2c") + chunks(P) + OK2, "9110 7.8: may be ignored", P, Q, answers="200 200"),
    taken("an offer as a trailer", head(CHUNKED) + chunks(P, end=b"0\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n") + OK2, "9110 6.5.1: MUST NOT be merged", P, Q, answers="200 200"),
    refused("an offer of WebSocket", b"GET /v1/completions HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n\x81\x05hello", "9110 7.8: may be ignored", 501),
    refused("an offer and two framings", head(LENGTH, CHUNKED, b"Connection: Upgrade", b"Upgrade: h2c") + chunks(P), "6.1: ought to be an error"),
    refused("a head over the limit", head(b"A: " + b"x" * 70_000, LENGTH) + P, "9110 5.4: 4xx", 431),
]  # fmt: skip

FIRST_LINES = [
    taken("empty lines before a request", b"\r\n\r\n" + OK + b"\r\n" + OK2, "2.2: SHOULD ignore one", P, Q, answers="200 200"),
    taken("a bare LF before a request", b"\n" + OK, "2.2"),
    taken("a whole URL", head(LENGTH, first=b"POST http://gateway/v1/completions HTTP/1.1") + P, "3.2.2: MUST accept"),
    taken("a whole URL with another host", head(LENGTH, first=b"POST http://evil/v1/completions HTTP/1.1") + P, "3.2.2: MUST ignore Host"),
    own("a whole URL with a path as its query", head(LENGTH, first=b"POST http://a?/v1/completions HTTP/1.1") + P, "3.2.1: the path is /", 404),
    refused("a URL without a host", head(LENGTH, first=b"POST http:///v1/completions HTTP/1.1") + P, "9110 4.2.1: MUST reject"),
    refused("a URL with a user", head(LENGTH, first=b"POST http://gateway@evil/v1/completions HTTP/1.1") + P, "9110 4.2.4: SHOULD be an error"),
    refused("a URL of FTP", head(LENGTH, first=b"POST ftp://gateway/v1/completions HTTP/1.1") + P, "3.2.2"),
    refused("a path without /", head(LENGTH, first=b"POST v1/completions HTTP/1.1") + P, "3.2.1: begins with /"),
    own("OPTIONS *", b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", "3.2.4", 404),
    refused("CONNECT", b"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n\x16\x03\x01", "9110 9.3.6", 501),
    refused("no target", head(LENGTH, first=b"POST HTTP/1.1") + P, "3: three parts"),
    refused("a tab for a space", head(LENGTH, first=b"POST\t/v1/completions\tHTTP/1.1") + P, "3: may be taken"),
    taken("two spaces", head(LENGTH, first=b"POST  /v1/completions HTTP/1.1") + P, "3: may be taken"),
    taken("two spaces before the version", head(LENGTH, first=b"POST /v1/completions  HTTP/1.1") + P, "3: may be taken"),
    refused("space behind the version", head(LENGTH, first=b"POST /v1/completions HTTP/1.1 ") + P, "3: may be taken"),
    refused("space before the method", head(LENGTH, first=b" POST /v1/completions HTTP/1.1") + P, "3: may be taken"),
    refused("a space in the target", head(LENGTH, first=b"POST /v1/completions?a b HTTP/1.1") + P, "3: SHOULD 400"),
    refused("NUL in the target", head(LENGTH, first=b"POST /v1/completions?\0 HTTP/1.1") + P, "3.2"),
    refused("a tab in the target", head(LENGTH, first=b"POST /v1/completions?\t HTTP/1.1") + P, "3.2"),
    refused("Latin-1 in the target", head(LENGTH, first=b"POST /v1/completions?\xe9 HTTP/1.1") + P, "3.2"),
    refused("CR in the target", head(LENGTH, first=b"POST /v1/completions\rA HTTP/1.1") + P, "3.2"),
    taken("a fragment in the target", head(LENGTH, first=b"POST /v1/completions?a#b HTTP/1.1") + P, "3.2.1: no fragment"),
    refused("a small method", head(LENGTH, first=b"post /v1/completions HTTP/1.1") + P, "9110 9.1: case matters"),
    refused("an unknown method", head(LENGTH, first=b"FOO /v1/completions HTTP/1.1") + P, "9110 9.1: SHOULD 501"),
    refused("HTTP/0.9", b"GET /health\r\n\r\n", "2.3: not in HTTP/1", 505),
    refused("HTTP/0.9 with a head", head(LENGTH, first=b"POST /v1/completions HTTP/0.9") + P, "2.3", 505),
    refused("HTTP/1.2", head(LENGTH, first=b"POST /v1/completions HTTP/1.2") + P, "2.3: may be taken for 1.1"),
    refused("HTTP/2.0", head(LENGTH, first=b"POST /v1/completions HTTP/2.0") + P, "9110 15.6.6", 505),
    refused("HTTP/3.0", head(LENGTH, first=b"POST /v1/completions HTTP/3.0") + P, "9110 15.6.6"),
    refused("HTTP/1.10", head(LENGTH, first=b"POST /v1/completions HTTP/1.10") + P, "2.3: one digit"),
    refused("HTTP/1,1", head(LENGTH, first=b"POST /v1/completions HTTP/1,1") + P, "2.3"),
    refused("http/1.1", head(LENGTH, first=b"POST /v1/completions http/1.1") + P, "2.3: case matters"),
    taken("RTSP/1.0", head(LENGTH, first=b"POST /v1/completions RTSP/1.0") + P, "2.3: another protocol", end="closed"),
    refused("HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "9113 3.4: answered in HTTP/2 (GOAWAY)", 505),
    refused("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 32, "3"),
    refused("garbage", b"hello\r\n\r\n", "3"),
    refused("garbage behind a request", OK + b"garbage\r\n\r\n" + OK2, "3", after="200"),
    refused("a body longer than its length", OK + b"XX" + OK2, "6.3: what follows is the next request", after="200"),
    Case("HEAD that is refused", b"HEAD /health HTTP/1.1\r\n\r\n", (400,), False, (), "9110 9.3.2: no body", (b"HEAD",)),
    refused("a refusal, then a request", head(LENGTH, b"A : b") + P + OK2, "9.6: nothing behind it"),
    refused("a refused length, then a request", OK + head(LENGTH, CHUNKED) + chunks(P) + OK2, "6.1: MUST close", after="200"),
]  # fmt: skip

CASES = [*PERSISTENCE, *CHUNKS, *LENGTHS, *CODINGS, *FIELDS, *FIRST_LINES]
