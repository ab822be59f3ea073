import pytest

from gateway.core.speeds import MIN_TOKENS, Speeds
from gateway.core.worker import WorkerId

A, B = WorkerId("a"), WorkerId("b")


def speeds() -> Speeds:
    return Speeds(prefill_tokens_per_s=1000.0, transfer_tokens_per_s=10_000.0, transfer_latency_s=0.01)


def test_a_speed_is_what_was_configured_until_something_happened() -> None:
    assert speeds().prefill(A) == pytest.approx(1000)
    assert speeds().transfer_s(1000) == pytest.approx(0.11)
    assert speeds().transfer_s(0) == pytest.approx(0.01)


def test_each_worker_has_its_own_that_comes_near_what_is_seen() -> None:
    learnt = speeds()
    for _ in range(50):
        learnt.prefilled(A, 5000, 10.0)
    assert learnt.prefill(A) == pytest.approx(500, rel=0.02)
    assert learnt.prefill(B) == pytest.approx(1000)
    learnt.drop(A)
    assert learnt.prefill(A) == pytest.approx(1000)


def test_one_that_waited_for_something_unseen_changes_little() -> None:
    learnt = speeds()
    learnt.prefilled(A, 1000, 500.0)
    assert learnt.prefill(A) == pytest.approx(1000, rel=0.15)


def test_little_work_tells_nothing() -> None:
    learnt = speeds()
    learnt.prefilled(A, MIN_TOKENS - 1, 10.0)
    learnt.prefilled(A, MIN_TOKENS, 0.0)
    learnt.transferred(MIN_TOKENS - 1, 10.0)
    assert (learnt.prefill(A), learnt.transfer_s(1000)) == (pytest.approx(1000), pytest.approx(0.11))


def test_transfers_are_learnt_behind_their_latency() -> None:
    learnt = speeds()
    for _ in range(60):
        learnt.transferred(2000, 0.11)
    assert learnt.transfer_s(2000) == pytest.approx(0.11, rel=0.05)
    assert "transfer=" in repr(learnt)
