import math
import random

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
    observe(fits, slow, 4.0, *range(10, 90, 5))
    observe(fits, fast, 2.0, *range(10, 90, 5))
    observe(fits, new, 9.0, 80.0)
    fits.refresh([slow, fast, new], 81.0)
    assert fits.is_known
    assert fits.weights(slow) == [pytest.approx(4.0, rel=0.1)]
    assert fits.weights(fast) == [pytest.approx(2.0, rel=0.1)]
    assert fits.weights(new) == fits.typical == [pytest.approx(2.0, rel=0.1)]
    assert new.num_seen == 0.0, "what was weighed against a guess is forgotten"
    assert fits.weights(fits.new()) == fits.typical


def fleet_of(ratio: float, scatter: float, num: int = 40) -> tuple[FleetFit, LeastSquares, LeastSquares]:
    """Two workers, the second `ratio` times as slow, in `num` requests apart in time with that scatter."""
    rng = random.Random(7)
    fits = FleetFit([1.0], spread)
    one, other = fits.new(), fits.new()
    for now in range(num):
        observe(fits, one, 2.0 * math.exp(rng.gauss(0.0, scatter)), 10.0 * now)
        observe(fits, other, 2.0 * ratio * math.exp(rng.gauss(0.0, scatter)), 10.0 * now + 5.0)
    fits.refresh([one, other], 10.0 * num)
    return fits, one, other


@pytest.mark.parametrize("scatter", [0.02, 0.15, 0.3, 0.5])
def test_equal_workers_have_equal_weights_however_much_their_durations_scatter(scatter: float) -> None:
    fits, one, other = fleet_of(1.0, scatter)
    assert fits.weights(one) == fits.weights(other)


@pytest.mark.parametrize(("ratio", "scatter"), [(1.5, 0.02), (1.5, 0.15), (2.0, 0.15), (4.0, 0.3)])
def test_a_difference_beyond_the_scatter_counts(ratio: float, scatter: float) -> None:
    fits, one, other = fleet_of(ratio, scatter)
    [fast], [slow] = fits.weights(one), fits.weights(other)
    assert slow / fast > 1.0 + (ratio - 1.0) / 3.0


def test_a_difference_within_the_scatter_does_not_count_at_once() -> None:
    fits, one, other = fleet_of(1.3, 0.5)
    assert fits.weights(one) == fits.weights(other)
