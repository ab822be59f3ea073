import json

import pytest

from engines.legs import fields_of, prefill_only, read_answer, with_field
from gateway.core.events import DecodeError


@pytest.mark.parametrize("body", [b'{"a": 1}', b'{"a":1 }\n', b'{ "a" : 1}'])
def test_a_field_is_put_at_the_end(body: bytes) -> None:
    assert json.loads(with_field(body, "b", {"c": [None]})) == {"a": 1, "b": {"c": [None]}}
    assert json.loads(with_field(body, "b", b'{"c":2}')) == {"a": 1, "b": {"c": 2}}


def test_an_object_without_fields_can_have_one() -> None:
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
def test_a_forced_choice_of_tools_goes_and_the_tools_stay(choice: object, kept: object) -> None:
    fields = prefill_only(json.dumps({"tools": [1], "tool_choice": choice}).encode())
    assert [json.loads(bytes(fields[name])) for name in ("tools", "tool_choice")] == [[1], kept]


def test_one_answer_of_one_token() -> None:
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


def test_an_answer_need_not_tell_anything() -> None:
    told = read_answer(b"{}")
    assert (told.num_prompt_tokens, told.cached_tokens, bytes(told.kv_transfer_params)) == (
        None,
        None,
        b"null",
    )
    told = read_answer(b'{"usage":{"prompt_tokens":7,"prompt_tokens_details":null}}')
    assert (told.num_prompt_tokens, told.cached_tokens) == (7, None)
    with pytest.raises(DecodeError, match="the prefill worker's answer"):
        read_answer(b'{"usage":[]}')
