"""The figure `pd.cpu_split_over_direct`, and runs in which it has no meaning."""

import pytest

from loadtest.bench_pd_cost import SIZES, RequestCosts, check_split, figures
from loadtest.instruments import BenchError

SPLIT = """\
kvgate_disaggregation_plans_total{plan="prefill_decode",reason="always split"} 9.0
kvgate_kv_transfer_duration_seconds_count 9.0
kvgate_disaggregation_prompt_mismatches_total 0.0
"""


def test_the_figure_is_the_worse_of_the_small_and_the_known_long_prompt() -> None:
    costs = {
        "small": RequestCosts(direct=[100.0, 110.0], split=[190.0, 180.0]),
        "16k": RequestCosts(direct=[220.0, 200.0], split=[400.0, 420.0]),
        "16k_new": RequestCosts(direct=[500.0], split=[1500.0]),
    }
    found = {figure.name: figure for figure in figures(costs)}
    assert found["pd.cpu_split_over_direct"].value == 2.0
    assert found["pd.cpu_split_over_direct"].goal == 2.2
    values = {name: found[f"pd.cpu_split_over_direct.{name}"].value for name in costs}
    assert values == {"small": 1.8, "16k": 2.0, "16k_new": 3.0}
    assert found["pd.split.small.cpu_us"].value == 180
    assert set(costs) == {size.name for size in SIZES}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            'kvgate_disaggregation_plans_total{plan="direct",reason="no compatible prefill worker"} 2.0',
            "2 were not",
        ),
        ('kvgate_disaggregation_failures_total{reason="died"} 1.0', "1 legs failed"),
        ("kvgate_disaggregation_prompt_mismatches_total 3.0", "3 saw another prompt"),
    ],
)
def test_a_run_with_direct_requests_has_no_figure(more: str, words: str) -> None:
    check_split(SIZES[0], "", SPLIT)
    check_split(SIZES[0], f"{more}\n", f"{SPLIT}{more}\n")
    with pytest.raises(BenchError, match=words):
        check_split(SIZES[0], "", f"{SPLIT}{more}\n")


def test_a_run_without_disaggregated_requests_has_no_figure() -> None:
    with pytest.raises(BenchError, match="0 requests were split"):
        check_split(SIZES[0], SPLIT, SPLIT)
