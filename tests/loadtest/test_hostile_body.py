"""The benchmark of giant bodies: its bodies are JSON, and it measures a running gateway."""

import json
import os
from pathlib import Path

import pytest

from gateway.core.route_table import ROUTES
from loadtest import hostile_body
from loadtest.hostile_body import CHAT, before_one, cost_of, memory_mb, reset_peak, shown
from loadtest.hostile_texts import FORMS, WORST, tokenizer_of


@pytest.mark.parametrize("name", FORMS)
def test_a_form_is_json_of_about_its_size(name: str) -> None:
    path, make = FORMS[name]
    body = make(100_000)
    assert path in ROUTES and json.loads(body)["model"] == "sim"
    assert 80_000 < len(body) < 140_000


@pytest.mark.parametrize("family", WORST)
def test_a_family_has_its_tokenizer(family: str, tmp_path: Path) -> None:
    folder = tokenizer_of(family, tmp_path)
    assert json.loads((folder / "tokenizer.json").read_text())["model"]
    assert (folder / "tokenizer_config.json").exists()


def test_memory_is_read_from_the_process() -> None:
    reset_peak(os.getpid())
    assert 0 < memory_mb(os.getpid(), "VmRSS") <= memory_mb(os.getpid(), "VmHWM") + 1


@pytest.mark.process
def test_a_giant_body_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(hostile_body, "QUIET_S", 0.1)
    with before_one(tokenizer_of("gpt2", tmp_path)) as fleet:
        cost = cost_of(fleet, CHAT, FORMS["chat"][1](4 << 20))
    assert (cost.status, cost.peak_mb > cost.start_mb - 1) == (400, True)
    assert "maximum context length" in cost.message and "maximum" in shown("chat", cost)
