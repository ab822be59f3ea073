import pytest

from gateway.discovery.balancer_detection import CALM_LOOKS, WITHIN_LOOKS, EngineIdentity


def test_an_engine_with_one_start_time_is_one_engine() -> None:
    identity = EngineIdentity()
    assert [identity.saw(100.0 + i / 10) for i in range(4)] == [None] * 4


def test_later_start_times_are_restarts() -> None:
    identity = EngineIdentity()
    assert [identity.saw(began) for began in (100.0, 100.0, 200.0, 300.0)] == [None] * 4


def test_an_earlier_start_time_is_another_engine() -> None:
    identity = EngineIdentity()
    identity.saw(3600.0)
    assert identity.saw(7200.0) is None
    reason = identity.saw(3600.0)
    assert reason is not None
    assert reason.startswith("several engines answer here, started at 01:00:00 and at 02:00:00")
    assert identity.saw(7200.0) == reason  # the same reason: it is logged once


def test_an_address_is_accepted_again_when_one_engine_has_answered_for_long() -> None:
    identity = EngineIdentity()
    for began in (1.0, 2.0, 1.0):
        identity.saw(began)
    reasons = [identity.saw(1.0) for _ in range(CALM_LOOKS)]
    assert (reasons[-2] is None, reasons[-1]) == (False, None)


def test_counters_that_fall_once_are_a_restart() -> None:
    identity = EngineIdentity()
    assert identity.saw(None, has_fallen=True) is None


def test_counters_that_fall_repeatedly_are_of_several_engines() -> None:
    identity = EngineIdentity()
    reasons = [identity.saw(None, has_fallen=i % 2 == 1) for i in range(6)]
    assert (reasons[4], reasons[5]) == (None, identity.reason)
    assert "with inconsistent counters" in repr(identity)


@pytest.mark.parametrize("apart", [WITHIN_LOOKS, 100])
def test_occasional_restarts_are_not_several_engines(apart: int) -> None:
    identity = EngineIdentity()
    for look in range(5 * apart):
        assert identity.saw(None, has_fallen=look % apart == 0) is None
