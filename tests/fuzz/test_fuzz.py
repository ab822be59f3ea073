"""A few seconds of the fuzzer at each run: one constant seed, and a new one."""

import random

import pytest

from gateway.epp import processing_request
from gateway.epp.picker import StreamPicker
from gateway.server import connection
from gateway.server.http2 import frames
from tests.conformance.cases import HOST, OK
from tests.fuzz import ext_proc, ext_proc_messages, http2, judge, parsers, sockets
from tests.fuzz.inputs import GOOD_REPLY, Input, make, smaller

SECONDS = 10.0
PLAIN = Input(OK, (), GOOD_REPLY[0], (), False)


def seed_of(kind: str) -> int:
    seed = 1 if kind == "fixed" else random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}: SEED={seed} make fuzz tries the same again")
    return seed


@pytest.mark.process
@pytest.mark.parametrize("kind", ["fixed", "random"])
async def test_a_running_gateway_survives_broken_inputs(kind: str) -> None:
    assert await sockets.fuzz(seed_of(kind), SECONDS) > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fixed", "random"])
def test_parsers_survive_broken_inputs(kind: str) -> None:
    seed = seed_of(kind)
    for number in range(400):
        given = make(seed, number)
        try:
            parsers.check(given)
        except Exception as exc:
            raise AssertionError(f"input {number} of seed {seed}: {exc}\n{given.to_json()}") from exc


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fixed", "random"])
def test_http2_survives_broken_inputs(kind: str) -> None:
    seed = seed_of(kind)
    for number in range(1000):
        given = http2.make(seed, number)
        try:
            http2.check(given)
        except Exception as exc:
            raise AssertionError(f"HTTP/2 input {number} of seed {seed}: {exc}\n{given}") from exc


@pytest.mark.parametrize("kind", ["fixed", "random"])
def test_both_decoders_of_ext_proc_read_the_same(kind: str) -> None:
    seed = seed_of(kind)
    for number in range(2000):
        given = ext_proc_messages.make(seed, number)
        try:
            ext_proc_messages.check(given)
        except Exception as exc:
            raise AssertionError(f"message {number} of seed {seed}: {exc}\n{given!r}") from exc


def test_a_decoder_that_reads_otherwise_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    given = b"\x22\x03\x0a\x01a"
    ext_proc_messages.check(given)
    monkeypatch.setattr(processing_request, "_BODY", 1 << 3)
    with pytest.raises(AssertionError, match="protobuf reads"):
        ext_proc_messages.check(given)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fixed", "random"])
def test_ext_proc_survives_broken_streams(kind: str) -> None:
    ext_proc.run(seed_of(kind), 0, 300)


def test_a_booking_that_stays_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ext_proc.make(5, 3) == ext_proc.make(5, 3)
    monkeypatch.setattr(StreamPicker, "_leave", lambda self: None)
    with pytest.raises(AssertionError, match="stays booked"):
        ext_proc.run(1, 0, 300)


def test_http2_that_depends_on_the_splitting_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    given = http2.Http2Input(http2.PREFACE + frames.settings([]) + http2.CALLS[0], (60,))
    http2.check(given)
    assert given == http2.Http2Input(given.data, (60,)) and http2.make(5, 3) == http2.make(5, 3)
    feed = frames.FrameReader.feed
    monkeypatch.setattr(
        frames.FrameReader,
        "feed",
        lambda self, data: feed(self, data.replace(b"b", b"c" if len(data) < 99 else b"b")),
    )
    with pytest.raises(AssertionError, match="depend on the parts"):
        http2.check(given)


def test_a_seed_makes_the_same_inputs_again() -> None:
    made = [make(5, number) for number in range(50)]
    assert made == [make(5, number) for number in range(50)]
    assert len(set(made)) == 50
    assert [Input.from_json(given.to_json()) for given in made] == made


async def test_a_failing_input_is_made_small() -> None:
    async def fails(given: Input) -> bool:
        return b"\0" in given.data and b"X" in given.answer

    found = Input(OK[:40] + b"\0" + OK[40:], (3, 9), b"a" * 50 + b"X", (7,), True, "resets")
    assert await smaller(found, fails) == Input(b"\0", (), b"X", (), False)


def test_a_gateway_that_accepts_too_much_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    parsers.check(PLAIN)
    without_host = OK.replace(HOST + b"\r\n", b"")
    parsers.check(Input(without_host, (), *GOOD_REPLY[:1], (), False))
    monkeypatch.setattr(connection, "check_request", lambda *about: False)
    with pytest.raises(AssertionError, match="h11 reads"):
        parsers.check(Input(without_host, (), *GOOD_REPLY[:1], (), False))


def test_a_gateway_that_depends_on_the_splitting_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = connection.ClientConnection.data_received
    monkeypatch.setattr(
        connection.ClientConnection,
        "data_received",
        lambda self, data: feed(self, data.replace(b"m", b"k")) if len(data) < 20 else feed(self, data),
    )
    with pytest.raises(AssertionError, match="depend on the parts"):
        parsers.check(Input(OK, tuple(range(0, len(OK), 10)), GOOD_REPLY[0], (), False))


@pytest.mark.parametrize(
    ("data", "bodies", "is_malformed"),
    [
        (b"", (), False),
        (OK, (OK[-30:],), False),
        (OK * 2 + OK[:50], (OK[-30:],) * 2, False),
        (OK + b"garbage\r\n\r\n", (OK[-30:],), True),
        (b"\r\n" + OK, (OK[-30:],), False),
        (OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + OK, (OK[-30:],), False),
        (OK.replace(HOST, b"A : b"), (), True),
    ],
)  # fmt: skip
def test_the_judge_reads_requests(data: bytes, bodies: tuple[bytes, ...], is_malformed: bool) -> None:
    verdict = judge.requests(data)
    assert (verdict.bodies, verdict.is_malformed) == (bodies, is_malformed)


@pytest.mark.parametrize(
    ("data", "closes", "read"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na", False, (200, b"a")),
        (b"HTTP/1.1 103 Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na", False, (200, b"a")),
        (b"HTTP/1.1 200 OK\r\n\r\na", True, (200, b"a")),
        (b"HTTP/1.1 200 OK\r\n\r\na", False, None),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\na", True, None),
        (b"garbage\r\n\r\n", False, None),
    ],
)
def test_the_judge_reads_answers(data: bytes, closes: bool, read: object) -> None:
    assert judge.answer(data, closes=closes) == read
