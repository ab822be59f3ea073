"""Contract of every connector: valid bodies, a prefill of the prompt only, and any answer read or
rejected.
"""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines import DEFAULT_CONNECTORS, ENGINES, KV_CONNECTORS
from gateway.config import by_key
from gateway.core.kv_connector import KvConnector, PrefillResult
from gateway.core.kv_events import DecodeError
from tests import ROOT
from tests.support.transfer_pairs import fields_of, pair

each = pytest.mark.parametrize("connector", KV_CONNECTORS.values(), ids=KV_CONNECTORS.keys())
CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "naïve 中文"}],
    "stream": True,
    "stream_options": {"include_usage": True},
    "max_completion_tokens": 500,
    "min_tokens": 5,
    "logprobs": True,
    "top_logprobs": 3,
    "response_format": {"type": "json_object"},
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "tool_choice": "required",
    "temperature": 0,
}


def test_every_connector_has_its_name_and_every_default_is_one() -> None:
    assert all(connector.name == name for name, connector in KV_CONNECTORS.items())
    assert set(DEFAULT_CONNECTORS) < set(ENGINES)
    assert set(DEFAULT_CONNECTORS.values()) <= set(KV_CONNECTORS)


@each
def test_a_connector_is_named_in_the_help_and_in_the_guide(connector: KvConnector) -> None:
    guide = (ROOT / "docs/guides/disaggregation.md").read_text()
    assert f"| `{connector.name}`" in guide
    assert re.search(rf"\b{connector.name}\b", by_key()["connector"].help)


@each
def test_prompt_fields_are_equal_in_both_legs(connector: KvConnector) -> None:
    body = json.dumps(CHAT).encode()
    to_prefill = fields_of(connector.to_prefill(body, pair()))
    result = PrefillResult(b'{"params": {"a": 1}, "tokens": null}', 100, 32)
    to_decode = fields_of(connector.to_decode(body, pair(), None if connector.is_together else result))
    for name in ("model", "messages", "tools", "temperature"):
        assert to_prefill[name] == to_decode[name] == CHAT[name]
    for name, value in CHAT.items():
        assert to_decode[name] == value, name


@each
def test_prefill_computes_the_prompt_only(connector: KvConnector) -> None:
    asked = fields_of(connector.to_prefill(json.dumps(CHAT).encode(), pair()))
    if connector.is_together:
        return  # the same body: the connector stops by itself
    assert asked["stream"] is False
    assert "stream_options" not in asked
    if connector.name != "context":  # the connector computes one token by itself
        assert (asked["max_tokens"], asked["max_completion_tokens"]) == (1, 1)
        assert asked["tool_choice"] == "none"
        assert not {"min_tokens", "logprobs", "top_logprobs", "response_format"} & set(asked)


@each
@given(st.binary(max_size=60))
def test_any_answer_is_read_or_rejected(connector: KvConnector, body: bytes) -> None:
    try:
        assert isinstance(connector.prefill_result(body), PrefillResult)
    except DecodeError as exc:
        assert str(exc)


@pytest.mark.slow
@each
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda some: st.lists(some, max_size=3) | st.dictionaries(st.sampled_from(["usage", "choices", "kv_transfer_params", "disaggregated_params", "finish_reason", "prompt_tokens"]), some, max_size=3)))  # fmt: skip  # noqa: E501
def test_any_json_is_read_or_rejected(connector: KvConnector, value: Any) -> None:
    test_any_answer_is_read_or_rejected.hypothesis.inner_test(connector, json.dumps(value).encode())  # type: ignore[attr-defined]
