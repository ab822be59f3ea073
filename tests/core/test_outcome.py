import pytest

from gateway.core.outcome import Outcome
from tests.support.usage import usage_of


@pytest.mark.parametrize(
    ("result", "status", "is_error"),
    [
        ("ended", 200, False),
        ("ended", 400, False),
        ("ended", 503, True),
        ("client_disconnected", 499, False),
        ("aborted", 200, True),
        ("failed", 0, True),
    ],
)
def test_outcomes_are_errors_by_their_end_and_status(result: str, status: int, is_error: bool) -> None:
    assert Outcome(result, status, None, None).is_error is is_error


def test_usage_reported_by_the_engine_is_kept() -> None:
    outcome = Outcome("ended", 200, 0.5, usage_of(10, 4))
    assert (outcome.reported_prompt_tokens, outcome.reported_cached_tokens, outcome.ttft_s) == (10, 4, 0.5)
