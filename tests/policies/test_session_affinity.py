import random

from gateway.core.decision import Query
from gateway.policies.base import Policy
from gateway.policies.session_affinity import SessionAffinity, SessionScorer
from tests.policies.contract import PolicyContract, candidate

FLEET = [candidate(name) for name in "abcdefgh"]


class TestSessionAffinity(PolicyContract):
    def make(self) -> Policy:
        return SessionAffinity()


def test_a_session_stays_and_sessions_are_spread() -> None:
    policy, rng = SessionAffinity(), random.Random(1)
    chosen = {
        session: {policy.choose(Query("m", 0, session), FLEET, rng).index for _ in range(10)}
        for session in map(str, range(100))
    }
    assert all(len(indexes) == 1 for indexes in chosen.values())
    assert len(set.union(*chosen.values())) == 8


def test_a_preferred_worker_over_its_share_passes_its_session_on() -> None:
    policy, rng = SessionAffinity(), random.Random(1)
    home = policy.choose(Query("m", 0, "s"), FLEET, rng)
    assert home.reason == "preferred worker for the session"
    busy = [candidate(c.id, in_flight=50 if i == home.index else 0) for i, c in enumerate(FLEET)]
    other = policy.choose(Query("m", 0, "s"), busy, rng)
    assert (other.index != home.index, other.reason) == (
        True,
        "preferred worker for the session is over its share",
    )


def test_a_request_without_a_session_goes_by_load() -> None:
    choice = SessionAffinity().choose(
        Query("m", 0), [candidate("a", booked=9), candidate("b")], random.Random(1)
    )
    assert (choice.index, choice.reason) == (1, "least work ahead")


def test_affinity_works_as_a_score() -> None:
    home = SessionAffinity().choose(Query("m", 0, "s"), FLEET, random.Random(1)).index
    assert SessionScorer().score(Query("m", 0, "s"), FLEET) == [float(i == home) for i in range(8)]
    assert SessionScorer().score(Query("m", 0), FLEET) == [0.0] * 8
