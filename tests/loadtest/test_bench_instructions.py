"""Instructions of stages, read from callgrind's report and compared with the budget."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from loadtest import bench_instructions as module
from loadtest.bench_instructions import STAGES, ChatBodies

REPORT = """
 90,387,709 (64.83%)  ???:CPyPy_server___connection___ClientConnection___data_received [/x.so]
 90,369,041 (64.82%)  ???:CPyDef_server___connection___ClientConnection___data_received [/x.so]
     10,000 ( 0.01%)  ???:CPyDef_exchange___InferenceExchange____route'2 [/x.so]
     30,000 ( 0.02%)  ???:CPyDef_exchange___InferenceExchange____route [/x.so]
  9,000,000 ( 6.00%)  ???:_PyEval_EvalFrameDefault [/usr/bin/python]
"""


def totals(monkeypatch: pytest.MonkeyPatch, report: str) -> dict[str, int]:
    done = subprocess.CompletedProcess([], 0, report)
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: done)
    return module._totals(Path("callgrind.out"))


def test_compiled_methods_are_found_in_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    found = totals(monkeypatch, REPORT)
    assert found == {"ClientConnection___data_received": 90_369_041, "InferenceExchange____route": 30_000}


def test_a_gateway_without_compiled_functions_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(module.InstrumentError, match="run it on the wheel"):
        totals(monkeypatch, " 9,000 (6.00%)  ???:_PyEval_EvalFrameDefault [/usr/bin/python]\n")


@pytest.mark.parametrize(("value", "is_over"), [(100, False), (102, False), (103, True), (90, False)])
def test_a_figure_over_its_budget_is_named(value: int, is_over: bool, capsys: Any) -> None:
    assert module._compared("small.in_path", value, 100) is is_over
    assert ("OVER" in capsys.readouterr().out) is is_over


def test_the_budget_has_every_figure_of_every_scenario() -> None:
    names = [f"{each.name}.{stage}" for each in module.SCENARIOS for stage in each.stages]
    assert sorted(json.loads(module.BUDGET.read_bytes())) == sorted(names)
    assert all(STAGES.values())


def test_known_conversations_differ_in_their_last_message_only() -> None:
    bodies = ChatBodies(16_000)
    rounds = [[json.loads(bodies.next())["messages"] for _ in range(bodies.num_known)] for _ in range(2)]
    for first, again in zip(*rounds, strict=True):
        assert first[:-1] == again[:-1] and first[-1] != again[-1]
        assert len(first[0]["content"]) > 12_000
