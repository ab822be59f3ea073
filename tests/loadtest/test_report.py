import json
from pathlib import Path

import pytest

from loadtest import report
from loadtest.report import Figure, best_of, median_of, publish


def test_the_lowest_round_counts_and_all_are_kept() -> None:
    figure = best_of("proxy.small.cpu_us", "us", 60, [71.25, 58.7504, 90.0])
    assert figure.value == 58.75
    assert figure.rounds == [71.25, 58.75, 90.0]


@pytest.mark.parametrize(
    ("value", "goal", "verdict"), [(60, 60, "met"), (60.1, 60, "MISSED"), (1e9, None, "")]
)
def test_a_goal_is_an_upper_bound(value: float, goal: float | None, verdict: str) -> None:
    assert Figure("f", value, "us", goal, [value]).verdict == verdict


def test_a_floor_is_a_lower_bound_and_the_median_stands_for_its_rounds() -> None:
    figure = median_of("f", "1/s", 100, [90, 130.1239, 101], is_floor=True)
    assert (figure.value, figure.verdict) == (101, "met")
    assert figure.rounds == [90, 130.124, 101]
    assert median_of("f", "1/s", 102, [101], is_floor=True).verdict == "MISSED"


def test_the_table_shows_each_figure_with_its_goal_and_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    publish("b", [best_of("b.fast", "us", 60, [50, 55]), best_of("b.large", "MB", None, [1234.5])])
    fast, large = [line for line in capsys.readouterr().out.splitlines() if line.startswith("b.")]
    assert fast.split() == ["b.fast", "50", "us", "60", "met", "50,", "55"]
    assert large.split() == ["b.large", "1,234", "MB", "1,234"]


def test_the_file_has_figures_machine_and_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")
    publish("b", [best_of("b.fast", "us", 60, [50])])
    document = json.loads((tmp_path / "results" / "b.json").read_text())
    assert document.keys() == {"bench", "date", "commit", "machine", "versions", "figures"}
    assert document["figures"] == [
        {"name": "b.fast", "value": 50, "unit": "us", "goal": 60, "rounds": [50], "is_floor": False}
    ]
    assert "uvloop" in document["versions"]
