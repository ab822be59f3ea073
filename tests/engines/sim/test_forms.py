"""Forms of answers: which tools are called, and values of JSON schemas."""

import json
import random
from typing import Any

import jsonschema
import pytest

from engines.sim.forms import AnswerForm, encoded, form_of

TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("read", "write", "list")
]
USER = {"role": "user", "content": "hi"}
CALLED = {"role": "assistant", "content": None, "tool_calls": []}
RESULT = {"role": "tool", "tool_call_id": "1", "content": "done"}


def called(messages: list[Any], **fields: Any) -> list[str | None]:
    form = form_of({"messages": messages, "tools": TOOLS}, fields)
    return [name for name, _ in form.texts(random.Random(1))] if form else []


def test_a_users_turn_calls_tools_and_their_results_are_answered() -> None:
    assert len(called([USER])) == 2
    assert called([USER, CALLED, RESULT]) == []
    assert called([USER, CALLED, RESULT, USER]) == []  # results in the same turn
    assert len(called([USER, CALLED, RESULT, {"role": "assistant", "content": "so"}, USER])) == 2


@pytest.mark.parametrize(
    ("fields", "num"),
    [
        ({"tool_choice": "none"}, 0),
        ({"tool_choice": {"type": "none"}}, 0),
        ({"tool_choice": "auto"}, 2),
        ({"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}, 1),
        ({"parallel_tool_calls": False}, 1),
    ],
)
def test_the_choice_of_tools_is_obeyed(fields: Any, num: int) -> None:
    assert len(called([USER], **fields)) == num


@pytest.mark.parametrize("choice", ["required", {"type": "any"}])
def test_a_required_call_is_made_also_after_results(choice: Any) -> None:
    assert len(called([USER, CALLED, RESULT], tool_choice=choice)) == 2


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "function", "function": {"name": "write"}},
        {"type": "function", "name": "write"},
        {"type": "tool", "name": "write"},
    ],
)
def test_a_named_tool_is_called_once(choice: Any) -> None:
    assert called([USER, CALLED, RESULT], tool_choice=choice) == ["write"]


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize(
    "body",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
        {"text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}},
        {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        {"output_format": {"type": "json_schema", "schema": SCHEMA}},
        {"structured_outputs": {"json": SCHEMA}},
        {"structured_outputs": {"json": json.dumps(SCHEMA)}},
    ],
)
def test_each_apis_schema_is_found(body: Any) -> None:
    assert form_of({}, body) == AnswerForm(schema=SCHEMA)


def test_other_forms() -> None:
    assert form_of({}, {}) is None
    assert form_of({}, {"response_format": {"type": "text"}}) is None
    chosen = form_of({}, {"structured_outputs": {"choice": ["yes", "no"]}})
    assert chosen is not None and chosen.texts(random.Random(1))[0][1] in ("yes", "no")
    anything = form_of({}, {"response_format": {"type": "json_object"}})
    assert anything is not None and isinstance(json.loads(anything.texts(random.Random(1))[0][1]), dict)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "string", "minLength": 20, "maxLength": 22},
        {"type": "string", "maxLength": 2},
        {"type": "string", "pattern": "^[0-9]{3}$"},
        {"type": "string", "format": "date-time"},
        {"type": ["null", "integer"], "minimum": 5},
        {"type": "integer", "exclusiveMinimum": 4, "multipleOf": 3},
        {"type": "number", "minimum": -3, "maximum": -1},
        {"type": "number", "exclusiveMaximum": 0},
        {"enum": ["a", 1, None]},
        {"const": {"a": [1]}},
        {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        {"type": "array", "items": {"type": "integer"}, "minItems": 3},
        {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}]},
        {"type": "array", "maxItems": 0},
        {"type": "object", "required": ["x"], "properties": {"y": {"type": "integer"}}},
        {"allOf": [SCHEMA, {"properties": {"b": {"type": "boolean"}}, "required": ["b"]}], "type": "object"},
        {
            "$defs": {
                "node": {
                    "type": "object",
                    "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
                    "required": ["next"],
                }
            },
            "$ref": "#/$defs/node",
        },
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_values_are_valid(schema: Any, seed: int) -> None:
    jsonschema.validate(json.loads(encoded(schema, random.Random(seed))), schema)
