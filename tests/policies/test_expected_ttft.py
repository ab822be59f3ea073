import random

import pytest

from gateway.core.blocks import BlockHash
from gateway.core.decision import Candidate, Query
from gateway.core.speed import Speed
from gateway.core.value import replace
from gateway.policies.base import ExplainingPolicy, Policy
from gateway.policies.expected_ttft import ExpectedTtft
from tests.policies.contract import PolicyContract, candidate

FAST = Speed(0.01, 1 / 20_000, 1e-8, 0.01, 1e-4, 4e-5)
SLOW = Speed(0.01, 1 / 10_000, 2e-8, 0.02, 2e-4, 8e-5)


class TestExpectedTtft(PolicyContract):
    def make(self) -> Policy:
        return ExpectedTtft()


def choose(*candidates: Candidate, tokens: int = 10_000, policy: ExpectedTtft | None = None) -> str:
    choice = (policy or ExpectedTtft()).choose(Query("m", tokens), candidates, random.Random(0))
    assert choice.terms[choice.index] == min(choice.terms)
    return candidates[choice.index].id


def one(
    name: str, speed: Speed = FAST, stays_s: float | None = None, usage: float = 0.0, **fields: int
) -> Candidate:
    made = replace(candidate(name, prompt=10_000, **fields), speed=speed, kv_usage=usage)
    return made if stays_s is None else replace(made, stays_s=stays_s)


@pytest.mark.parametrize(
    ("candidates", "chosen"),
    [
        ([one("held", overlap=8000), one("b")], "held"),
        ([one("held", overlap=8000, booked=7000), one("b")], "held"),
        ([one("held", overlap=8000, booked=10_000), one("b")], "b"),  # in an idle fleet that costs nothing
        ([one("fast"), one("slow", SLOW)], "fast"),
        ([one("fast", booked=30_000), one("slow", SLOW)], "slow"),  # a slow but idle worker is sooner
        ([one("busy", in_flight=40), one("b")], "b"),
        ([one("waits", waiting=9), one("b")], "b"),
        ([one("hot", stays_s=20.0), one("cold", stays_s=2000.0)], "cold"),  # blocks evicted there are older
        ([one("full", usage=0.99, in_flight=5), one("b", in_flight=8)], "b"),
    ],
)
def test_the_lowest_sum_of_ttft_and_cost_to_others_wins(candidates: list[Candidate], chosen: str) -> None:
    assert choose(*candidates) == chosen
    assert choose(*reversed(candidates)) == chosen


def test_offloaded_blocks_cost_a_transfer() -> None:
    held, offloaded = one("held", overlap=8000), replace(one("b", overlap=8000), offloaded={("DISK",): 8000})
    assert choose(offloaded, held) == "held"
    assert choose(offloaded, one("c")) == "b"


def test_a_busy_fleet_raises_the_price_of_computing_twice() -> None:
    idle, busy = ExpectedTtft(), ExpectedTtft()
    working = [one("a", booked=5000), one("b", booked=5000)]
    for _ in range(2000):
        busy.choose(Query("m", 10_000), working, random.Random(0))
    there = [one("held", overlap=8000, booked=45_000), one("b")]
    assert choose(*there, policy=idle) == "b"
    assert choose(*there, policy=busy) == "held"
    assert repr(busy) == "ExpectedTtft(TokenPrice({'m': 1.0}), CopyBudgets(0 prefixes))"


def test_each_model_has_its_own_load() -> None:
    policy = ExpectedTtft()
    for _ in range(2000):
        policy.choose(Query("other", 10_000), [one("a", booked=5000)], random.Random(0))
    assert choose(one("held", overlap=8000, booked=45_000), one("b"), policy=policy) == "b"


def test_the_prediction_is_the_ttft_alone() -> None:
    choice = ExpectedTtft().choose(Query("m", 10_000), [one("a", booked=10_000)], random.Random(0))
    assert choice.ttft_s == pytest.approx(0.01 + 20_000 / 20_000)
    assert choice.terms[0] > choice.ttft_s


@pytest.mark.parametrize(
    "candidates",
    [
        [one("a", overlap=500, booked=300, in_flight=4), one("b", SLOW, waiting=3)],
        [replace(one("a", overlap=500, stays_s=50.0, in_flight=2, usage=0.99), offloaded={("CPU",): 100})],
    ],
)
def test_the_explanation_adds_up_to_the_cost(candidates: list[Candidate]) -> None:
    policy = ExpectedTtft()
    assert isinstance(policy, ExplainingPolicy)
    choice = policy.choose(Query("m", 10_000), candidates, random.Random(0))
    for parts, term in zip(policy.explain(Query("m", 10_000), candidates), choice.terms, strict=True):
        assert sum(parts.values()) == pytest.approx(term)
        assert all(value >= 0 for value in parts.values())


def shares(*candidates: Candidate) -> dict[str, int]:
    policy, rng = ExpectedTtft(), random.Random(3)
    chosen = [policy.choose(Query("m", 10_000), candidates, rng).index for _ in range(200)]
    return {candidate.id: chosen.count(i) for i, candidate in enumerate(candidates)}


def test_idle_workers_that_look_alike_share_the_load() -> None:
    """The learnt speeds of equal engines differ by some percent."""
    slightly = replace(FAST, token_s=1.1 * FAST.token_s)
    got = shares(one("a"), one("b", slightly), one("slow", SLOW))
    assert got["slow"] == 0
    assert min(got["a"], got["b"]) > 70


@pytest.mark.parametrize("state", [{"in_flight": 1}, {"booked": 50}, {"overlap": -16}])
def test_what_a_worker_has_to_do_makes_a_difference_however_small(state: dict[str, int]) -> None:
    busier = one(
        "b", **{"overlap": 16} | {name: num + 16 * (name == "overlap") for name, num in state.items()}
    )
    assert shares(one("a", overlap=16), busier) == {"a": 200, "b": 0}


def test_without_reliable_predictions_the_least_work_decides() -> None:
    """A worker that was predicted to be slow is not avoided for that."""
    slow = one("slow", Speed(token_s=1.0), overlap=9900)
    busy, policy, rng = one("busy", booked=9000), ExpectedTtft(), random.Random(1)
    assert policy.choose(Query("m", 10_000), [slow, busy], rng).index == 1
    choice = policy.choose(Query("m", 10_000, predicts=False), [slow, busy], rng)
    assert (choice.index, choice.reason) == (0, "predictions are far off: longest prefix, least work ahead")
    assert choice.ttft_s and len(choice.terms) == 2


PREFIX = BlockHash(7)


def num_until_a_copy(held: Candidate, policy: ExpectedTtft | None = None, **query: int) -> int | None:
    """How many requests go where their prefix of 8,000 tokens is cached before one goes elsewhere, of 60
    within a second."""
    policy, rng = policy or ExpectedTtft(), random.Random(1)
    for num in range(60):
        asked = Query("m", 10_000, cached=PREFIX, cached_tokens=8000, now_s=num / 60, **query)
        if policy.choose(asked, [held, one("b")], rng).index:
            return num
    return None


def test_requests_wait_for_their_prefix_until_the_waits_pay_for_a_copy() -> None:
    """A copy takes .4 s more than the queue here; each request waits .2 s for its prefix."""
    waits = one("held", overlap=8000, booked=4000)
    assert num_until_a_copy(waits) == 2
    assert num_until_a_copy(one("held", overlap=8000)) is None
    policy = ExpectedTtft()
    for number in range(9):  # other prefixes pay for none of its copies
        other = Query("m", 10_000, cached=BlockHash(100 + number), cached_tokens=8000)
        policy.choose(other, [waits, one("b")], random.Random(1))
    assert num_until_a_copy(waits, policy) == 2


def test_a_prefix_that_is_computed_now_needs_no_copy() -> None:
    first = replace(one("held", overlap=8000, booked=8000), is_exact=True)
    assert num_until_a_copy(first, computing_tokens=8000) is None
    assert num_until_a_copy(first) is not None
    assert num_until_a_copy(replace(first, is_exact=False), computing_tokens=8000) is not None


def test_the_reason_says_that_cheaper_ones_are_too_far_behind() -> None:
    crowded = one("crowded", in_flight=40)
    choice = ExpectedTtft().choose(
        Query("m", 10_000), [one("behind", booked=10_000), crowded], random.Random(1)
    )
    assert choice.index == 1
    assert choice.reason == "cheaper workers have a much longer predicted TTFT"
