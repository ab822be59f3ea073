"""The limits of JSON inside JSON: counted before it is decoded, by every renderer that decodes it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.rendering import Rendering
from gateway.tokenization.chat_template import PromptError, Template
from gateway.tokenization.mlx import MlxTemplate
from gateway.tokenization.nested_json import (
    MAX_ALL_VALUES,
    MAX_TEXT_CHARS,
    MAX_TEXT_VALUES,
    excess,
    num_values_of,
)
from gateway.tokenization.sglang import SglangTemplate

TEMPLATES = {
    "vllm": Template,
    "mlx": MlxTemplate,
    "sglang": lambda source: SglangTemplate(Rendering("sglang", (0, 5, 23)), source),
}
VALUES = st.recursive(
    st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)


def calling(*arguments: object) -> list[dict[str, Any]]:
    calls = [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": each}} for each in arguments
    ]
    return [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": calls}]


def listing(unit: str, num: int) -> str:
    return '{"a":[' + ",".join([unit] * num) + "]}"


def num_held(value: object) -> int:
    """Values and names within a value."""
    if isinstance(value, dict):
        return sum(2 + num_held(each) for each in value.values())
    return sum(1 + num_held(each) for each in value) if isinstance(value, list) else 0


@given(VALUES, st.booleans())
def test_no_value_is_left_uncounted(value: object, is_ascii: bool) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii)
    assert num_held(value) <= num_values_of(text, 1 << 20) <= 2 * num_held(value) + 1


@pytest.mark.parametrize("text", ['"' + '\\"' * 200_000, '"' + "\\\\" * 200_000, "\\" * 200_000 + '"\\'])
def test_a_text_without_an_end_is_read_once(text: str) -> None:
    """Quadratic work would take minutes."""
    assert num_values_of(text, MAX_TEXT_VALUES) == 0


def test_code_within_arguments_is_one_value() -> None:
    text = json.dumps({"path": "a.py", "content": "f(a, {b: [1, 2]})\n" * 10_000})
    assert len(text) > 10 * MAX_TEXT_VALUES and num_values_of(text, MAX_TEXT_VALUES) < 8
    assert not excess(calling(text, text, text))


@pytest.mark.parametrize("unit", ["1", "{}", "[]", '""', '{"a":1}'])
@pytest.mark.parametrize("engine", TEMPLATES)
def test_texts_of_many_values_are_not_decoded(
    engine: str, unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = TEMPLATES[engine]("{{ messages[1].tool_calls[0].function.arguments | tojson }}")
    template.conversation(calling(listing(unit, 100)))
    monkeypatch.setattr(json, "loads", lambda text, **kwargs: pytest.fail("decoded"))
    with pytest.raises(PromptError, match="arguments of a tool call hold over 16,384 values"):
        template.conversation(calling(listing(unit, MAX_TEXT_VALUES)))


def test_the_limits_of_one_text_and_of_all() -> None:
    assert not excess(calling(listing("1", MAX_TEXT_VALUES - 10)))
    assert not excess(calling(*[listing("1", 1000)] * 100))
    num = MAX_ALL_VALUES // 1000 + 1
    assert (
        excess(calling(*[listing("1", 1000)] * num)) == "arguments of all tool calls hold over 131,072 values"
    )
    long = '{"a":"' + "\\n" * (MAX_TEXT_CHARS // 2) + '"}'
    assert excess(calling(long)) == "arguments of a tool call are over 1,048,576 characters"


def test_only_arguments_that_are_texts_count() -> None:
    crowded = listing("1", MAX_TEXT_VALUES)
    others = (
        {"tool_calls": crowded},
        {"tool_calls": [crowded]},
        {"tool_calls": [{"function": crowded}]},
        crowded,
    )
    assert not excess([*others, *calling({"a": crowded}, None, 1), {"role": "user", "content": crowded}])
