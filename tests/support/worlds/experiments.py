"""Decisions of policies that only watch."""

import random
from collections.abc import Sequence
from typing import Any

from gateway import request
from gateway.core.decision import Candidate, Choice, Decided, Decision, Prompt, Query
from gateway.core.value import replace
from gateway.routing.experiments import PolicyExperiments
from tests.support.fakes import decision


class FakePolicy:
    """Policy with a fixed choice and perhaps a predicted TTFT."""

    name = "says"

    def __init__(self, index: int, ttft_s: float | None = None) -> None:
        self.index, self.ttft_s = index, ttft_s

    def choose(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Choice:
        return Choice(self.index, "said", (), self.ttft_s)


REQUEST = request("/v1/completions", {"model": "m", "prompt": [1]})


def made_decision(id: str = "d1", **more: Any) -> Decision:
    return replace(decision(id, "a:1", "b:1"), query=Query("m", 100), **more)


def decide(experiments: PolicyExperiments, *decisions: Decision) -> None:
    for each in decisions:
        experiments.decided(Decided(each, Prompt(), (), REQUEST))
