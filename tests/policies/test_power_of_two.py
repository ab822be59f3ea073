import random

from gateway.core.decision import Query
from gateway.policies.base import Policy
from gateway.policies.power_of_two import PowerOfTwo
from tests.policies.contract import PolicyContract, candidate


class TestPowerOfTwo(PolicyContract):
    def make(self) -> Policy:
        return PowerOfTwo()


def test_the_busiest_worker_is_never_chosen_and_all_others_are() -> None:
    some = [candidate(name, booked=booked) for name, booked in zip("abcd", (0, 500, 900, 5000), strict=True)]
    rng = random.Random(1)
    chosen = [PowerOfTwo().choose(Query("m", 1000), some, rng).index for _ in range(600)]
    counts = [chosen.count(i) for i in range(4)]
    assert counts[3] == 0 and counts == sorted(counts, reverse=True) and counts[2] > 0
