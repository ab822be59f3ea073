import random
from collections import Counter

from gateway.core.decision import Query
from gateway.core.rendezvous import home_of
from gateway.policies.base import Policy
from gateway.policies.baselines import Random, RoundRobin
from gateway.policies.framework.ab_test import ABTest
from gateway.policies.least_load import LeastLoad
from tests.policies.contract import PolicyContract, candidate

SOME = [candidate(name) for name in "abcd"]


def arms(*shares: float) -> ABTest:
    names = ("least_load", "random")
    return ABTest({"least_load": LeastLoad(), "random": Random()}, dict(zip(names, shares, strict=True)))


def who(policy: ABTest, session: str | None, rng: random.Random) -> str:
    return policy.choose(Query("m", 1, session), SOME, rng).policy


class TestArms(PolicyContract):
    def make(self) -> Policy:
        return arms(1, 1)


def test_a_session_stays_with_its_policy_whatever_the_rng() -> None:
    for session in map(str, range(50)):
        assert len({who(arms(90, 10), session, random.Random(seed)) for seed in range(20)}) == 1
    assert [who(arms(1, 1), session, random.Random(0)) for session in "abcdef"] == PINNED


PINNED = ["random", "random", "least_load", "least_load", "least_load", "random"]


def test_shares_apply_to_sessions_and_to_requests_without_one() -> None:
    rng = random.Random(1)
    for named in (True, False):
        counts = Counter(who(arms(90, 10), f"s{i}" if named else None, rng) for i in range(10_000))
        assert 850 < counts["random"] < 1150
    assert arms(0.9, 0.1).shares == {"least_load": 0.9, "random": 0.1}


def test_sessions_of_an_arm_use_all_workers() -> None:
    """The preferred workers of an arm's sessions are spread over the fleet."""
    rng = random.Random(1)
    homes = Counter(
        home_of(session, SOME)[0]
        for session in map(str, range(4000))
        if who(arms(1, 1), session, rng) == "random"
    )
    assert len(homes) == 4 and all(400 < num < 600 for num in homes.values())


def test_a_twin_leaves_the_state_of_each_policy_unchanged() -> None:
    policy = ABTest({"one": RoundRobin(), "two": LeastLoad()}, {"one": 1, "two": 1e-9})
    query, rng = Query("m", 1), random.Random(1)
    assert [policy.twin().choose(query, SOME, rng).index for _ in range(3)] == [0] * 3
    assert [policy.choose(query, SOME, rng).index for _ in range(3)] == [0, 1, 2]


def test_an_arm_is_found_by_its_name() -> None:
    assert isinstance(arms(1, 1).policy_of("random"), Random)
    assert arms(1, 1).policy_of("other") is None
