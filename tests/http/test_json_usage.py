"""The usage of an unstreamed answer, short or long, in any splits."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.usage import RefusedUsage, Usage
from gateway.core.usage_reading import read_usage
from gateway.http.json_usage import MAX_KEPT_BYTES, MAX_USAGE_BYTES, PlainScanner

USAGE = {"prompt_tokens": 12, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 8}}
LONG = "x" * 2 * MAX_KEPT_BYTES
COMPACT = (",", ":")


def fed(*parts: bytes) -> PlainScanner:
    scanner = PlainScanner()
    for part in parts:
        scanner.feed(part)
    return scanner


def body(
    text: str, *, is_first: bool = False, separators: tuple[str, str] = COMPACT, **more: object
) -> bytes:
    choices = {"choices": [{"text": text}]}
    fields = {"usage": USAGE, **choices} if is_first else {**choices, "usage": USAGE}
    return json.dumps({**fields, **more}, separators=separators).encode()


@pytest.mark.parametrize("text", ["short", LONG])
@pytest.mark.parametrize("separators", [COMPACT, (", ", ": ")])
@pytest.mark.parametrize("is_first", [True, False])
def test_usage_is_found_anywhere_in_an_answer(text: str, separators: tuple[str, str], is_first: bool) -> None:
    whole = body(text, is_first=is_first, separators=separators)
    usage = fed(whole).usage()
    assert usage == read_usage(whole)
    assert usage is not None and usage.cached_tokens == 8


@given(st.lists(st.integers(0, 3 * MAX_KEPT_BYTES), max_size=8), st.booleans())
def test_usage_is_found_however_the_answer_is_split(cuts: list[int], is_first: bool) -> None:
    whole = body(LONG, is_first=is_first)
    ends = [0, *sorted(cuts), len(whole)]
    scanner = fed(*(whole[a:b] for a, b in zip(ends, ends[1:], strict=False)))
    assert scanner.usage() == read_usage(whole)


def test_usage_is_found_byte_by_byte() -> None:
    whole = body(LONG)
    assert fed(*(whole[i : i + 1] for i in range(len(whole)))).usage() == read_usage(whole)


def test_usage_within_a_text_is_ignored() -> None:
    """Quotes within a JSON string are escaped."""
    whole = body('"usage":{"prompt_tokens":99}' * 1000)
    usage = fed(whole).usage()
    assert usage is not None and usage.prompt_tokens == 12


@pytest.mark.parametrize(
    "whole",
    [
        b"",
        b"{",
        b'{"usage":null}',
        LONG.encode(),
        b'{"t":"' + LONG.encode() + b'","usage":{"prompt_tokens":1',
        b'{"t":"' + LONG.encode() + b'","usage":{' + b" " * MAX_USAGE_BYTES + b"}}",
    ],
)
def test_unreadable_usage_is_none(whole: bytes) -> None:
    assert fed(whole).usage() is None


def test_impossible_usage_is_rejected_in_an_answer_of_any_length() -> None:
    for text in ("", LONG):
        whole = b'{"t":"' + text.encode() + b'","usage":{"prompt_tokens":"many"}}'
        assert isinstance(fed(whole).usage(), RefusedUsage)


def test_a_long_answer_is_not_kept() -> None:
    scanner = fed(*[b"x" * 1000] * 1000, b'"usage":{', *[b" " * 1000] * 1000)
    assert scanner.num_kept_bytes <= MAX_USAGE_BYTES + 20
    assert repr(scanner).startswith("PlainScanner(2000009 bytes, ")
    assert fed(b"x" * MAX_KEPT_BYTES).num_kept_bytes == MAX_KEPT_BYTES


def test_an_empty_usage_has_no_tokens() -> None:
    assert fed(b'{"t":"' + LONG.encode() + b'","usage":{}}').usage() == Usage()
