from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.usage import RefusedUsage, Usage
from gateway.core.usage_reading import read_usage
from gateway.http import sse
from gateway.http.sse import MAX_HELD_BYTES, MAX_LINES, MAX_USAGES, SseScanner, ends_between_events

ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"h\xc3\xa9"}}]}\n\n'
USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2,'
    b'"prompt_tokens_details":{"cached_tokens":4}}}\n\n'
)
DONE = b"data: [DONE]\n\n"
STREAM = ROLE + TOKEN + TOKEN + USAGE + DONE


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_any_split_forwards_the_same_bytes_in_whole_events(cuts: list[int]) -> None:
    scanner = SseScanner()
    edges = [0, *sorted(cuts), len(STREAM)]
    out = [scanner.feed(STREAM[a:b]) for a, b in zip(edges, edges[1:], strict=False)]
    assert all(piece.endswith(b"\n\n") for piece in out if piece)
    assert b"".join(out) + scanner.flush() == STREAM
    usage = scanner.usage()
    assert usage is not None
    assert (usage.prompt_tokens, usage.cached_tokens) == (7, 4)


def test_a_role_without_content_is_no_token() -> None:
    scanner = SseScanner()
    scanner.feed(ROLE)
    assert not scanner.has_token
    scanner.feed(TOKEN)
    assert scanner.has_token


@pytest.mark.parametrize(
    "choice",
    [
        {"text": "x"},
        {"delta": {"reasoning_content": "x"}},
        {"delta": {"reasoning": "x"}},
        {"delta": {"tool_calls": [{"index": 0}]}},
        {"delta": {}, "finish_reason": "stop"},
    ],
)
def test_tokens_are_recognized(choice: dict[str, object]) -> None:
    scanner = SseScanner()
    scanner.feed(b"data: " + msgspec.json.encode({"choices": [choice]}) + b"\n\n")
    assert scanner.has_token


def test_usage_in_generated_text_is_not_usage() -> None:
    scanner = SseScanner()
    text = 'say "usage":{"prompt_tokens":99}'
    scanner.feed(b"data: " + msgspec.json.encode({"choices": [{"text": text}]}) + b"\n\n")
    assert scanner.usage() is None


def test_half_an_event_is_held_until_it_is_whole() -> None:
    scanner = SseScanner()
    assert scanner.feed(TOKEN + TOKEN[:20]) == TOKEN
    assert scanner.feed(TOKEN[20:]) == TOKEN


def test_crlf_events_are_events_too() -> None:
    scanner = SseScanner()
    event = TOKEN.replace(b"\n\n", b"\r\n\r\n")
    assert scanner.feed(event + event[:9]) == event
    assert scanner.has_token


@given(st.lists(st.integers(0, len(STREAM) + 9), max_size=12))
def test_events_with_data_are_counted_whatever_a_read_has(cuts: list[int]) -> None:
    scanner, stream = SseScanner(), b": ping\n\n" + STREAM
    for a, b in pairwise([0, *sorted(cuts), len(stream)]):
        scanner.feed(stream[a:b])
    assert scanner.num_events == 5


def test_an_event_without_end_is_passed_on_in_parts() -> None:
    scanner = SseScanner()
    long = b"data: " + b"x" * MAX_HELD_BYTES
    assert scanner.feed(long) == long


def test_usage_is_the_latest_whenever_it_is_read() -> None:
    """Engines may report usage so far with each event; reading it twice counts it once."""
    scanner, read = SseScanner(), []
    for num in (1, 2):
        event = b'{"choices":[{"text":"a"}],"usage":{"prompt_tokens":7,"completion_tokens":%d}}' % num
        scanner.feed(b"data: " + event + b"\n\ndata: [DONE]\n\n")
        read += [scanner.usage(), scanner.usage()]
    assert [usage.completion_tokens for usage in read if isinstance(usage, Usage)] == [1, 1, 2, 2]
    scanner.feed(b'data: {"choices":[],"usage":{"prompt_tokens":"x"}}\n\n')
    assert isinstance(scanner.usage(), RefusedUsage)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"usage":null}', b'{"response":"text"}', b"\xff"])
def test_an_answer_without_usable_usage_has_none(body: bytes) -> None:
    assert read_usage(body) is None


def test_usage_without_details_has_no_cached_tokens() -> None:
    usage = read_usage(b'{"usage":{"prompt_tokens":5,"prompt_tokens_details":null}}')
    assert isinstance(usage, Usage)
    assert usage.cached_tokens is None


def test_the_scanner_knows_if_a_whole_event_was_passed_last() -> None:
    scanner = SseScanner()
    assert scanner.is_whole
    scanner.feed(b"data: a\n\ndata: b")
    assert scanner.is_whole  # the rest is held
    scanner.feed(b"x" * (MAX_HELD_BYTES + 1))
    assert not scanner.is_whole  # too long to hold
    scanner.feed(b"\n\n")
    assert scanner.is_whole


def test_few_lines_are_looked_at_of_an_event_that_has_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker sets their number; each may cost a failed parse."""
    num_read = 0

    def count(*args: object) -> None:
        nonlocal num_read
        num_read += 1

    monkeypatch.setattr(sse, "has_token", count)
    monkeypatch.setattr(sse, "read_usage", count)
    scanner = SseScanner()
    lines = b'data: {"usage":{}}\n' * 40_000
    assert b"".join(scanner.feed(lines[at : at + 8192]) for at in range(0, len(lines), 8192)) == b""
    assert scanner.feed(b"\n") == lines + b"\n"
    assert 0 < num_read <= MAX_LINES
    scanner.usage()
    assert num_read <= MAX_LINES + MAX_USAGES


def test_usage_is_found_behind_events_without_a_usable_one() -> None:
    scanner = SseScanner()
    scanner.feed(USAGE + b'data: {"usage":{]\n\n' * 3 + b': "usage":{ in a comment\n\n')
    assert scanner.usage() == Usage(7, 2, 4)


# other routes ----------------------------------------------------------------------------------

MESSAGE_START = {"type": "message_start", "message": {"usage": {"input_tokens": 9, "output_tokens": 0}}}
MESSAGE_USAGE = {"input_tokens": 3, "output_tokens": 2, "cache_read_input_tokens": 16}
RESPONSE_USAGE = {"input_tokens": 19, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 16}}


def event(kind: str, **fields: object) -> bytes:
    return f"event: {kind}\ndata: ".encode() + msgspec.json.encode({"type": kind, **fields}) + b"\n\n"


@pytest.mark.parametrize(
    ("first", "content", "last"),
    [
        (
            event("message_start", message=MESSAGE_START["message"]),
            event("content_block_delta", index=0, delta={"type": "text_delta", "text": "a"}),
            event("message_delta", delta={"stop_reason": "end_turn"}, usage=MESSAGE_USAGE),
        ),
        (
            event("response.created", response={"id": "resp_1", "usage": None}),
            event("response.output_text.delta", delta="a"),
            event("response.completed", response={"id": "resp_1", "usage": RESPONSE_USAGE}),
        ),
    ],
)
def test_first_token_and_usage_of_agents_streams_are_found(first: bytes, content: bytes, last: bytes) -> None:
    scanner = SseScanner()
    scanner.feed(first)
    assert not scanner.has_token
    scanner.feed(content)
    assert scanner.has_token
    scanner.feed(last)
    usage = scanner.usage()
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (19, 2, 16)


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("end", [{"output_tokens": 500}, {"input_tokens": 0, "output_tokens": 500}])
def test_a_message_that_ends_with_its_output_alone_has_the_prompt_of_its_beginning(
    end: dict[str, int], together: bool
) -> None:
    """Anthropic's API has the input in the first event, and need not repeat it."""
    events = [
        event("message_start", message={"usage": {**MESSAGE_USAGE, "output_tokens": 1}}),
        event("content_block_delta", index=0, delta={"type": "text_delta", "text": "a"}),
        event("message_delta", delta={"stop_reason": "end_turn"}, usage=end),
    ]
    scanner = SseScanner()
    for piece in [b"".join(events)] if together else events:
        scanner.feed(piece)
    assert scanner.usage() == Usage(19, 500, 16)
    scanner = SseScanner()
    scanner.feed(events[2])
    assert scanner.usage() == Usage(0, 500)
    scanner = SseScanner()
    scanner.feed(events[0])
    assert scanner.usage() is None, "a message that breaks off has not reported its output"


@pytest.mark.parametrize("usage", [MESSAGE_USAGE, RESPONSE_USAGE])
def test_usage_of_agents_answers_is_read(usage: dict[str, object]) -> None:
    found = read_usage(msgspec.json.encode({"type": "message", "usage": usage}))
    assert isinstance(found, Usage)
    assert (found.prompt_tokens, found.completion_tokens, found.cached_tokens) == (19, 2, 16)


def test_cached_tokens_without_a_report_are_none_and_not_zero() -> None:
    usage = read_usage(b'{"usage":{"input_tokens":5,"output_tokens":1}}')
    assert isinstance(usage, Usage)
    assert (usage.prompt_tokens, usage.cached_tokens) == (5, None)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_the_place_between_two_events_is_known_in_the_whole_grammar(end: bytes) -> None:
    event, comment = b"data: 1" + end + end, b": ping" + end
    for passed in (event, event + comment, event + comment + comment, event + end, comment + end):
        assert ends_between_events(passed, True) and ends_between_events(passed, False), passed
    for passed in (comment, end, comment + comment):
        assert ends_between_events(passed, True), passed
    for passed in (comment, b"data: 1" + end, b"data: 1", event + b"data: 2", event + b"id: 2" + end):
        assert not ends_between_events(passed, False), passed
    assert not ends_between_events(comment + b"data: 1", True)


@pytest.mark.parametrize("space", [b"", b" "])
def test_the_last_count_of_sglangs_own_stream_is_read(space: bytes) -> None:
    scanner = SseScanner()
    for num in (b"1", b"500"):
        meta = b'"meta_info":' + space + b'{"prompt_tokens":3,"completion_tokens":' + num + b"}"
        scanner.feed(b'data: {"text":"a",' + meta + b"}\n\n")
    scanner.feed(DONE)
    assert scanner.usage() == Usage(3, 500)
