"""First token and usage, observed in answers on their way."""

import pytest

from gateway.http.messages import ResponseHead
from gateway.http.response_observer import Piece, ResponseObserver
from gateway.http.usage_injection import InjectedUsageScanner

EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8")]
JSON = [(b"content-type", b"application/json")]
ROLE = b'data: {"choices":[{"delta":{"role":"assistant"}}]}\n\n'
TOKEN = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7}}\n\n'


def stream(status: int = 200) -> ResponseObserver:
    return ResponseObserver(ResponseHead(status, EVENTS))


def test_a_stream_has_its_first_token_in_its_body() -> None:
    answer = stream()
    assert not answer.is_plain
    assert answer.feed(ROLE, 2.0) == (ROLE, Piece.OTHER, 0.0)
    assert repr(answer) == "ResponseObserver(200, stream, first_token_s=None)"
    assert answer.feed(TOKEN, 3.0) == (TOKEN, Piece.FIRST_TOKEN, 0.0)
    assert answer.feed(TOKEN, 3.5) == (TOKEN, Piece.TOKEN, 0.5)
    assert answer.feed(TOKEN, 3.75) == (TOKEN, Piece.TOKEN, 0.25)
    assert answer.first_token_s == 3.0
    assert repr(answer) == "ResponseObserver(200, stream, first_token_s=3.0)"


def test_half_an_event_waits_and_is_no_token() -> None:
    answer = stream()
    answer.feed(TOKEN, 1.0)
    assert answer.can_be_ended
    assert answer.feed(TOKEN[:9], 2.0) == (b"", Piece.OTHER, 0.0)
    assert answer.feed(TOKEN[9:], 3.0) == (TOKEN, Piece.TOKEN, 2.0)
    answer.feed(TOKEN[:9], 4.0)
    assert answer.flush() == TOKEN[:9]


def test_a_plain_answer_has_no_first_token() -> None:
    answer = ResponseObserver(ResponseHead(200, JSON))
    assert answer.is_plain
    assert answer.feed(b'{"usage":{"prompt', 2.0) == (b'{"usage":{"prompt', Piece.OTHER, 0.0)
    assert (answer.usage(), answer.first_token_s) == (None, None)
    answer.feed(b'_tokens":7}}', 2.0)
    usage = answer.usage()
    assert usage is not None and usage.prompt_tokens == 7
    assert (answer.can_be_ended, answer.flush()) == (False, b"")


@pytest.mark.parametrize("num_at_once", [1, 7, 600])
def test_tokens_of_a_stream_are_guessed_by_its_events_however_they_arrive(num_at_once: int) -> None:
    answer, events = stream(), [TOKEN] * 600
    for at in range(0, 600, num_at_once):
        answer.feed(b"".join(events[at : at + num_at_once]), 1.0)
    assert answer.num_guessed == 600


@pytest.mark.parametrize(
    ("coding", "num"), [([], 100), ([b"identity"], 100), ([b"gzip"], 400), ([b"br"], 400)]
)
def test_tokens_of_a_text_are_guessed_by_its_bytes(coding: list[bytes], num: int) -> None:
    answer = ResponseObserver(ResponseHead(200, JSON + [(b"content-encoding", each) for each in coding]))
    answer.feed(b"x" * 400, 1.0)
    assert answer.num_guessed == num
    assert ResponseObserver(ResponseHead(500, JSON)).num_guessed == 0


def test_usage_of_a_stream_is_read() -> None:
    answer = stream()
    for event in (TOKEN, USAGE, b"data: [DONE]\n\n"):
        answer.feed(event, 1.0)
    usage = answer.usage()
    assert usage is not None and usage.prompt_tokens == 7


@pytest.mark.parametrize("headers", [EVENTS, JSON])
def test_an_error_has_no_token_and_no_usage(headers: list[tuple[bytes, bytes]]) -> None:
    answer = ResponseObserver(ResponseHead(500, headers))
    assert not answer.is_plain
    assert answer.feed(TOKEN + USAGE, 2.0) == (TOKEN + USAGE, Piece.OTHER, 0.0)
    assert (answer.first_token_s, answer.usage(), answer.can_be_ended) == (None, None, False)


def test_a_large_answer_is_passed_on_and_its_usage_read() -> None:
    answer = ResponseObserver(ResponseHead(200, JSON))
    for data in (b'{"text":"', b" " * (1 << 20), b'","usage":{"prompt_tokens":7}}'):
        assert answer.feed(data, 1.0)[0] == data
    usage = answer.usage()
    assert usage is not None and usage.prompt_tokens == 7


def test_a_first_token_that_waits_for_the_next_event_counts() -> None:
    last = b'data: {"choices":[{"delta":{"content":"x"},"finish_reason":"stop"}]}\n\n'
    answer = ResponseObserver(ResponseHead(200, EVENTS), InjectedUsageScanner())
    assert answer.feed(last, 1.0) == (b"", Piece.OTHER, 0.0)
    assert answer.feed(USAGE, 2.0) == (last, Piece.FIRST_TOKEN, 0.0)
    assert answer.first_token_s == 2.0
    usage = answer.usage()
    assert usage is not None
    assert usage.prompt_tokens == 7


def test_held_bytes_can_be_flushed_before_an_error_event() -> None:
    last = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
    answer = ResponseObserver(ResponseHead(200, EVENTS), InjectedUsageScanner())
    answer.feed(last, 1.0)
    assert answer.can_be_ended
    assert answer.held() == last
    assert stream().held() == ResponseObserver(ResponseHead(200, JSON)).held() == b""


def test_cached_tokens_are_hidden_from_the_client_and_known_here() -> None:
    usage = b'"usage":{"prompt_tokens":9,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":8}}'
    plain = ResponseObserver(ResponseHead(200, JSON), masks=True)
    body = b"".join([plain.feed(part, 1.0)[0] for part in (b"{" + usage[:30], usage[30:] + b"}")])
    assert body + plain.flush() == b"{" + usage.replace(b"8", b"0") + b"}"
    found = plain.usage()
    assert found and found.cached_tokens == 8 and plain.is_reframed
    stream = ResponseObserver(ResponseHead(200, EVENTS), masks=True)
    event = b'data: {"choices":[],' + usage + b"}"
    assert stream.feed(event + b"\n\n", 1.0)[0] == event.replace(b"8", b"0") + b"\n\n"
    found = stream.usage()
    assert found and found.cached_tokens == 8
    assert stream.feed(event, 2.0)[0] == b"" and stream.flush() == event.replace(b"8", b"0")
    assert not ResponseObserver(ResponseHead(200, JSON)).is_reframed
    assert not ResponseObserver(ResponseHead(500, JSON), masks=True).is_reframed
