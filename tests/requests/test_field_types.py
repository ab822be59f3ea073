"""Types of fields: the error names the field at fault."""

from typing import Any

import msgspec
import pytest

from gateway.core.errors import InvalidRequest
from gateway.core.json_values import json_type
from gateway.requests.field_types import (
    MAX_ITEMS,
    check_lists,
    check_messages,
    check_prompt,
    typed,
)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ({}, "an object"),
        ([], "a list"),
        ("", "a string"),
        (True, "a boolean"),
        (None, "null"),
        (1.5, "a number"),
    ],
)
def test_a_value_has_the_name_of_its_json_type(value: object, name: str) -> None:
    assert json_type(value) == name


def test_a_field_of_a_wrong_type_is_named() -> None:
    assert typed({"a": "x"}, "a", str, "a string") == "x"
    assert typed({}, "a", str, "a string") is None
    with pytest.raises(InvalidRequest, match="'a' must be a string, not a number") as caught:
        typed({"a": 1}, "a", str, "a string")
    assert caught.value.param == "a"


@pytest.mark.parametrize(
    ("messages", "param"),
    [(None, "messages"), ("hi", "messages"), (["hi"], "messages[0]"), ([{"role": 1}], "messages[0].role")],
)
def test_messages_are_objects_with_a_role(messages: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_messages({"messages": messages})
    assert caught.value.param == param
    check_messages({"messages": [{"role": "user"}]})


@pytest.mark.parametrize("prompt", ["a", ["a", "b"], [1, 2], [[1], [2]]])
def test_a_prompt_is_text_or_tokens(prompt: object) -> None:
    check_prompt({"prompt": prompt})


@pytest.mark.parametrize("prompt", [None, 1, [], ["a", 1], [1, "a"], [[1], 2], [-1], [1 << 32], [True], {}])
def test_a_prompt_of_another_type_is_rejected(prompt: object) -> None:
    with pytest.raises(InvalidRequest, match="'prompt' must be"):
        check_prompt({"prompt": prompt})


def test_embeddings_may_replace_a_prompt() -> None:
    check_prompt({"prompt": None, "prompt_embeds": "AAAA"})


@pytest.mark.parametrize("item", ["a", [1], {}, None])
def test_a_list_of_too_many_items_is_rejected(item: object) -> None:
    for wrap in (lambda value: value, lambda value: msgspec.Raw(msgspec.json.encode(value))):
        check_lists({"input": wrap([item] * MAX_ITEMS), "other": wrap([item] * (MAX_ITEMS + 1))}, None)
        with pytest.raises(InvalidRequest, match="'input' holds more than 65,536 items") as caught:
            check_lists({"input": wrap([item] * (MAX_ITEMS + 1))}, None)
        assert caught.value.param == "input"


def test_token_ids_are_one_prompt() -> None:
    ids = [1] * (MAX_ITEMS + 1)
    check_lists({"prompt": ids, "input": msgspec.Raw(msgspec.json.encode(ids))}, None)
    check_lists({"input": msgspec.Raw(b"[" + b"," * MAX_ITEMS + b"]")}, None)  # the engine decides


def test_the_parts_of_a_message_are_limited() -> None:
    parts = [{"type": "text", "text": ""}] * (MAX_ITEMS + 1)
    check_lists({}, [{"role": "user", "content": parts[1:]}, {"role": "user", "content": "a"}])
    with pytest.raises(InvalidRequest, match=r"'messages\[1\]\.content' holds more"):
        check_lists({}, [{"role": "user"}, {"role": "user", "content": parts}])
