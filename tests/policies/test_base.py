import random

import pytest

from gateway.core.errors import ConfigError
from gateway.policies import POLICIES, policy_of
from gateway.policies.base import pick_lowest
from gateway.policies.prefix_overlap import PrefixOverlap


def test_the_lowest_cost_wins_and_ties_are_broken_by_chance() -> None:
    assert pick_lowest([3, 1, 2], random.Random(0)) == 1
    assert {pick_lowest([1, 5, 1], random.Random(seed)) for seed in range(20)} == {0, 2}


def test_the_table_names_each_policy_as_it_names_itself() -> None:
    assert all(make().name == name for name, make in POLICIES.items())


def test_what_media_are_worth_is_an_option() -> None:
    policy = policy_of("prefix_overlap", ["CPU=0.25", "TAPE=0"])
    assert isinstance(policy, PrefixOverlap)
    assert policy.worth == {"CPU": 0.25, "TAPE": 0.0, "DISK": 0.5, "STORAGE": 0.5}
    assert policy_of("least_load", ["CPU=0.25"]).name == "least_load"


@pytest.mark.parametrize("text", ["CPU", "=0.5", "CPU=", "CPU=1.5", "CPU=-0.1", "CPU=nan", "CPU=fast"])
def test_a_worth_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--medium-worth"):
        policy_of("prefix_overlap", [text])
