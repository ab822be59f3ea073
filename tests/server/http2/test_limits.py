"""Budgets against floods."""

from gateway.server.http2.limits import Budget, Http2Limits


def test_a_budget_is_spent_and_refilled_by_time_and_use() -> None:
    budget = Budget(3.0, 2.0)
    assert [budget.spend(1.0, 0.0) for _ in range(4)] == [True, True, True, False]
    assert budget.spend(1.0, 1.0)  # -1 and 2 of the second, less 1
    assert not budget.spend(1.0, 1.0)
    budget.earn(2.0)
    assert budget.spend(1.0, 0.5), "time does not go back"
    assert not budget.spend(1.0, 1.0)


def test_a_budget_holds_no_more_than_its_burst() -> None:
    budget = Budget(2.0, 1.0)
    budget.earn(50.0)
    assert [budget.spend(1.0, 100.0) for _ in range(3)] == [True, True, False]
    assert repr(budget) == "Budget(-1 of 2)"


def test_a_piece_of_a_body_fits_into_a_frame_and_its_messages_into_the_windows() -> None:
    limits = Http2Limits()
    assert limits.max_frame_bytes >= 62_000 + 1000
    assert limits.stream_window < limits.connection_window < limits.max_partial_bytes
