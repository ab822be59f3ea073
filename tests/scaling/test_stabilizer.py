"""The advised number rises at once, falls after a while, and does not flap."""

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.scaling.stabilizer import SPARE, Stabilizer

ROUND_S, HOLD_S = 5.0, 300.0


def _levels(needs: list[float], num_kept: int = 0, hold_s: float = HOLD_S) -> list[int]:
    stabilizer = Stabilizer()
    found = []
    for number, needed in enumerate(needs):
        found.append(math.ceil(stabilizer.update(needed, num_kept, number * ROUND_S, hold_s) - 1e-9))
    return found


def _changes(levels: list[int]) -> int:
    return sum(one != other for one, other in zip(levels, levels[1:], strict=False))


def test_rises_at_once() -> None:
    assert _levels([1.0, 1.0, 5.2, 5.2]) == [1, 1, 6, 6]


def test_falls_once_nothing_has_needed_more_for_a_while() -> None:
    levels = _levels([5.0] + [1.0] * 100)
    assert levels[59] == 5 and levels[60] == 2  # 300 s later: the need of 1.0, and a tenth more


def test_keeps_the_level_while_peaks_come_back() -> None:
    needs = [4.5 if number % 50 == 0 else 1.0 for number in range(1000)]
    assert set(_levels(needs)) == {5}


def test_need_that_is_over_soon_raises_the_level_and_does_not_hold_it() -> None:
    stabilizer = Stabilizer()
    levels = [
        stabilizer.update(9.0 if number == 1 else 4.0, 0, number * ROUND_S, HOLD_S, 4.0)
        for number in range(100)
    ]
    assert levels[1] == levels[60] == 9.0 and levels[61] == pytest.approx(4.0 * SPARE)


def test_level_does_not_fall_below_what_waits_now() -> None:
    stabilizer = Stabilizer()
    levels = [stabilizer.update(9.0, 0, number * ROUND_S, HOLD_S, 1.0) for number in range(200)]
    assert set(levels) == {9.0}


def test_falls_to_zero_without_a_need() -> None:
    assert _levels([1.0] + [0.0] * 60)[-1] == 0


def test_new_gateway_takes_the_fleet_as_needed_for_a_while() -> None:
    levels = _levels([0.5] * 125, num_kept=8)
    assert levels[0] == levels[60] == 8 and levels[-1] == 1


@pytest.mark.parametrize("mean", [0.5, 1.0, 3.0, 10.0, 40.0])
def test_noise_around_a_steady_load_changes_little(mean: float) -> None:
    """A goal of the field is at most ten changes of the fleet an hour. Each hour here has its own noise."""
    hours = []
    for seed in range(20):
        rng = random.Random(seed)
        levels = _levels([max(rng.gauss(mean, 0.3 * math.sqrt(mean)), 0.0) for _ in range(720)])
        hours.append(_changes(levels[60:]))
    assert statistics.mean(hours) <= 10


@given(st.lists(st.floats(0.0, 100.0), min_size=1, max_size=400))
def test_never_below_the_need_and_falls_are_rare(needs: list[float]) -> None:
    levels = _levels(needs)
    assert all(level >= math.ceil(needed - 1e-9) for level, needed in zip(levels, needs, strict=True))
    falls = [number for number in range(1, len(levels)) if levels[number] < levels[number - 1]]
    assert all((other - one) * ROUND_S >= HOLD_S for one, other in zip(falls, falls[1:], strict=False))
    for fall in falls:
        window = needs[fall + 1 - int(HOLD_S / ROUND_S) : fall + 1]
        assert levels[fall] == math.ceil(max(window) * SPARE - 1e-9)


@given(
    st.floats(0.2, 200.0),
    st.lists(st.floats(1.0, SPARE), min_size=100, max_size=400),
    st.integers(0, 300),
)
def test_noise_of_a_tenth_never_makes_the_number_rise_after_it_fell(
    least: float, noise: list[float], num_kept: int
) -> None:
    levels = _levels([least * more for more in noise], num_kept)
    pairs = list(zip(levels, levels[1:], strict=False))
    rises = [number for number, (one, other) in enumerate(pairs) if other > one]
    falls = [number for number, (one, other) in enumerate(pairs) if other < one]
    assert not rises or not falls or max(rises) < min(falls)


@given(st.floats(0.0, 100.0), st.floats(0.0, 100.0), st.integers(0, 200), st.integers(0, 20))
def test_step_is_followed_in_the_round_that_sees_it(
    before: float, after: float, num_before: int, num_kept: int
) -> None:
    levels = _levels([before] * num_before + [after], num_kept)
    assert levels[-1] >= math.ceil(after - 1e-9)
