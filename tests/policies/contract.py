"""Contract of every policy, whatever it prefers."""

import random
from math import inf

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.core.decision import Candidate, Query
from gateway.core.worker import ServedModel, Worker, WorkerId
from gateway.policies.base import Policy
from gateway.policies.framework.contract import run


def candidate(name: str, *, prompt: int = 1000, overlap: int = 0, booked: int = 0, in_flight: int = 0,
              waiting: int = 0) -> Candidate:  # fmt: skip
    worker = Worker(WorkerId(name), f"http://{name}", (ServedModel("m", "m"),), block_size=16)
    return Candidate(worker, overlap, prompt - overlap, booked, in_flight, waiting)


CANDIDATES = st.lists(
    st.builds(
        candidate,
        st.uuids().map(str),
        overlap=st.integers(0, 999),
        booked=st.integers(0, 10**6),
        in_flight=st.integers(0, 300),
        waiting=st.integers(0, 300),
    ),
    min_size=1,
    max_size=20,
)


class PolicyContract:
    def make(self) -> Policy:
        raise NotImplementedError

    def test_a_policy_passes_the_public_contract(self) -> None:
        assert [result for result in run("policy", self.make, inf) if result.fault] == []

    @settings(suppress_health_check=[HealthCheck.differing_executors])  # each subclass runs it
    @given(CANDIDATES, st.integers())
    def test_the_choice_is_one_of_the_candidates(self, candidates: list[Candidate], seed: int) -> None:
        choice = self.make().choose(Query("m", 1000), candidates, random.Random(seed))
        assert 0 <= choice.index < len(candidates)
        assert choice.reason
        assert len(choice.terms) in (0, len(candidates))

    def test_equal_candidates_share_the_load(self) -> None:
        policy, rng = self.make(), random.Random(1)
        equals = [candidate(name) for name in "abcd"]
        chosen = [policy.choose(Query("m", 1000), equals, rng).index for _ in range(400)]
        assert all(60 <= chosen.count(i) <= 140 for i in range(4))
