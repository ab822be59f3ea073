import pytest

from gateway.core.value import replace
from gateway.replay.results import POINTS, Slo, curves, percentile, summarize, table
from tests.support.fakes import decision
from tests.support.recordings import done_job


def test_figures_of_a_run() -> None:
    done = [
        done_job(0.0, 1.0, 0),
        done_job(1.0, 2.0, 50, "b"),
        done_job(2.0, 3.0, 100),
        done_job(7.8, 2.0, 50, "b"),
    ]
    row = summarize("p", done, 4, Slo(2.5, 0.02001))
    assert (row.hit_rate, row.ttft_mean_s, row.ttft_p50_s, row.ttft_p99_s) == (0.5, 2.0, 2.0, 3.0)
    assert (row.tpot_mean_s, row.e2e_mean_s) == (pytest.approx(0.02), pytest.approx(2.2))
    assert (row.goodput, row.good) == (pytest.approx(3 / 10), 0.75)
    assert row.busiest == 2.0  # two of four computed all their tokens, equally many


def test_the_error_of_predicted_ttfts_has_a_least_denominator() -> None:
    """Repeated requests and those without a prediction are left out."""
    done = [done_job(0.0, 1.0, 0) for _ in range(8)] + [
        done_job(0.0, 0.01, 0),
        done_job(0.0, 1.0, 0),
        done_job(0.0, 1.0, 0),
    ]
    predicted = [1.1] * 8 + [0.06, 9.0, None]
    for each, ttft_s in zip(done, predicted, strict=True):
        each.num_attempts = 1
        each.decision = replace(decision(), ttft_s=ttft_s)
    done[-2].num_attempts = 2
    assert summarize("p", done, 1, Slo()).ttft_error_p90 == pytest.approx(0.5)
    done[8].decision = replace(decision(), ttft_s=0.02)
    assert summarize("p", done, 1, Slo()).ttft_error_p90 == pytest.approx(0.1)
    assert summarize("p", done[-1:], 1, Slo()).ttft_error_p90 is None


@pytest.mark.parametrize(
    ("percent", "value"), [(50, 2), (90, 4), (25, 1), (26, 2), (99, 4), (0, 1), (100, 4)]
)
def test_a_percentile_is_a_measured_value(percent: float, value: int) -> None:
    assert percentile([1, 2, 3, 4], percent) == value


def test_hit_rates_over_time_skip_empty_intervals() -> None:
    drawn = curves([done_job(0.0, 1.0, 0), done_job(0.1, 1.0, 100), done_job(60.0, 0.5, 25)])
    assert list(drawn.ttft_s) == [0.5, 1.0, 1.0]
    assert list(drawn.hits) == [0.5, 0.25]
    assert list(drawn.hit_s) == pytest.approx([30 / POINTS, 60 - 30 / POINTS])
    assert list(curves([done_job(0.0, 1.0, 50)]).hits) == [0.5]


def test_the_table_is_aligned() -> None:
    rows = [summarize(name, [done_job(0.0, 1.0, 0)], 1, Slo()) for name in ("a", "a_long_name")]
    lines = table(rows)
    assert len({len(line) for line in lines}) == 1 and len(lines) == 3
    assert lines[1].split()[:3] == ["a", "0.000", "1.000"]
