"""The figures of `make bench-policies`, and the rows of their table."""

from dataclasses import replace

import pytest

from gateway.replay.results import Summary
from loadtest.bench_policies import (
    MADE,
    OTHERS,
    OURS,
    asked_rows,
    compare,
    good_over_best,
    medians,
    run,
)
from loadtest.policy_rows import MIX_P99, SATURATED, PolicyScenario, mixed_rows, rows, saturated_rows
from loadtest.report import Figure
from loadtest.workloads.groups import groups
from tests.support.recordings import seen_jobs

PREDICTING = {"expected_ttft", "latency_slo", "all_knowing", "tenant_fairness", "pooled"}


def summary(policy: str, p99: float, goodput: float, mean: float = 1.0) -> Summary:
    return Summary(policy, 9, 0.26, mean, 1.0, 1.0, p99, 0.01, 0.01, 2.0, 2.0, goodput, 1.0, 1.0, 0.2)


def test_figures_compare_each_seed_with_the_best_other_policy() -> None:
    cells = {OURS: [summary(OURS, 4.0, 3.0, 1.05)] * 3, "all_knowing": [summary("all_knowing", 1.0, 9.0)] * 3}
    cells |= {name: [summary(name, 5.0 + i, 2.0 + i / 10)] * 3 for i, name in enumerate(OTHERS)}
    row = next(row for row in rows() if row.name == "conversation_1x")
    found = {figure.name: (figure.value, figure.verdict) for figure in compare(row, cells)}
    assert found == {
        "policy.ttft_p99_over_best.conversation_1x": (0.8, "met"),
        "policy.goodput_over_best.conversation_1x": (round(3.0 / 2.3, 3), "met"),
        "policy.ttft_mean_over_best.conversation_1x": (1.05, ""),
        "policy.tpot_over_best.conversation_1x": (1.0, ""),
        "policy.e2e_over_best.conversation_1x": (1.0, "met"),
        "policy.unused.conversation_1x": (0, "met"),
        "policy.ttft_error_p90.conversation_1x": (0.2, ""),
        "policy.reuse.conversation_1x": (0.26, "met"),
        "policy.ttft_mean_over_all_knowing.conversation_1x": (1.05, "met"),
    }


def test_where_no_policy_serves_any_request_well_none_is_better() -> None:
    bad, good = summary(OURS, 4.0, 0.001), summary(OURS, 4.0, 3.0)
    few = replace(bad, good=0.001)
    assert good_over_best(few, replace(few, goodput=0.01)) == 1.0
    assert good_over_best(few, good) == pytest.approx(0.001 / 3)
    assert good_over_best(good, replace(few, goodput=0.0)) > 1000


def test_answers_of_one_token_are_compared() -> None:
    once = replace(summary(OURS, 4.0, 3.0), tpot_mean_s=0.0)
    cells = {name: [once] * 3 for name in (OURS, *OTHERS, "all_knowing")}
    row = next(row for row in mixed_rows() if row.name == "few_shot")
    found = {figure.name: figure.value for figure in compare(row, cells)}
    assert found["policy.tpot_over_best.few_shot"] == 0.0


def test_each_workload_of_the_table_has_its_row() -> None:
    all_rows = [*mixed_rows(), *rows()]
    names = [row.name for row in all_rows]
    assert len(set(names)) == len(names) == 17 + 11 + 6
    assert [row.name for row in asked_rows([])] == names
    assert {row.p99_goal for row in all_rows if not row.name.startswith(SATURATED)} == {MIX_P99}


def test_rows_are_asked_for_by_name_and_draws_repeat() -> None:
    first, few = asked_rows(["few_shot", "draw-7-31"])
    assert (first.name, few.name) == ("draw-7-31", "few_shot")
    again = asked_rows(["draw-7-31"])[0]
    assert seen_jobs(first.jobs(1)) == seen_jobs(again.jobs(1)) != seen_jobs(first.jobs(2))
    assert (first.profile, first.num_workers) == (again.profile, again.num_workers)


def test_saturated_rows_are_short_answers_before_few_seats_and_have_medians_of_their_own() -> None:
    rows = saturated_rows()
    assert [row.name for row in rows] == [
        f"saturated_{share}_{size}" for size in ("8b", "70b") for share in (100, 115, 130)
    ]
    assert {(row.profile.max_num_seqs, row.p99_goal, row.num_workers) for row in rows} == {(64, 1.0, 4)}
    figures = [
        Figure(f"policy.{name}.{row.name}", value, "x", None, [value])
        for name in ("ttft_p99_over_best", "ttft_error_p90", "goodput_over_best")
        for row, value in zip(rows, (0.8, 0.9, 0.95, 0.7, 0.85, 0.5), strict=True)
    ]
    found = {figure.name: (figure.value, figure.goal) for figure in medians(figures)}
    assert found == {
        "policy.ttft_p99_over_best.saturated": (0.825, 0.9),
        "policy.ttft_error_p90.saturated": (0.825, 0.3),
        "policy.ttft_p99_over_best.median": (0.825, 0.9),
        "policy.goodput_over_best.median": (0.825, 1.1),
    }
    assert medians([]) == []


@pytest.mark.parametrize("name", [*MADE, "pooled"])
def test_an_incomplete_run_is_rejected(name: str) -> None:
    row = PolicyScenario("few", lambda seed: groups((5,), 4.0, seed), block_size=400, num_workers=2)
    found = run(row, name, 1)
    assert found.num_requests == len(list(groups((5,), 4.0, 1)))
    assert found.ttft_mean_s > 0 and found.goodput > 0
    assert (found.ttft_error_p90 is not None) is (name in PREDICTING)
