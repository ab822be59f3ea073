"""Contract of every connector: valid bodies, a prefill of the prompt only, and any answer read or
rejected.
"""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines import CONNECTORS, ENGINES, HANDOFFS
from gateway.config import by_key
from gateway.core.kv_connector import Handed, Handoff, Pair
from gateway.core.kv_events import DecodeError
from gateway.core.worker import Role, Served, Transfer, Worker, WorkerId
from tests import ROOT

each = pytest.mark.parametrize("handoff", HANDOFFS.values(), ids=HANDOFFS.keys())
SERVED = (Served("m", "m"),)
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


def pair(number: int = 5, **more: Any) -> Pair:
    prefill = Worker(
        WorkerId("p"),
        "http://p:1",
        SERVED,
        role=Role.PREFILL,
        transfer=Transfer("x", "10.0.0.1:8998", "engine-1"),
        **more,
    )
    return Pair(prefill, Worker(WorkerId("d"), "http://d:1", SERVED, role=Role.DECODE), number)


def of(body: bytes) -> dict[str, Any]:
    fields = json.loads(body)
    assert isinstance(fields, dict)
    return fields


def answer(**fields: Any) -> bytes:
    usage = {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 32}}
    return json.dumps({"usage": usage, "choices": [{"finish_reason": "length"}], **fields}).encode()


def test_every_connector_has_its_name_and_every_default_is_one() -> None:
    assert all(handoff.name == name for name, handoff in HANDOFFS.items())
    assert set(CONNECTORS) < set(ENGINES)
    assert set(CONNECTORS.values()) <= set(HANDOFFS)


@each
def test_a_connector_is_named_in_the_help_and_in_the_guide(handoff: Handoff) -> None:
    guide = (ROOT / "docs/guides/disaggregation.md").read_text()
    assert f"| `{handoff.name}`" in guide
    assert re.search(rf"\b{handoff.name}\b", by_key()["connector"].help)


@each
def test_prompt_fields_are_equal_in_both_legs(handoff: Handoff) -> None:
    body = json.dumps(CHAT).encode()
    to_prefill = of(handoff.to_prefill(body, pair()))
    handed = Handed(b'{"params": {"a": 1}, "tokens": null}', 100, 32)
    to_decode = of(handoff.to_decode(body, pair(), None if handoff.is_together else handed))
    for name in ("model", "messages", "tools", "temperature"):
        assert to_prefill[name] == to_decode[name] == CHAT[name]
    for name, value in CHAT.items():
        assert to_decode[name] == value, name


@each
def test_prefill_computes_the_prompt_only(handoff: Handoff) -> None:
    asked = of(handoff.to_prefill(json.dumps(CHAT).encode(), pair()))
    if handoff.is_together:
        return  # the same body: the connector stops by itself
    assert asked["stream"] is False
    assert "stream_options" not in asked
    if handoff.name != "context":  # the connector computes one token by itself
        assert (asked["max_tokens"], asked["max_completion_tokens"]) == (1, 1)
        assert asked["tool_choice"] == "none"
        assert not {"min_tokens", "logprobs", "top_logprobs", "response_format"} & set(asked)


@each
@given(st.binary(max_size=60))
def test_any_answer_is_read_or_rejected(handoff: Handoff, body: bytes) -> None:
    try:
        assert isinstance(handoff.handed(body), Handed)
    except DecodeError as exc:
        assert str(exc)


@each
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda some: st.lists(some, max_size=3) | st.dictionaries(st.sampled_from(["usage", "choices", "kv_transfer_params", "disaggregated_params", "finish_reason", "prompt_tokens"]), some, max_size=3)))  # fmt: skip  # noqa: E501
def test_any_json_is_read_or_rejected(handoff: Handoff, value: Any) -> None:
    test_any_answer_is_read_or_rejected.hypothesis.inner_test(handoff, json.dumps(value).encode())  # type: ignore[attr-defined]
