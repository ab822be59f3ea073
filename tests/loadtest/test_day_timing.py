"""The figure `day.timing_auc`, the promise of `--tenant-salt-file`: tenants cannot time each other."""

import pytest

from loadtest.day_timing import GOAL, attack, auc, best_round


def test_the_area_under_the_curve() -> None:
    assert auc([1.0, 2.0], [3.0, 4.0]) == 1.0
    assert auc([3.0, 4.0], [1.0, 2.0]) == 0.0
    assert auc([1.0, 4.0], [2.0, 3.0]) == 0.5
    assert auc([1.0], [1.0]) == 0.5


@pytest.mark.process
def test_with_salts_a_tenant_cannot_detect_another_tenants_prompts() -> None:
    with attack(is_salted=True) as attacking:
        assert min(best_round(attacking)) <= GOAL


@pytest.mark.process
def test_without_salts_the_same_attacker_detects_them() -> None:
    with attack(is_salted=False) as attacking:
        assert attacking.round(50) > 0.9
