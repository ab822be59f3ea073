"""Types of fields: the error names the field at fault."""

from typing import Any

import pytest

from gateway.core.errors import InvalidRequest
from gateway.core.requests.field_types import check_messages, check_prompt, json_type, typed


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
def test_another_prompt_is_refused(prompt: object) -> None:
    with pytest.raises(InvalidRequest, match="'prompt' must be"):
        check_prompt({"prompt": prompt})


def test_embeddings_may_stand_in_for_a_prompt() -> None:
    check_prompt({"prompt": None, "prompt_embeds": "AAAA"})
