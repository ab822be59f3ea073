"""Bodies without the middle of their long texts: the same JSON in the same places."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.requests.abridged import WINDOW, abridged

KEEP = 1000
LONG = 3 * WINDOW


def same(given: Any, short: Any) -> None:
    """True if the two are equal but for texts that lost a part of their middle."""
    if isinstance(given, str):
        assert isinstance(short, str)
        if given != short:
            assert len(short) < len(given)
            assert given[:30] == short[:30] and given[-30:] == short[-30:]
    elif isinstance(given, list):
        assert len(given) == len(short)
        for first, second in zip(given, short, strict=True):
            same(first, second)
    elif isinstance(given, dict):
        assert list(given) == list(short)
        for name, first in given.items():
            same(first, short[name])
    else:
        assert given == short


UNITS = ["a", " ", "é", "漢", "😀", "[1],", "a\\n", "\\", "\n", '"', '\\"', '{"model":"x"}', "\u0001"]


def spelt(value: Any) -> Any:
    """Spell a text that was drawn as its parts: (unit, how often, end)."""
    if isinstance(value, tuple):
        unit, num, end = value
        return unit * num + end
    if isinstance(value, list):
        return [spelt(each) for each in value]
    return {name: spelt(each) for name, each in value.items()} if isinstance(value, dict) else value


texts = st.tuples(st.sampled_from(UNITS), st.sampled_from((0, 1, 2, LONG)), st.text(max_size=3))
values = st.recursive(
    texts | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(st.text(max_size=3), values, max_size=4),
    st.booleans(),
    st.sampled_from((200, KEEP, WINDOW)),
)
def test_the_abridged_body_is_the_same_json(fields: dict[str, Any], is_ascii: bool, keep: int) -> None:
    body = json.dumps(spelt(fields), ensure_ascii=is_ascii, separators=(",", ":")).encode()
    short = abridged(body, keep)
    assert len(short) <= len(body)
    same(json.loads(body), json.loads(short))


@pytest.mark.parametrize("text", ["a" * LONG, "漢" * LONG, "a😀" * LONG, "\u0001" * LONG, "a\n" * LONG])
@pytest.mark.parametrize("is_ascii", [False, True])
def test_a_long_text_is_shortened_at_both_sides_of_its_middle(text: str, is_ascii: bool) -> None:
    body = json.dumps({"model": "m", "prompt": text, "n": 1}, ensure_ascii=is_ascii).encode()
    short = abridged(body, KEEP)
    assert 2 * KEEP < len(short) < 2 * KEEP + 2 * 100 + 50
    fields = msgspec.json.decode(short)
    assert (fields["model"], fields["n"]) == ("m", 1)
    same(text, fields["prompt"])


def test_values_without_long_text_are_unchanged() -> None:
    body = json.dumps({"prompt": [1] * LONG}).encode()
    assert abridged(body, KEEP) is body
    assert abridged(b'{"prompt": "short"}', KEEP) == b'{"prompt": "short"}'
    quoted = json.dumps({"prompt": '"a' * LONG, "x": [0] * LONG}).encode()
    assert abridged(quoted, KEEP) is quoted


def test_an_escaped_quote_does_not_end_a_text() -> None:
    for num in (1, 2, 3, 4):
        text = "\\" * num + '"' + "a" * LONG
        body = json.dumps({"a": text, "b": [1] * LONG, "c": text}).encode()
        fields = json.loads(abridged(body, KEEP))
        assert fields["b"] == [1] * LONG
        same({"a": text, "b": [1] * LONG, "c": text}, fields)
        assert len(fields["c"]) < len(text)
