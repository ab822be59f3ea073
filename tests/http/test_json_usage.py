"""The usage of an unstreamed answer, short or long, in any splits."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.usage import RefusedUsage, Usage, read_usage
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
def test_usage_wherever_it_stands(text: str, separators: tuple[str, str], is_first: bool) -> None:
    whole = body(text, is_first=is_first, separators=separators)
    usage = fed(whole).usage()
    assert usage == read_usage(whole)
    assert usage is not None and usage.cached_tokens == 8


@given(st.lists(st.integers(0, 3 * MAX_KEPT_BYTES), max_size=8), st.booleans())
def test_any_splits_come_to_the_same(cuts: list[int], is_first: bool) -> None:
    whole = body(LONG, is_first=is_first)
    ends = [0, *sorted(cuts), len(whole)]
    scanner = fed(*(whole[a:b] for a, b in zip(ends, ends[1:], strict=False)))
    assert scanner.usage() == read_usage(whole)


def test_one_byte_at_a_time() -> None:
    whole = body(LONG)
    assert fed(*(whole[i : i + 1] for i in range(len(whole)))).usage() == read_usage(whole)


def test_a_text_that_talks_of_usage_is_none() -> None:
    """In a JSON string its quotes are escaped."""
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
def test_none_where_it_cannot_be_read(whole: bytes) -> None:
    assert fed(whole).usage() is None


def test_a_usage_that_cannot_be_is_refused_however_long_its_answer_is() -> None:
    for text in ("", LONG):
        whole = b'{"t":"' + text.encode() + b'","usage":{"prompt_tokens":"many"}}'
        assert isinstance(fed(whole).usage(), RefusedUsage)


def test_a_long_answer_is_not_kept() -> None:
    scanner = fed(*[b"x" * 1000] * 1000, b'"usage":{', *[b" " * 1000] * 1000)
    assert scanner.num_kept_bytes <= MAX_USAGE_BYTES + 20
    assert repr(scanner).startswith("PlainScanner(2000009 bytes, ")
    assert fed(b"x" * MAX_KEPT_BYTES).num_kept_bytes == MAX_KEPT_BYTES


def test_an_empty_object_is_usage_of_nothing() -> None:
    assert fed(b'{"t":"' + LONG.encode() + b'","usage":{}}').usage() == Usage()
