"""Redacted answers show no cached tokens, for any API and in any split."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.usage_redaction import MAX_USAGE_BYTES, UsageRedactor, masked

CHAT = {
    "prompt_tokens": 512,
    "completion_tokens": 9,
    "prompt_tokens_details": {"cached_tokens": 496, "created_cache_tokens": 16, "audio_tokens": None},
}
CHAT_MASKED = CHAT | {
    "prompt_tokens_details": {"cached_tokens": 0, "created_cache_tokens": 0, "audio_tokens": None}
}
RESPONSES = {
    "input_tokens": 512,
    "input_tokens_details": {
        "cached_tokens": 496,
        "cache_write_tokens": 16,
        "cached_tokens_per_turn": [496, 0],
    },
    "output_tokens": 9,
}
RESPONSES_MASKED = RESPONSES | {
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0, "cached_tokens_per_turn": [0, 0]}
}
MESSAGES = {"input_tokens": 10, "cache_read_input_tokens": 496, "cache_creation_input_tokens": 6}
MESSAGES_MASKED = {"input_tokens": 512, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}
TELLING = [(CHAT, CHAT_MASKED), (RESPONSES, RESPONSES_MASKED), (MESSAGES, MESSAGES_MASKED)]
SILENT: list[Any] = [
    {},
    {"prompt_tokens": 5, "prompt_tokens_details": None},
    {"prompt_tokens_details": {"cached_tokens": None}},
    {"input_tokens": 5, "cache_read_input_tokens": None},
    {"type": "object", "properties": {"cached_tokens": {"type": "integer"}}},
]


def dumped(value: Any, is_spaced: bool) -> bytes:
    return json.dumps(value, separators=(", ", ": ") if is_spaced else (",", ":")).encode()


@pytest.mark.parametrize("is_spaced", [False, True])
@pytest.mark.parametrize(("reported", "hidden"), TELLING)
def test_each_count_is_redacted(reported: Any, hidden: Any, is_spaced: bool) -> None:
    assert msgspec.json.decode(masked(dumped(reported, is_spaced))) == hidden


@pytest.mark.parametrize("usage", SILENT)
def test_an_answer_without_counts_stays_byte_for_byte(usage: Any) -> None:
    assert masked(dumped(usage, True)) == dumped(usage, True)
    assert masked(b'{"cached_tokens":') == b'{"cached_tokens":'


def test_a_redacted_hit_equals_a_redacted_miss_to_the_last_byte() -> None:
    missed = CHAT | {"prompt_tokens_details": {**CHAT["prompt_tokens_details"], "cached_tokens": 0}}  # type: ignore[dict-item]
    assert masked(dumped(CHAT, True)) == masked(dumped(missed, True))
    missed = {"input_tokens": 512, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}
    assert masked(dumped(MESSAGES, True)) == masked(dumped(missed, True))


TEXT = 'it says "usage": {"cached_tokens": 7} and } {'
PIECES = [
    *[b'"usage":' + dumped(reported, False) for reported, _ in TELLING],
    *[b'"usage" :\n ' + dumped(reported, True) for reported, _ in TELLING],
    *[b'"usage": ' + dumped(usage, True) for usage in SILENT],
    b'"text":' + dumped(TEXT, True),
    b'"usage":null',
    b'"usage"',
    b'"us',
    b'"x":{"y":[1,2]}',
]


@given(st.lists(st.sampled_from(PIECES), max_size=8), st.lists(st.integers(1, 40), max_size=60))
def test_splits_make_no_difference(pieces: list[bytes], sizes: list[int]) -> None:
    data = b"{" + b",".join(pieces) + b"}"
    whole = UsageRedactor()
    expected = whole.feed(data) + whole.flush()
    masker, out, at = UsageRedactor(), [], 0
    for size in sizes:
        out.append(masker.feed(data[at : at + size]))
        at += size
    out += [masker.feed(data[at:]), masker.flush()]
    assert b"".join(out) == expected
    assert b"496" not in expected and expected.count(b"cached_tokens") == data.count(b"cached_tokens")


def test_generated_text_is_not_changed() -> None:
    data = dumped({"choices": [{"text": TEXT}]}, False)
    masker = UsageRedactor()
    assert masker.feed(data) + masker.flush() == data


def test_a_truncated_body_loses_only_its_count() -> None:
    masker = UsageRedactor()
    assert masker.feed(b'{"a":1,"usage":{"prompt_tokens":5,') == b'{"a":1,'
    assert masker.flush() == b'"usage":{"prompt_tokens":5,'
    assert masker.feed(b'"u') == b"" and masker.feed(b"p") == b'"up'


def test_a_value_too_long_for_usage_is_not_held() -> None:
    masker = UsageRedactor()
    data = b'{"usage":{"description":"' + b"x" * MAX_USAGE_BYTES
    assert masker.feed(data) == data
    assert masker.feed(b'"},"usage":{"cached_tokens":5}}') == b'"},"usage":{"cached_tokens":0}}'


def test_what_may_be_a_beginning_is_not_held_for_ever() -> None:
    """A worker that sends spaces behind the name holds neither memory nor, being scanned again, time."""
    masker = UsageRedactor()
    assert masker.feed(b'{"usage" ') == b"{"
    assert masker.feed(b" " * 9000) == b'"usage" ' + b" " * 9000
    assert masker.flush() == b""
