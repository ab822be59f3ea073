"""The figures of `make bench-policies`, and the rows of their table."""

import pytest

from gateway.replay.results import Summary
from loadtest import bench_policies
from loadtest.bench_policies import MADE, OTHERS, OURS, PolicyScenario, compare, rows, run
from loadtest.workloads.groups import groups


def summary(policy: str, p99: float, goodput: float, mean: float = 1.0) -> Summary:
    return Summary(policy, 9, 0.26, mean, 1.0, 1.0, p99, 0.01, 0.01, 2.0, 2.0, goodput, 1.0, 1.0)


def test_figures_compare_each_seed_with_the_best_other_policy() -> None:
    cells = {OURS: [summary(OURS, 4.0, 3.0, 1.05)] * 3, "all_knowing": [summary("all_knowing", 1.0, 9.0)] * 3}
    cells |= {name: [summary(name, 5.0 + i, 2.0 + i / 10)] * 3 for i, name in enumerate(OTHERS)}
    row = next(row for row in rows() if row.name == "conversation_1x")
    found = {figure.name: (figure.value, figure.verdict) for figure in compare(row, cells)}
    assert found == {
        "policy.ttft_p99_over_best.conversation_1x": (0.8, ""),
        "policy.goodput_over_best.conversation_1x": (round(3.0 / 2.3, 3), "met"),
        "policy.reuse.conversation_1x": (0.26, "met"),
        "policy.ttft_mean_over_all_knowing.conversation_1x": (1.05, "met"),
    }


def test_each_workload_of_the_table_has_its_row() -> None:
    names = [row.name for row in rows()]
    assert len(set(names)) == len(names) == 11
    goals = {row.name for row in rows() if row.p99_goal}
    assert goals == {f"conversation_{speed}x{model}" for speed in (2, 3) for model in ("", "_70b")}


@pytest.mark.parametrize("name", [*MADE, "pooled"])
def test_an_incomplete_run_is_rejected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row = PolicyScenario("few", lambda seed: groups((5,), 4.0, seed), block_size=400)
    monkeypatch.setattr(bench_policies, "NUM_WORKERS", 2)
    found = run(row, name, 1)
    assert found.num_requests == len(list(groups((5,), 4.0, 1)))
    assert found.ttft_mean_s > 0 and found.goodput > 0
