import pytest

from gateway.costs.transfer_speed import MIN_TOKENS, TransferSpeed


def speed() -> TransferSpeed:
    return TransferSpeed(tokens_per_s=10_000.0, latency_s=0.01)


def test_the_configured_speed_applies_before_observations() -> None:
    assert speed().seconds(1000) == pytest.approx(0.11)
    assert speed().seconds(0) == pytest.approx(0.01)


def test_speed_and_latency_are_learnt_from_transfers() -> None:
    learnt = speed()
    for _ in range(60):
        learnt.transferred(2000, 0.11)
    assert learnt.seconds(2000) == pytest.approx(0.11, rel=0.05)
    assert repr(learnt).startswith("TransferSpeed(199")


def test_an_outlier_changes_little() -> None:
    learnt = speed()
    learnt.transferred(1000, 500.0)
    assert learnt.tokens_per_s == pytest.approx(10_000, rel=0.15)


def test_a_queue_is_not_taken_for_a_slow_link() -> None:
    learnt = speed()
    for _ in range(60):
        learnt.transferred(2000, 10.0, ahead_s=9.0)
        learnt.transferred(2000, 0.31, ahead_s=0.1)
    assert learnt.seconds(2000) == pytest.approx(0.21, rel=0.05)


def test_small_transfers_are_ignored() -> None:
    learnt = speed()
    learnt.transferred(MIN_TOKENS - 1, 10.0)
    learnt.transferred(MIN_TOKENS, 0.0)
    assert learnt.tokens_per_s == pytest.approx(10_000)
