"""The program for an engine's python: conversations as engines give them to a template."""

import json
import sys

import pytest

from loadtest.templates_inside import made, reference, said


def test_arguments_of_calls_are_objects() -> None:
    function = {"name": "f", "arguments": '{"a": 1}'}
    message = {"role": "assistant", "tool_calls": [{"id": "1", "function": function}]}
    assert said(message)["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert json.loads(function["arguments"]) == {"a": 1} and said({"role": "user"}) == {"role": "user"}


def test_refused_body_has_no_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(tokenizer: object, template: str, body: object) -> None:
        raise ValueError("one call at a time")

    assert made(refuse, None, "", {"messages": []}) is None
    assert "one call at a time" in capsys.readouterr().err
    assert made(lambda *given: [1], None, "", {"messages": []}) == [1]


def test_without_vllm_and_transformers_there_is_no_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError):
        reference()
