import pytest

from gateway.discovery.balancer_detection import CALM_LOOKS, WITHIN_LOOKS, Identity


def test_one_that_stays_is_one() -> None:
    identity = Identity()
    assert [identity.saw(100.0 + i / 10) for i in range(4)] == [None] * 4


def test_one_that_restarts_began_later() -> None:
    identity = Identity()
    assert [identity.saw(began) for began in (100.0, 100.0, 200.0, 300.0)] == [None] * 4


def test_one_that_began_earlier_than_the_last_is_another() -> None:
    identity = Identity()
    identity.saw(3600.0)
    assert identity.saw(7200.0) is None
    reason = identity.saw(3600.0)
    assert reason is not None
    assert reason.startswith("several engines answer here, started at 01:00:00 and at 02:00:00")
    assert identity.saw(7200.0) == reason  # the same words: they are logged once


def test_they_are_believed_again_when_one_has_answered_for_long() -> None:
    identity = Identity()
    for began in (1.0, 2.0, 1.0):
        identity.saw(began)
    said = [identity.saw(1.0) for _ in range(CALM_LOOKS)]
    assert (said[-2] is None, said[-1]) == (False, None)


def test_counters_that_fall_once_are_a_restarts() -> None:
    identity = Identity()
    assert identity.saw(None, has_fallen=True) is None


def test_counters_that_fall_again_and_again_are_of_several() -> None:
    identity = Identity()
    said = [identity.saw(None, has_fallen=i % 2 == 1) for i in range(6)]
    assert (said[4], said[5]) == (None, identity.reason)
    assert "with inconsistent counters" in repr(identity)


@pytest.mark.parametrize("apart", [WITHIN_LOOKS, 100])
def test_restarts_now_and_then_are_none_of_several(apart: int) -> None:
    identity = Identity()
    for look in range(5 * apart):
        assert identity.saw(None, has_fallen=look % apart == 0) is None
