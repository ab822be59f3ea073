import random

from gateway.core.decision import Query
from gateway.policies.base import Policy
from gateway.policies.least_load import LeastLoad
from tests.policies.contract import PolicyContract, candidate


class TestLeastLoad(PolicyContract):
    def make(self) -> Policy:
        return LeastLoad()


def test_load_decides_and_overlap_does_not() -> None:
    two = [candidate("a", overlap=999, booked=10), candidate("b")]
    assert LeastLoad().choose(Query("m", 1000), two, random.Random(0)).index == 1
    two = [candidate("a", in_flight=3), candidate("b", in_flight=2)]
    assert LeastLoad().choose(Query("m", 1000), two, random.Random(0)).index == 1
