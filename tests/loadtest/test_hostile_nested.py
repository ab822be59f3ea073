"""The benchmark of single hostile requests: its bodies are JSON of their size, and figures come of all."""

import json

import pytest

from loadtest import hostile_nested
from loadtest.hostile_nested import calling, measure, nearly_named


@pytest.mark.parametrize("unit", ["1", "{}"])
def test_arguments_are_json_of_about_their_size(unit: str) -> None:
    body = json.loads(calling(unit, 100_000))
    arguments = body["messages"][1]["tool_calls"][0]["function"]["arguments"]
    assert len(json.loads(arguments)["a"]) == 100_000 // (len(unit) + 1)


def test_a_text_nearly_names_a_medium() -> None:
    body = nearly_named(100_000)
    assert 99_000 < len(body) < 101_000 and b'"uuid"' not in body
    assert json.loads(body)["messages"][0]["content"].startswith('"uu"ui"uu"ui')


@pytest.mark.process
def test_all_figures_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMOKE", "1")
    monkeypatch.setattr(hostile_nested, "SMOKE_SHARE", 64)
    names = ["nested_late_ms", "nested_peak_mb", "salted_late_ms", "frames_late_ms"]
    assert [figure.name for figure in measure()] == [f"hostile.{name}" for name in names]
