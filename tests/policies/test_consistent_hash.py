import random

from gateway.core.decision import Query
from gateway.policies.base import Policy
from gateway.policies.consistent_hash import ConsistentHash, ConsistentHashScorer
from tests.policies.contract import PolicyContract, candidate

FLEET = [candidate(name) for name in "abcdefgh"]


class TestConsistentHash(PolicyContract):
    def make(self) -> Policy:
        return ConsistentHash()


def chosen(query: Query) -> int:
    return ConsistentHash().choose(query, FLEET, random.Random(query.num_tokens)).index


def test_prompts_with_equal_prefixes_share_a_worker_whatever_their_session() -> None:
    assert len({chosen(Query("m", n, f"s{n}", prefix=77)) for n in range(1, 20)}) == 1
    assert len({chosen(Query("m", 1, "s", prefix=n)) for n in range(100)}) == 8


def test_without_tokens_the_session_decides_and_without_one_the_load() -> None:
    assert len({chosen(Query("m", n, "s")) for n in range(20)}) == 1
    choice = ConsistentHash().choose(
        Query("m", 0), [candidate("a", booked=9), candidate("b")], random.Random(1)
    )
    assert (choice.index, choice.reason) == (1, "least work ahead")


def test_the_hash_works_as_a_score() -> None:
    scores = ConsistentHashScorer().score(Query("m", 1, prefix=77), FLEET)
    assert scores == [float(i == chosen(Query("m", 1, prefix=77))) for i in range(8)]
