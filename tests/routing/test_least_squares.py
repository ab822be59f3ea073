import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.least_squares import FORGET_S, LeastSquares

TRUTH = (0.02, 0.000_1, 0.000_001)


def features(rng: random.Random) -> tuple[float, float, float]:
    work, running = rng.randrange(100, 20_000), rng.randrange(40)
    return 1.0, work, work * running


def seconds(x: tuple[float, float, float], truth: tuple[float, float, float] = TRUTH) -> float:
    return sum(weight * feature for weight, feature in zip(truth, x, strict=True))


def fit() -> LeastSquares:
    return LeastSquares((0.05, 0.000_5, 0.0), (0.1, 0.001, 0.000_01))


def see(
    fit: LeastSquares,
    num: int,
    *,
    truth: tuple[float, float, float] = TRUTH,
    far: float = 0.0,
    now: float = 0.0,
) -> float:
    rng = random.Random(1)
    for _ in range(num):
        now += 0.1
        x = features(rng)
        fit.observe(x, seconds(x, truth) * rng.gauss(1, 0.05) * (20 if rng.random() < far else 1), now)
    return now


def test_without_observations_the_prior_is_expected() -> None:
    assert fit().expect((1, 1000, 0)) == pytest.approx(0.55)


@pytest.mark.parametrize("far", [0.0, 0.05])
def test_outliers_do_not_change_the_expectation(far: float) -> None:
    learnt = fit()
    see(learnt, 200, far=far)
    for x in ((1.0, 500.0, 0.0), (1.0, 10_000.0, 0.0), (1.0, 10_000.0, 300_000.0)):
        assert learnt.expect(x) == pytest.approx(seconds(x), rel=0.2)


def test_a_change_is_learnt() -> None:
    learnt, x = fit(), (1.0, 10_000.0, 50_000.0)
    now = see(learnt, 100)
    slower = (0.04, 0.000_2, 0.000_002)
    see(learnt, 100, truth=slower, now=now)
    assert learnt.expect(x) == pytest.approx(seconds(x, slower), rel=0.15)


def test_without_observations_the_fit_returns_to_its_prior() -> None:
    learnt, x = fit(), (1.0, 10_000.0, 0.0)
    before = learnt.expect(x)
    now = see(learnt, 50)
    learnt.forget(now + 60 * FORGET_S)
    learnt.believe((0.05, 0.000_5, 0.0), (0.1, 0.001, 0.000_01))
    for _ in range(30):
        learnt.believe((0.05, 0.000_5, 0.0), (0.1, 0.001, 0.000_01))
    assert learnt.expect(x) == pytest.approx(before, rel=0.01)
    assert learnt.num_seen < 1e-6


def test_a_weight_with_a_prior_of_zero_is_learnt() -> None:
    learnt = LeastSquares((0.0, 0.0, 0.0), (0.0, 0.0, 0.0))
    see(learnt, 50)
    assert learnt.expect((1.0, 10_000.0, 0.0)) >= 0
    learnt.believe((0.0, 0.0, 0.0), (0.0, 0.0, 0.0))
    assert learnt.weights == [0.0, 0.0, 0.0] or min(learnt.weights) >= 0


@given(
    st.lists(
        st.tuples(st.floats(0, 1e6), st.floats(0, 1e4), st.floats(0, 1e4), st.floats(0, 100)), max_size=40
    )
)
def test_no_weight_is_negative_or_infinite(seen: list[tuple[float, float, float, float]]) -> None:
    learnt = fit()
    for work, running, late, took in seen:
        learnt.observe((1.0, work, work * running), took, late)
        assert all(0 <= weight < 1e6 for weight in learnt.weights)


def test_a_fit_has_as_many_features_as_given() -> None:
    rng, truth = random.Random(2), (0.01, 0.002, 0.000_1, 0.03)
    feature = LeastSquares((0.1,) * 4, (0.2,) * 4)
    for number in range(300):
        x = (1.0, rng.randrange(50), rng.randrange(5000), rng.randrange(9))
        feature.observe(x, sum(weight * each for weight, each in zip(truth, x, strict=True)), float(number))
    assert feature.weights == pytest.approx(list(truth), rel=0.2)


def constant(num: int = 50) -> tuple[LeastSquares, float]:
    """A fit that saw `num` durations of 50 ms, one each second, and the time."""
    learnt = LeastSquares((0.02,), (0.05,))
    for number in range(num):
        learnt.observe((1.0,), 0.05, float(number))
    return learnt, float(num)


@pytest.mark.parametrize("seconds", [0.5, 5.0, 50.0])
def test_one_far_outlier_hardly_counts_once_the_scale_is_known(seconds: float) -> None:
    learnt, now = constant(5)
    learnt.observe((1.0,), seconds, now)
    assert learnt.expect((1.0,)) == pytest.approx(0.05, rel=0.15)


def test_one_far_outlier_hardly_counts_where_others_know_the_scale() -> None:
    learnt = LeastSquares((0.05,), (0.03,))
    learnt.believe((0.05,), (0.03,), is_learnt=True)
    learnt.observe((1.0,), 5.0, 0.0)
    assert learnt.expect((1.0,)) == pytest.approx(0.05, rel=0.15)


def test_a_first_observation_sets_the_scale() -> None:
    """A fleet of CPUs is a hundred times as slow as the first guess."""
    learnt = LeastSquares((0.02,), (0.05,))
    learnt.observe((1.0,), 2.0, 2.0)
    assert learnt.expect((1.0,)) > 0.2


def test_a_stall_that_delays_many_is_one_outlier() -> None:
    learnt, now = constant()
    for number in range(20):  # sent within a second, answered within another one, four seconds later
        learnt.observe((1.0,), 5.0, now + 5.0 + number / 20)
    assert learnt.expect((1.0,)) == pytest.approx(0.05, rel=0.1)
    assert learnt.num_apart < 51


def test_slow_ones_apart_in_time_are_a_change() -> None:
    learnt, now = constant()
    for number in range(12):
        learnt.observe((1.0,), 5.0, now + 5.5 * (number + 1))
    assert learnt.expect((1.0,)) > 0.5


def test_after_a_restart_only_the_prior_is_left() -> None:
    learnt, _ = constant()
    learnt.restart()
    learnt.believe((0.02,), (0.05,))
    assert learnt.expect((1.0,)) == pytest.approx(0.02)
    assert (learnt.num_seen, learnt.num_apart) == (0.0, 0.0)


def scattered(scatter: float, *, truth: tuple[float, float, float] = TRUTH) -> LeastSquares:
    rng, learnt, now = random.Random(5), fit(), 0.0
    for _ in range(60):
        x = features(rng)
        took = seconds(x, truth) * math.exp(rng.gauss(0.0, scatter))
        now += took
        learnt.observe(x, took, now)
    return learnt


@pytest.mark.parametrize("scatter", [0.05, 0.2, 0.5])
def test_the_evidence_against_the_truth_is_small_and_grows_with_the_distance(scatter: float) -> None:
    learnt = scattered(scatter)
    doubled, tenfold = ([times * weight for weight in TRUTH] for times in (2.0, 10.0))
    against = [learnt.evidence_against(weights) for weights in (TRUTH, doubled, tenfold)]
    assert against == sorted(against)
    assert against[0] < 8.0 < against[2]


def test_twice_as_slow_is_as_far_as_twice_as_fast() -> None:
    learnt = scattered(0.02)
    slower = learnt.evidence_against([2.0 * weight for weight in learnt.weights])
    assert learnt.evidence_against([0.5 * weight for weight in learnt.weights]) == pytest.approx(slower)


def test_the_same_distance_is_less_evidence_where_durations_scatter_more() -> None:
    doubled = [2.0 * weight for weight in TRUTH]
    assert scattered(0.5).evidence_against(doubled) < scattered(0.05).evidence_against(doubled) / 2


def test_a_change_of_speed_is_no_scatter() -> None:
    learnt, now = fit(), 0.0
    for number in range(60):
        now += 1.0
        learnt.observe((1.0, 1000.0, 0.0), 0.2 if number < 50 else 20.0, now)
    assert learnt.evidence_against(TRUTH) > 8.0
