"""The benchmark of hostile templates: its models are there, and it measures a running gateway."""

from datetime import datetime
from pathlib import Path

import pytest

from gateway.tokenization.chat_template import NotRendered, Template, TooCostly
from gateway.tokenization.prompt_encoder import PromptEncoder
from loadtest.hostile_templates import HARMLESS, TRAPS, measured, model_directory, outcome_of


def test_a_models_directory_has_the_template(tmp_path: Path) -> None:
    folder = model_directory(tmp_path / "model", TRAPS[HARMLESS])
    assert PromptEncoder.load(folder).sources == [TRAPS[HARMLESS]]


@pytest.mark.parametrize("trap", [name for name in TRAPS if name != HARMLESS])
def test_each_other_template_costs_too_much(trap: str, tmp_path: Path) -> None:
    with pytest.raises((NotRendered, TooCostly)):
        Template(TRAPS[trap]).render([{"role": "user", "content": "x"}] * 33, {}, datetime(2024, 1, 1))


def test_the_outcome_is_the_reason_or_the_encoder() -> None:
    models = [
        {"model": "a", "tokenizer": "absent", "tokenizer_reason": "no"},
        {"model": "b", "encoder": "fastokens"},
    ]
    assert [outcome_of({"models": models}, name) for name in "abc"] == ["no", "", ""]
    assert outcome_of({"models": models}, "b", is_harmless=True) == "fastokens"


@pytest.mark.process
def test_a_template_is_measured() -> None:
    cost = measured("deep nesting")
    assert cost.late_ms >= 0 and "nested too deeply" in cost.outcome
