import pytest

from gateway.core.slow_start import FIRST_SHARE, Ramp


@pytest.mark.parametrize(("now", "share"), [(100.0, 0.1), (105.0, 0.55), (110.0, 1.0), (999.0, 1.0)])
def test_its_share_grows_from_a_tenth_to_all(now: float, share: float) -> None:
    assert Ramp(100.0, 10.0).share(now) == pytest.approx(share)


def test_one_without_time_has_all_at_once() -> None:
    assert Ramp(0.0, 0.0).share(0.0) == 1.0


def test_it_has_the_first_request_and_then_its_share_of_what_each_has() -> None:
    """At a tenth, among 4 workers: one in 40."""
    ramp = Ramp(0.0, 1e12)
    given = []
    for number in range(200):
        given += [number] if ramp.is_due else []
        ramp.decided(0.0, 4, is_here=ramp.is_due)
    assert given[0] == 0
    assert len(given) == pytest.approx(200 * FIRST_SHARE / 4, abs=1)


def test_what_it_did_not_use_is_not_saved_up() -> None:
    ramp = Ramp(0.0, 10.0)
    for _ in range(1000):
        ramp.decided(10.0, 2, is_here=False)
    ramp.decided(0.0, 2, is_here=True)
    ramp.decided(0.0, 2, is_here=False)
    assert not ramp.is_due
