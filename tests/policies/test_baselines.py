import random

from gateway.core.decision import Query
from gateway.policies.base import Policy
from gateway.policies.baselines import Random, RoundRobin
from tests.policies.contract import PolicyContract, candidate


class TestRandom(PolicyContract):
    def make(self) -> Policy:
        return Random()


def test_random_ignores_load() -> None:
    some, rng = [candidate("a", booked=10**6), candidate("b")], random.Random(1)
    chosen = [Random().choose(Query("m", 1000), some, rng).index for _ in range(100)]
    assert 30 < chosen.count(0) < 70


class TestRoundRobin(PolicyContract):
    def make(self) -> Policy:
        return RoundRobin()


def test_round_robin_cycles_per_model_by_worker_name() -> None:
    policy, rng = RoundRobin(), random.Random(0)
    two = [candidate("b"), candidate("a")]
    order = [two[policy.choose(Query(m, 1), two, rng).index].id for m in ("m", "m", "n", "m")]
    assert order == ["a", "b", "a", "a"]
