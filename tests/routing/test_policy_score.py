import pytest

from gateway.core.outcome import Outcome
from gateway.core.value import replace
from gateway.routing.policy_score import LATEST, PolicyScore, TtftPredictions
from tests.support.fakes import decision
from tests.support.usage import usage_of


def test_a_score_summarizes_the_outcomes_of_a_policy() -> None:
    score, made = PolicyScore(), replace(decision(), ttft_s=0.2)
    for i in range(100):
        usage = usage_of(100, i) if i % 2 else None
        score.ended(made, Outcome("ended", 200, i / 100, usage))
    score.ended(replace(made, attempt=2), Outcome("failed", 0, 9.0, None))
    score.ended(made, Outcome("aborted", 200, None, None))
    score.ended(made, Outcome("client_disconnected", 499, None, None))
    summary = score.describe()
    assert (summary["requests"], summary["failed_requests"]) == (103, 2)
    assert (summary["ttft_p50_s"], summary["ttft_p90_s"]) == (0.5, 0.9)
    assert (summary["reported_prompt_tokens"], summary["reported_cached_tokens"], summary["hit_rate"]) == (
        5000,
        2500,
        0.5,
    )
    assert summary["predicted_ttft_s"] == 0.2 and summary["measured_ttft_s"] == pytest.approx(0.495)


def test_quantiles_are_of_the_latest() -> None:
    score = PolicyScore()
    for i in range(2 * LATEST):
        score.ended(decision(), Outcome("ended", 200, 5.0 if i < LATEST else 0.5, None))
    assert (score.describe()["ttft_p90_s"], sum(score.ttft_s.counts)) == (0.5, 2 * LATEST)


def test_a_score_without_outcomes_has_no_values() -> None:
    summary = PolicyScore().describe()
    assert [name for name, value in summary.items() if value is None] == [
        "ttft_p50_s",
        "ttft_p90_s",
        "hit_rate",
        "predicted_ttft_s",
        "measured_ttft_s",
        "prediction_error",
    ]


def test_the_prediction_error_covers_requests_that_stayed_at_their_worker() -> None:
    promises = TtftPredictions()
    promises.add(1.0, 2.0, is_same=True)
    promises.add(3.0, 2.0, is_same=True)
    promises.add(5.0, 2.0, is_same=False)
    assert promises.describe() == {"predicted_ttft_s": 3.0, "measured_ttft_s": 2.0, "prediction_error": 0.5}
