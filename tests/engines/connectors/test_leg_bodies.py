import json

import pytest

from engines.connectors.leg_bodies import fields_of, prefill_only, read_answer, with_field
from gateway.core.kv_connector import PrefillResult
from gateway.core.kv_events import DecodeError


@pytest.mark.parametrize("body", [b'{"a": 1}', b'{"a":1 }\n', b'{ "a" : 1}'])
def test_a_field_is_added_at_the_end(body: bytes) -> None:
    assert json.loads(with_field(body, "b", {"c": [None]})) == {"a": 1, "b": {"c": [None]}}
    assert json.loads(with_field(body, "b", b'{"c":2}')) == {"a": 1, "b": {"c": 2}}


def test_a_field_is_added_to_an_empty_object() -> None:
    assert json.loads(with_field(b"{ }", "b", 1)) == {"b": 1}


@pytest.mark.parametrize(
    ("choice", "kept"),
    [
        ("auto", "auto"),
        ("none", "none"),
        (None, None),
        ("required", "none"),
        ({"type": "function", "function": {"name": "f"}}, "none"),
    ],
)
def test_a_forced_tool_choice_is_dropped_and_the_tools_stay(choice: object, kept: object) -> None:
    fields = prefill_only(json.dumps({"tools": [1], "tool_choice": choice}).encode())
    assert [json.loads(bytes(fields[name])) for name in ("tools", "tool_choice")] == [[1], kept]


def test_a_prefill_leg_asks_for_one_answer_of_one_token() -> None:
    fields = prefill_only(
        b'{"max_tokens":9,"n":1,"stream":true,"stream_options":{},"guided_json":{},"seed":7}'
    )
    assert {name: json.loads(bytes(raw)) for name, raw in fields.items()} == {
        "max_tokens": 1,
        "n": 1,
        "stream": False,
        "seed": 7,
    }
    assert set(fields_of(b'{"a":1,"b":[{}]}')) == {"a", "b"}


def test_an_answer_without_usage_or_parameters_is_read() -> None:
    reported = read_answer(b"{}")
    assert (reported.prefill_result(b"p"), bytes(reported.kv_transfer_params)) == (
        PrefillResult(b"p"),
        b"null",
    )
    reported = read_answer(b'{"usage":{"prompt_tokens":7,"prompt_tokens_details":null}}')
    assert reported.prefill_result(b"p") == PrefillResult(b"p", 7, None)
    with pytest.raises(DecodeError, match="the prefill worker's answer"):
        read_answer(b'{"choices":1}')


@pytest.mark.parametrize(
    ("usage", "why"),
    [
        (b'{"prompt_tokens":-7}', "Expected `int` >= 0 - at `$.prompt_tokens`"),
        (
            b'{"prompt_tokens":7,"prompt_tokens_details":{"cached_tokens":8}}',
            "8 cached tokens of a prompt of 7",
        ),
        (b"[]", "Expected `object | null`, got `array`"),
        (b'{"prompt_tokens":1.5}', "Expected `int | null`, got `float` - at `$.prompt_tokens`"),
    ],
)
def test_impossible_counts_are_not_forwarded(usage: bytes, why: str) -> None:
    assert read_answer(b'{"usage":%b}' % usage).prefill_result(b"p") == PrefillResult(b"p", refused_usage=why)
