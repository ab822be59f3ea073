import random

import pytest

from gateway.core.decision import Candidate, Query
from gateway.core.value import replace
from gateway.policies.base import Policy
from gateway.policies.prefix_overlap import PrefixOverlap
from tests.policies.contract import PolicyContract, candidate


class TestPrefixOverlap(PolicyContract):
    def make(self) -> Policy:
        return PrefixOverlap()


@pytest.mark.parametrize(
    ("candidates", "chosen", "reason"),
    [
        ([candidate("a", overlap=992), candidate("b")], "a", "longest cached prefix"),
        (
            [candidate("a", overlap=992, booked=2000), candidate("b")],
            "b",
            "computing the prefix again is cheaper",
        ),
        ([candidate("a", overlap=992, booked=500), candidate("b")], "a", "longest cached prefix"),
        (
            [candidate("a", overlap=32, in_flight=1), candidate("b")],
            "b",
            "computing the prefix again is cheaper",
        ),
        ([candidate("a", in_flight=1), candidate("b")], "b", "no cached prefix"),
        ([candidate("a", waiting=4), candidate("b", in_flight=3)], "b", "no cached prefix"),
    ],
)
def test_the_least_predicted_work_wins(candidates: list[Candidate], chosen: str, reason: str) -> None:
    choice = PrefixOverlap().choose(Query("m", 1000), candidates, random.Random(0))
    assert candidates[choice.index].id == chosen
    assert choice.reason.startswith(reason)
    assert choice.terms[choice.index] == min(choice.terms)


def test_offloaded_blocks_count_in_part() -> None:
    policy = PrefixOverlap({"CPU": 0.75, "STORAGE": 0.5, "STORAGE@fast": 1.0})
    held = candidate("a", overlap=992)
    for media, to_load in (
        ((), 0),
        (("CPU",), 200),
        (("STORAGE@pool",), 400),
        (("STORAGE@fast",), 0),
        (("CPU", "STORAGE"), 200),
        (("TAPE",), 400),
    ):
        offloaded = replace(held, offloaded={media: 800} if media else {})
        choice = policy.choose(Query("m", 1000), [offloaded, candidate("b")], random.Random(0))
        assert (choice.index, choice.terms) == (0, (8 + to_load, 1000))
