import pytest

from gateway.core.slow_start import FIRST_SHARE, SlowStart


@pytest.mark.parametrize(("now", "share"), [(100.0, 0.1), (105.0, 0.55), (110.0, 1.0), (999.0, 1.0)])
def test_the_share_grows_from_a_tenth_to_all(now: float, share: float) -> None:
    assert SlowStart(100.0, 10.0).share(now) == pytest.approx(share)


def test_the_share_follows_what_the_worker_was_sent_where_that_is_more() -> None:
    slow_start = SlowStart(100.0, 10.0)
    slow_start.warmed = 0.5
    assert [slow_start.share(now) for now in (100.0, 105.0, 108.0)] == pytest.approx([0.55, 0.55, 0.82])


def test_a_worker_that_is_held_back_gets_nothing_until_then() -> None:
    slow_start = SlowStart(0.0, 10.0)
    slow_start.hold(5.0)
    for _ in range(100):
        slow_start.decided(4.0, 1, is_here=False)
    assert (slow_start.is_due, slow_start.share(4.9), slow_start.share(5.0)) == (False, 0.0, 0.55)


def test_a_warm_up_of_zero_seconds_has_the_full_share() -> None:
    assert SlowStart(0.0, 0.0).share(0.0) == 1.0


def test_a_warming_worker_gets_the_first_request_and_then_its_share() -> None:
    """A tenth among 4 workers is one request in 40."""
    slow_start = SlowStart(0.0, 1e12)
    given = []
    for number in range(200):
        given += [number] if slow_start.is_due else []
        slow_start.decided(0.0, 4, is_here=slow_start.is_due)
    assert given[0] == 0
    assert len(given) == pytest.approx(200 * FIRST_SHARE / 4, abs=1)


def test_an_unused_share_is_not_saved_up() -> None:
    slow_start = SlowStart(0.0, 10.0)
    for _ in range(1000):
        slow_start.decided(10.0, 2, is_here=False)
    slow_start.decided(0.0, 2, is_here=True)
    slow_start.decided(0.0, 2, is_here=False)
    assert not slow_start.is_due
