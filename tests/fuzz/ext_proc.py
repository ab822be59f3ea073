"""Messages of ext_proc without sockets: broken streams end in statuses or answers, and leave nothing booked.

Messages are lost, repeated, moved and mixed with those of other streams, so that many reach the states behind
the decoder; some are broken as bytes. Input `n` of a seed is always the same.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from gateway.config.epp import EppSection
from gateway.epp.messages import BodyMode
from gateway.proto.kvgate.v1 import ext_proc_pb2 as pb
from tests.fuzz.http2 import broken
from tests.support.ext_proc import (
    POST,
    request_body,
    request_headers,
    response_body,
    response_headers,
    trailers,
)
from tests.support.worlds.endpoint_picks import BODY, DESTINATION, DONE, EVENT, W1, W2, Epp

DUPLEX = BodyMode.FULL_DUPLEX_STREAMED
OWN = [(DESTINATION.encode(), b"10.6.6.6:1"), (b"x-llm-d-inference-objective", b"a"), (b"upgrade", b"")]
OFFER = [
    (b":method", b"GET"),
    (b":path", b"/v1/realtime?model=m"),
    (b"connection", b"upgrade"),
    (b"upgrade", b"websocket"),
    (b"sec-websocket-version", b"13"),
    (b"sec-websocket-key", b"dGhlIHNhbXBsZSBub25jZQ=="),
]
WHOLE = [request_body(BODY[:9]), request_body(BODY[9:]), request_body(b"", is_end=True)]
STREAM = [
    response_headers(),
    response_body(EVENT),
    response_body(EVENT + DONE),
    response_body(b"", is_end=True),
]
BUSY = [response_headers(503, []), response_body(b"{}", is_end=True)]
MOVED = [response_headers(served=W2), response_body(b"{", is_end=False), trailers(is_response=True)]
SUBSETS = [None, None, None, W1, "10.0.0.2", "", [W2, "x"], "10.0.0.1:\u00b2", "[::1]:1", {"a": [None]}, 7]
INTERNAL = 13
WORLD_FOR = 50
"""Streams that share a gateway: broken answers of workers have consequences for later ones."""


@dataclass(frozen=True, slots=True)
class StreamInput:
    """Messages of one stream, and how it ends: `half_closed`, `aborted`, or after a `pause` of both sides."""

    messages: tuple[bytes, ...]
    end: str
    options: EppSection


def make(seed: int, number: int) -> StreamInput:
    rng = random.Random(f"ext_proc:{seed}:{number}")
    found = _good(rng)
    for _ in range(rng.choice((0, 0, 1, 1, 2, 4))):
        _break(rng, found)
    end = rng.choice(("half_closed", "aborted", "pause"))
    options = EppSection(conformance=rng.random() < 0.3, trust_headers=rng.random() < 0.3)
    return StreamInput(tuple(found), end, options)


def _good(rng: random.Random) -> list[bytes]:
    modes = rng.choice(
        (None, (DUPLEX, DUPLEX), (DUPLEX, BodyMode.NONE), (rng.randrange(7), rng.randrange(7)))
    )
    subset = rng.choice(SUBSETS)
    headers = [*POST, *OWN] if rng.random() < 0.3 else POST
    if rng.random() < 0.15:
        head = [request_headers(OFFER, modes=modes, subset=subset)]
    elif rng.random() < 0.15:
        head = [request_headers(headers, modes=modes, subset=subset, is_end=True)]
    else:
        body = rng.choice((WHOLE, [request_body(BODY, is_end=True)], [*WHOLE[:2], trailers()]))
        head = [request_headers(headers, modes=modes, subset=subset), *body]
    return [*head, *rng.choice((STREAM, BUSY, MOVED, [response_headers(307, [])], []))]


def _break(rng: random.Random, found: list[bytes]) -> None:
    at, stroke = rng.randrange(len(found)), rng.randrange(6)
    if stroke == 0 and len(found) > 1:
        del found[at]
    elif stroke == 1:
        found.insert(at, found[rng.randrange(len(found))])
    elif stroke == 2:
        found.insert(at, rng.choice(_good(rng)))
    elif stroke == 3:
        found[at] = broken(rng, found[at])
    elif stroke == 4:
        found[at:at] = [request_body(b"x" * 400)] * 3
    else:
        rng.shuffle(found)


@contextmanager
def world() -> Iterator[Epp]:
    with pytest.MonkeyPatch.context() as patch:
        yield Epp(patch, W1, W2)


def check(epp: Epp, given: StreamInput) -> None:
    """Raise AssertionError for any error."""
    epp.door.options = given.options
    picker, stream = epp.stream()  # which asserts that nothing follows its end
    for message in given.messages:
        picker.message(message)
    if given.end == "pause":
        _pass(epp)
    picker.aborted("reset") if given.end == "aborted" else picker.half_closed()
    picker.half_closed()  # what comes behind the end is dropped
    _pass(epp)
    assert epp.is_free, "something stays booked or held"
    assert stream.finished is not None or given.end == "aborted", "the stream does not end"
    assert stream.finished is None or stream.finished[0] != INTERNAL, stream.finished
    answers = stream.take()
    assert all(each.immediate_response.status.code != 500 for each in answers), "the gateway failed"
    if not picker._protocol.is_tunnel:
        _check_echo(answers)


def _pass(epp: Epp) -> None:
    for _ in range(15):
        epp.loop.advance(1.0)


def _check_echo(answers: list[pb.ProcessingResponse]) -> None:
    """A body goes back to its end once any of it does: Envoy would send the worker a part."""
    pieces = [each.request_body.response.body_mutation for each in answers if each.HasField("request_body")]
    streamed = [each.streamed_response for each in pieces if each.HasField("streamed_response")]
    is_ended = any(each.end_of_stream for each in streamed)
    has_trailers = any(each.HasField("request_trailers") for each in answers)
    assert not streamed or is_ended or has_trailers, "a part of a body went back"


def run(seed: int, first: int, count: int) -> None:
    """Check some inputs with one gateway. Raises AssertionError, with the input."""
    with world() as epp:
        for number in range(first, first + count):
            given = make(seed, number)
            try:
                check(epp, given)
            except Exception as exc:
                raise AssertionError(f"ext_proc input {number} of seed {seed}: {exc!r}\n{given}") from exc
