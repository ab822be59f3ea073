import random

from gateway.core.decision import Query
from gateway.policies.base import Policy
from gateway.policies.random import Random
from tests.policies.contract import PolicyContract, candidate


class TestRandom(PolicyContract):
    def make(self) -> Policy:
        return Random()


def test_load_is_not_looked_at() -> None:
    some, rng = [candidate("a", booked=10**6), candidate("b")], random.Random(1)
    chosen = [Random().choose(Query("m", 1000), some, rng).index for _ in range(100)]
    assert 30 < chosen.count(0) < 70
