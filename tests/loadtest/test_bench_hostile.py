import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from loadtest import bench_hostile
from loadtest.bench_hostile import MODULES, main
from loadtest.report import Figure


def module(value: float) -> ModuleType:
    made = ModuleType("loadtest.hostile_played")
    made.measure = lambda: [Figure(f"hostile.{value}", value, "MB", 3.0, [value])]  # type: ignore[attr-defined]
    return made


def test_goals_decide_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "loadtest.hostile_good", module(2.0))
    monkeypatch.setitem(sys.modules, "loadtest.hostile_bad", module(4.0))
    monkeypatch.setattr(bench_hostile, "MODULES", ("good", "bad"))
    published = []
    monkeypatch.setattr(bench_hostile, "publish", lambda bench, figures: published.append(figures))
    assert main(["--only", "good"]) == 0
    assert main(["--only", "bad,good"]) == 1
    assert "hostile.2.0: 2.000 MB met" in capsys.readouterr().out and not published
    assert main([]) == 1
    assert [figure.name for figure in published[0]] == ["hostile.2.0", "hostile.4.0"]
    with pytest.raises(SystemExit):
        main(["--only", "none"])


def test_an_impossible_measurement_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> list[Figure]:
        raise RuntimeError("a good request was cut")

    made = module(0.0)
    made.measure = fail  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "loadtest.hostile_bad", made)
    monkeypatch.setattr(bench_hostile, "MODULES", ("bad",))
    assert main([]) == 1
    assert "bench-hostile: bad: a good request was cut" in capsys.readouterr().err


def test_each_benchmark_module_exists() -> None:
    for name in MODULES:
        __import__(f"loadtest.hostile_{name}")


def test_the_documentation_names_each_figure() -> None:
    sources = [Path(bench_hostile.__file__).with_name(f"hostile_{name}.py").read_text() for name in MODULES]
    names = {name for source in sources for name in re.findall(r'"(hostile\.\w+)"', source)}
    names |= {f"hostile.leak_{what}_mb" for what in re.findall(r'_grown_by\(\s*"(\w+)"', sources[-1])}
    page = (Path(__file__).parents[2] / "docs/benchmarks/hostile.md").read_text()
    assert len(names) == 12
    assert names == set(re.findall(r"^\| `(\S+)` \|", page, re.MULTILINE))
