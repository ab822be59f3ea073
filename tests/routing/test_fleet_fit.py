import pytest

from gateway.routing.fleet_fit import FleetFit
from gateway.routing.least_squares import LeastSquares


def spread(weights: object, doubt: float) -> list[float]:
    return [doubt]


def observe(fits: FleetFit, fit: LeastSquares, seconds: float, *times: float) -> None:
    for now in times:
        fits.observe(fit, [1.0], seconds, now)


def test_the_first_observations_count_for_all_workers() -> None:
    fits = FleetFit([1.0], spread)
    one, other = fits.new(), fits.new()
    observe(fits, one, 3.0, 10.0)
    assert not fits.is_known
    assert fits.weights(one) == fits.weights(other) == fits.typical != [1.0]


def test_a_worker_of_which_enough_was_seen_goes_by_itself_and_others_by_the_median() -> None:
    fits = FleetFit([1.0], spread)
    slow, fast, new = fits.new(), fits.new(), fits.new()
    observe(fits, slow, 4.0, *range(10, 90, 10))
    observe(fits, fast, 2.0, *range(10, 90, 10))
    observe(fits, new, 9.0, 80.0)
    fits.refresh([slow, fast, new], 81.0)
    assert fits.is_known
    assert fits.weights(slow) == [pytest.approx(4.0, rel=0.1)]
    assert fits.weights(fast) == [pytest.approx(2.0, rel=0.1)]
    assert fits.weights(new) == fits.typical == [pytest.approx(2.0, rel=0.1)]
    assert new.num_seen == 0.0, "what was weighed against a guess is forgotten"
    assert fits.weights(fits.new()) == fits.typical
