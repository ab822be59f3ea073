"""The program for an engine's python: what it refuses, and what it needs."""

import sys

import pytest

from loadtest.templates_inside import by_vllm, made


def test_refused_body_has_no_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(tokenizer: object, template: str, body: object) -> None:
        raise ValueError("one call at a time")

    assert made(refuse, None, "", {"messages": []}) is None
    assert "one call at a time" in capsys.readouterr().err
    assert made(lambda *given: [1], None, "", {"messages": []}) == [1]


def test_without_vllm_there_is_no_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ImportError):
        by_vllm()
