import pytest

from gateway.observability.verification.misprediction import ErrorCause, Evidence, cause_of


@pytest.mark.parametrize(
    ("predicted", "cached", "from_events", "num_removed", "is_reported_now", "cause"),
    [
        (64, 0, 64, 3, True, ErrorCause.EVICTED),
        (64, 48, 64, 1, True, ErrorCause.EVICTED),
        (64, 0, 64, 0, True, ErrorCause.UNKNOWN),
        (64, 0, 0, 0, False, ErrorCause.NEVER_STORED),
        (64, 32, 32, 9, False, ErrorCause.NEVER_STORED),  # reported blocks were cached
        (64, 16, 32, 9, False, ErrorCause.EVICTED),
        (0, 64, 0, 0, True, ErrorCause.REPORTED_LATER),
        (32, 64, 32, 5, True, ErrorCause.REPORTED_LATER),
        (32, 64, 0, 0, False, ErrorCause.NOT_REPORTED),
    ],
)
def test_the_table(
    predicted: int, cached: int, from_events: int, num_removed: int, is_reported_now: bool, cause: ErrorCause
) -> None:
    assert cause_of(Evidence(predicted, cached, from_events, num_removed, is_reported_now, False)) is cause


@pytest.mark.parametrize("cached", [0, 128])
def test_other_tokens_explain_any_error(cached: int) -> None:
    assert cause_of(Evidence(64, cached, 64, 3, True, True)) is ErrorCause.TOKENS_DIFFER
