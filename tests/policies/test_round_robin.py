import random

from gateway.core.decision import Query
from gateway.policies.base import Policy
from gateway.policies.round_robin import RoundRobin
from tests.policies.contract import PolicyContract, candidate


class TestRoundRobin(PolicyContract):
    def make(self) -> Policy:
        return RoundRobin()


def test_turns_are_per_model_and_by_name() -> None:
    policy, rng = RoundRobin(), random.Random(0)
    two = [candidate("b"), candidate("a")]
    order = [two[policy.choose(Query(m, 1), two, rng).index].id for m in ("m", "m", "n", "m")]
    assert order == ["a", "b", "a", "a"]
