"""An adapter named beside the model: read, and out of the body."""

import json
from typing import Any

import pytest

from gateway.core.errors import InvalidRequest
from gateway.core.route_table import TABLE, route_of
from gateway.requests.adapter_field import adapter_of, without_adapter
from gateway.requests.parsing import parse_request

COMPLETIONS, GENERATE, ADDED = map(route_of, ("/v1/completions", "/generate", "/mine"))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [({"lora_path": "a"}, "a"), ({"lora_path": None}, None), ({"lora_path": ""}, None), ({}, None)],
)
def test_the_field_names_an_adapter_or_none(fields: dict[str, Any], expected: str | None) -> None:
    for route in TABLE:
        request = parse_request(
            route.path, json.dumps({"model": "m", "prompt": "x", "messages": [], **fields}).encode()
        )
        assert request.adapter == expected
        assert ("lora_path" in json.loads(request.body)) is (bool(fields) and not route.names_model)


@pytest.mark.parametrize("value", [["a"], [], [None], 7, True, {"a": 1}])
def test_a_list_of_adapters_is_refused(value: object) -> None:
    body = json.dumps({"model": "m", "prompt": "x", "messages": [], "lora_path": value}).encode()
    for route in TABLE:
        with pytest.raises(InvalidRequest, match="send a request for each adapter") as caught:
            parse_request(route.path, body)
        assert caught.value.param == "lora_path"


def test_a_number_of_thousands_of_digits_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        parse_request("/generate", b'{"model":"m","lora_path":' + b"7" * 9000 + b"}")


def test_an_added_route_is_left_alone() -> None:
    assert adapter_of(ADDED, {"lora_path": ["a"]}) is None
    body = b'{"model":"m","lora_path":["a"]}'
    assert parse_request("/mine", body).body == body


def test_the_other_fields_stay_as_they_came() -> None:
    body = b'{"model": "m", "lora_path":"a","n":1.50}'
    assert without_adapter(COMPLETIONS, body) == b'{"model":"m","n":1.50}'
    assert without_adapter(GENERATE, body) == body
