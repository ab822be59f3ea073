"""The figure `day.timing_auc`, the promise of `--tenant-salt-file`: tenants cannot time each other.

The attacker's clock counts the engines' work here, which no other load on the machine changes: what a cached
prompt saves shows exactly. The benchmark takes the time that a client sees.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from loadtest.day_timing import GOAL, Attack, EngineClock, attack, auc, best_round

NUM_PROBES = 20


def test_the_area_under_the_curve() -> None:
    assert auc([1.0, 2.0], [3.0, 4.0]) == 1.0
    assert auc([3.0, 4.0], [1.0, 2.0]) == 0.0
    assert auc([1.0, 4.0], [2.0, 3.0]) == 0.5
    assert auc([1.0], [1.0]) == 0.5


def test_rounds_end_with_the_first_one_within_the_goal() -> None:
    class Scripted:
        found = [0.9, GOAL, 0.5]

        def round(self, num_probes: int) -> float:
            return self.found.pop(0)

    assert best_round(Scripted(), 4) == [0.9, GOAL]  # type: ignore[arg-type]


@contextmanager
def exact_attack(*, is_salted: bool) -> Iterator[Attack]:
    """Attack on the one worker that has all of the victim's prompts."""
    with attack(is_salted=is_salted, num_workers=1, clock_of=EngineClock) as attacking:
        yield attacking


@pytest.mark.process
def test_with_salts_a_tenant_cannot_detect_another_tenants_prompts() -> None:
    with exact_attack(is_salted=True) as attacking:
        assert attacking.round(NUM_PROBES) == 0.5


@pytest.mark.process
def test_without_salts_the_same_attacker_detects_them() -> None:
    with exact_attack(is_salted=False) as attacking:
        assert attacking.round(NUM_PROBES) == 1.0
