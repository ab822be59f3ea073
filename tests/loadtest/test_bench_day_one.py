import pytest

from loadtest import bench_day_one
from loadtest.bench_day_one import main
from loadtest.instruments import InstrumentError
from loadtest.report import Figure


def figure(name: str, value: float) -> Figure:
    return Figure(name, value, "us", 3.0, [value])


def test_goals_decide_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {"good": lambda: [figure("a", 2.0)], "bad": lambda: [figure("b", 4.0)]}
    monkeypatch.setattr(bench_day_one, "MODULES", found)
    published = []
    monkeypatch.setattr(bench_day_one, "publish", lambda bench, figures: published.append(figures))
    assert main(["--only", "good"]) == 0
    assert main(["--only", "bad,good"]) == 1
    assert "a: 2.000 us met" in capsys.readouterr().out and not published
    assert main([]) == 1
    assert [each.name for each in published[0]] == ["a", "b"]
    with pytest.raises(SystemExit):
        main(["--only", "none"])


def test_an_impossible_measurement_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> list[Figure]:
        raise InstrumentError("no C compiler")

    monkeypatch.setattr(bench_day_one, "MODULES", {"auth": fail})
    assert main([]) == 1
    assert "bench-day-one: auth: no C compiler" in capsys.readouterr().err
