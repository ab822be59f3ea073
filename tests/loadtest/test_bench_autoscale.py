"""The search and the figures of `make bench-autoscale`."""

from functools import partial

import pytest

from gateway.replay.profile import H100_8B
from loadtest import bench_autoscale
from loadtest.bench_autoscale import Traffic, smallest
from loadtest.report import Figure
from loadtest.workloads.mixes import unique


@pytest.mark.parametrize("start", [1, 4, 9])
@pytest.mark.parametrize("found", [1, 3, 8])
def test_smallest_fleet_is_found_from_any_start(start: int, found: int) -> None:
    asked: list[int] = []

    def meets(num: int) -> bool:
        asked.append(num)
        return num >= found

    assert smallest(meets, start) == found and len(asked) <= abs(found - start) + 2


def test_search_for_a_fleet_ends_where_none_is_large_enough() -> None:
    assert smallest(lambda num: False, 4, most=8) == 8


def test_figures_are_published(monkeypatch: pytest.MonkeyPatch) -> None:
    published: list[Figure] = []
    jobs = partial(unique, 1, rate=3.0, seconds=30.0)
    monkeypatch.setattr(bench_autoscale, "check_traces", lambda *_: None)
    monkeypatch.setattr(bench_autoscale, "traffics", lambda: [Traffic("few", lambda: list(jobs()), H100_8B)])
    monkeypatch.setattr(bench_autoscale, "TRACE_S", 30.0)
    monkeypatch.setattr(bench_autoscale, "WARM_S", 0.0)
    monkeypatch.setattr(bench_autoscale, "PLAYED_S", 120.0)
    monkeypatch.setattr(bench_autoscale, "publish", lambda _, figures: published.extend(figures))
    bench_autoscale.main()
    values = {figure.name: figure.value for figure in published}
    assert list(values) == [
        "advice.needed_over_smallest.few",
        "autoscale.attainment",
        "autoscale.attainment_of_fixed_fleet",
        "autoscale.events_per_hour",
        "autoscale.mean_workers",
    ]
    assert 0.0 < values["advice.needed_over_smallest.few"] <= 1.0
    assert 0.0 < values["autoscale.attainment"] <= 1.0 and values["autoscale.mean_workers"] >= 1.0
