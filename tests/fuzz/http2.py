"""HTTP/2 and gRPC without sockets: broken transcripts must end in statuses and GOAWAY, in any pieces alike.

Frames are broken as frames (kinds, flags, streams, lengths), so that many reach the states behind the parser;
the rest are broken as bytes. Input `n` of a seed is always the same.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.server.body_budget import BodyBudget
from gateway.server.http2 import frames
from gateway.server.http2.frames import PREFACE, Frame
from gateway.server.http2.grpc_connection import GrpcConnection
from gateway.server.http2.limits import Http2Limits
from gateway.server.http2.service import GrpcStream
from tests.conformance.wire import pieces
from tests.server.http2.h2spec import CASES, CLOSED_CASES, FIRST_BYTES, HALF_CLOSED_CASES
from tests.support.http2 import POST, data, message, opened, read, request, with_path, words

LIMITS = Http2Limits(
    max_streams=8, stream_window=70_000, connection_window=200_000, max_message_bytes=100_000
)
MAX_OUT = 1 << 22
"""Bytes that one input may cause: it is at most 64 KiB, and echoed messages have headers."""

CALLS = [
    opened() + data(1, message(b"a")) + data(1, message(b"b") + message(b""), is_end=True),
    opened(1)
    + opened(3)
    + data(3, message(b"x" * 300))
    + data(1, b"\0\0\0\0\x09half")
    + data(3, b"", is_end=True),
    opened() + data(1, message(b"finish") + message(b"more")) + request(3, with_path(b"/test.No/Run")),
    opened(1, [*POST, (b"grpc-timeout", b"1S")]) + data(1, message(b"raise")) + frames.rst_stream(1, 8),
    frames.settings([(4, 1), (5, 20_000)])
    + request()
    + frames.window_update(1, 90)
    + frames.ping(b"12345678"),
]
TRANSCRIPTS = [
    each.sent for each in [*CASES, *CLOSED_CASES, *HALF_CLOSED_CASES] if len(each.sent) < 4000
] + CALLS


@dataclass(frozen=True, slots=True)
class Http2Input:
    """Bytes of a client, in parts that begin at the cuts."""

    data: bytes
    cuts: tuple[int, ...]


def make(seed: int, number: int) -> Http2Input:
    rng = random.Random(f"http2:{seed}:{number}")
    if rng.random() < 0.1:
        sent = broken(rng, rng.choice(FIRST_BYTES).sent)
    else:
        parts = [rng.choice(CALLS if rng.random() < 0.6 else TRANSCRIPTS) for _ in range(rng.randint(1, 4))]
        sent = PREFACE + frames.settings([]) + _frames(rng, b"".join(parts))
        sent = broken(rng, sent) if rng.random() < 0.3 else sent
    sent = sent[: 64 << 10]
    cuts = tuple(sorted(rng.randrange(len(sent) + 1) for _ in range(rng.randint(0, 6))))
    return Http2Input(sent, cuts)


def _frames(rng: random.Random, sent: bytes) -> bytes:
    found = _cut(sent)
    for _ in range(rng.choice((0, 1, 1, 2, 3, 6))):
        at = rng.randrange(len(found))
        each, stroke = found[at], rng.randrange(7)
        if stroke == 0:
            each.kind = rng.randrange(11)
        elif stroke == 1:
            each.flags ^= 1 << rng.randrange(8)
        elif stroke == 2:
            each.stream_id = rng.choice((0, 1, 2, 3, 5, 7, 9, frames.MAX_STREAM_ID))
        elif stroke == 3:
            each.payload = broken(rng, each.payload)
        elif stroke == 4:
            found[at:at] = [found[rng.randrange(len(found))]] * rng.choice((1, 1, 2, 300))
        elif stroke == 5:
            del found[at]
            found = found or [each]
        else:
            found.insert(rng.randrange(len(found)), each)
    return b"".join(frames.frame(each.kind, each.flags, each.stream_id, each.payload) for each in found)


def _cut(sent: bytes) -> list[Frame]:
    """Frames of a transcript; the last one may be a part, which stays away."""
    reader, found = frames.FrameReader(1 << 24), []
    reader.feed(sent)
    while (each := reader.next()) is not None:
        found.append(each)
    return found or [Frame(frames.PING, 0, 0, bytes(8))]


def broken(rng: random.Random, sent: bytes) -> bytes:
    """The same bytes with one thing changed: an octet, a part lost, repeated or put between."""
    at = rng.randrange(len(sent) + 1)
    cut = at + rng.randint(1, 12)
    return (
        sent[:at] + bytes([rng.randrange(256)]) + sent[at + 1 :],
        sent[:at] + sent[cut:],
        sent[:cut] + sent[at:],
        sent[:at],
        sent[:at] + rng.randbytes(rng.randint(1, 9)) + sent[at:],
    )[rng.randrange(5)]


class Judged:
    """Handler that echoes, and must be ended once, by itself or by the server."""

    def __init__(self, stream: GrpcStream, log: list[object]) -> None:
        self.stream, self.log = stream, log
        self.is_over = False

    def message(self, message: bytes) -> None:
        assert not self.is_over, "a message behind the end"
        self.log.append(message)
        if message == b"finish":
            self.is_over = True
            return self.stream.finish(9, "enough")
        return self.stream.send(message)

    def half_closed(self) -> None:
        assert not self.is_over, "two ends"
        self.is_over = True
        self.stream.finish(0)

    def aborted(self, why: str) -> None:
        assert not self.is_over, "an abort behind the end"
        self.is_over = True
        self.log.append(why)


class Timer:
    def cancel(self) -> None: ...


def played(parts: Sequence[bytes], *, writes: bool) -> tuple[list[object], bytes, str]:
    """Feed a connection; returns events, output and fault. `writes`: output is taken after each part."""
    log: list[object] = []
    handlers: list[Judged] = []

    def service(stream: GrpcStream) -> Judged:
        handlers.append(Judged(stream, log))
        return handlers[-1]

    services, bodies = {b"/test.Echo/Run": service}, BodyBudget()
    grpc = GrpcConnection(services, LIMITS, bodies, lambda seconds, late: Timer(), lambda: None)
    out, num_fed = b"", 0
    for part in parts:
        grpc.receive(part, 0.0)
        while grpc.has_rest:
            grpc.hand_out()
        num_fed += len(part)
        assert grpc.num_partial <= num_fed and len(grpc.http2.streams) <= LIMITS.max_streams
        while writes and (more := grpc.http2.take()):
            out += more
    while more := grpc.http2.take():
        out += more
    fault = str(grpc.http2.fault or "")
    assert len(out) < MAX_OUT, f"{len(out)} bytes for {num_fed}"
    ends = [said for each in read(out) if (said := words(each)).startswith(("END", "RST"))]
    assert len(set(ends)) == len(ends) or fault, f"a stream ends twice: {ends}"
    grpc.close("lost")
    assert all(handler.is_over for handler in handlers), "a handler was forgotten"
    assert grpc.num_partial == bodies.num_bytes == 0 and grpc.http2.outgoing.num_waiting == 0, (
        "something is still held"
    )
    return log, out, fault


def check(given: Http2Input) -> None:
    """Raise AssertionError for any error."""
    whole = played([given.data], writes=False)
    parted = played(pieces(given.data, given.cuts), writes=False)
    assert parted[2] == whole[2], f"the fault depends on the parts: {whole[2]!r}, {parted[2]!r}"
    assert parted[0] == whole[0], "events depend on the parts"
    assert parted[1] == whole[1], "output depends on the parts"
    played(pieces(given.data, given.cuts), writes=True)
