import random

from gateway.policies import POLICIES
from gateway.policies.base import pick_lowest


def test_the_lowest_cost_wins_and_ties_are_broken_at_random() -> None:
    assert pick_lowest([3, 1, 2], random.Random(0)) == 1
    assert {pick_lowest([1, 5, 1], random.Random(seed)) for seed in range(20)} == {0, 2}


def test_the_table_has_each_policy_under_its_own_name() -> None:
    assert all(make().name == name for name, make in POLICIES.items())
