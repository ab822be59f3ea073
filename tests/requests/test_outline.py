"""Outlines of large bodies: the values that a parser would find, in bounded steps, and the limits."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.errors import InvalidRequest
from gateway.requests import outline
from gateway.requests.field_types import MAX_ITEMS
from gateway.requests.outline import Outline

TEXTS = st.text(alphabet='a,:{}[]"\\\n 😀é1', max_size=40)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), TEXTS)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=6) | st.dictionaries(TEXTS, inner, max_size=4)
)
BODIES = st.dictionaries(TEXTS, VALUES, max_size=6)


@pytest.mark.slow
@given(fields=BODIES, window=st.integers(2, 9), is_ascii=st.booleans(), indent=st.sampled_from([None, 1]))
@settings(deadline=None)
def test_positions_are_those_that_a_parser_finds(
    fields: dict[str, Any], window: int, is_ascii: bool, indent: int | None
) -> None:
    body = json.dumps(fields, ensure_ascii=is_ascii, indent=indent).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outline, "WINDOW", window)
        patch.setattr(outline, "PIECE", window + 1)
        found = Outline(body)
    assert {each.name: json.loads(body[each.start : each.end]) for each in found.fields} == fields


@pytest.mark.slow
@given(messages=st.lists(st.dictionaries(TEXTS, VALUES, max_size=3), max_size=5), window=st.integers(2, 9))
@settings(deadline=None)
def test_messages_are_found_one_by_one(messages: list[dict[str, Any]], window: int) -> None:
    body = json.dumps({"messages": messages}).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outline, "WINDOW", window)
        (found,) = Outline(body).fields
    assert [json.loads(body[start:end]) for start, end in found.items] == messages
    assert (found.num_items, found.has_bare_items) == (len(messages), False)


@pytest.mark.parametrize(
    ("value", "num_items", "num_ids", "is_bare"),
    [
        ([1, 22, 333], 0, 3, True),
        (["a", "b,c"], 2, 0, True),
        ([[1, 2], [3]], 2, 3, False),
        ([None, True], 2, 0, True),
        ([], 0, 0, False),
    ],
)
def test_items_of_a_list_are_counted(value: object, num_items: int, num_ids: int, is_bare: bool) -> None:
    (found,) = Outline(json.dumps({"prompt": value}).encode()).fields
    assert (found.num_items, found.num_ids, found.has_bare_items) == (num_items, num_ids, is_bare)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"a"',
        b'{"a":',
        b'{"a":"',
        b'{"a":"\\',
        b'{"a":"\\"',
        b'{"a":[',
        b'{"a":["',
        b'{"a":1',
        b'{"a":1}}',
        b'{"a":1,}',
        b'{"a":1 "b":2}',
        b'{"a":}',
        b"{a:1}",
        b'{"\\ud800":1}',
    ],
)
def test_a_body_that_is_no_object_is_rejected(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match="not valid JSON"):
        Outline(body)


@pytest.mark.parametrize("name", ["messages", "prompt", "input", "tools", "documents"])
def test_a_list_of_too_many_items_is_rejected_by_name(name: str) -> None:
    Outline(b'{"%b":[%b]}' % (name.encode(), b",".join([b"{}"] * MAX_ITEMS)))
    Outline(b'{"%b":[%b]}' % (name.encode(), b",".join([b"1"] * (MAX_ITEMS + 1))))
    for item in (b"{}", b'"a"', b"[1]", b"null"):
        with pytest.raises(InvalidRequest, match=rf"'{name}' holds more than 65,536 items") as refused:
            Outline(b'{"%b":[%b]}' % (name.encode(), b",".join([item] * (MAX_ITEMS + 1))))
        assert refused.value.param == name


def test_the_parts_of_one_message_are_limited() -> None:
    parts = b",".join([b"{}"] * (MAX_ITEMS // 2 + 1))
    message = b'{"role":"user","content":[%b]}' % parts
    assert Outline(b'{"messages":[%b,%b]}' % (message, message)).num_values > MAX_ITEMS
    with pytest.raises(InvalidRequest, match=r"'messages\[1\]\.content' holds more than"):
        Outline(b'{"messages":[{},{"content":[%b,%b]}]}' % (parts, parts))


def test_values_numbers_and_fields_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outline, "MAX_VALUES", 10)
    monkeypatch.setattr(outline, "MAX_NUMBERS", 20)
    monkeypatch.setattr(outline, "MAX_FIELDS", 3)
    with pytest.raises(InvalidRequest, match="'x' holds more than 10 values"):
        Outline(b'{"a":[[],[],[]],"x":[[],[],[],[],[],[],[]]}')
    with pytest.raises(InvalidRequest, match="'x' holds more than 20 numbers"):
        Outline(b'{"a":[%b],"x":[%b]}' % (b"1," * 9 + b"1", b"1," * 10 + b"1"))
    with pytest.raises(InvalidRequest, match="more than 3 fields"):
        Outline(b'{"a":1,"b":1,"c":1,"d":1}')


def test_the_last_value_of_a_repeated_name_counts() -> None:
    found = Outline(b'{"model":"a","mod\\u0065l":"bc"}')
    assert [each.name for each in found.fields] == ["model", "model"]
    assert found.last["model"].size == 4
