import json
import unicodedata

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.printable import printable, printable_json

STEERING = [
    "\x1b[2J", "\x9b2J", "\x7f", "\x00", "\r\n", "\u2028", "\u2029", "\u0085", "\u200b", "\ufeff",
    *map(chr, range(0x80, 0xA0)), *map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A)),
    "\U000e0001",
]  # fmt: skip


@pytest.mark.parametrize("text", STEERING)
def test_what_steers_a_terminal_is_escaped(text: str) -> None:
    shown = printable(f"a{text}b")
    assert shown.isprintable() and shown != f"a{text}b"
    encoded = msgspec.json.encode({"a": text})
    assert printable_json(encoded).decode().isprintable() and json.loads(printable_json(encoded)) == {
        "a": text
    }


def test_what_people_read_stays() -> None:
    for text in ("worker a:1 → b", "größer 大きい", "\\x1b[2J"):
        assert printable(text) == text
        assert printable_json(msgspec.json.encode(text)) == msgspec.json.encode(text)


def test_a_lone_surrogate_is_escaped() -> None:
    assert printable("\ud800") == "\\ud800"
    assert printable_json('"\ud800"'.encode("utf-8", "surrogatepass")) == b'"\\ud800"'


@given(
    st.recursive(st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
)
def test_json_means_the_same(value: object) -> None:
    data = msgspec.json.format(msgspec.json.encode(value))
    shown = printable_json(data)
    assert msgspec.json.decode(shown) == value
    assert all(unicodedata.category(c)[0] != "C" for c in shown.decode().replace("\n", ""))
