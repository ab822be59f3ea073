import random

import pytest

from gateway.core.decision import Candidate, Query
from gateway.core.speed import Speed
from gateway.core.value import replace
from gateway.costs.cost_model import ttft_s
from gateway.costs.token_work import WORTH
from gateway.policies.base import ExplainingPolicy, Policy
from gateway.policies.latency_slo import HeadroomScorer, LatencySlo
from tests.policies.contract import PolicyContract, candidate

PACE = Speed(start_s=0.1, token_s=0.001, seq_s=0.0001)


def at(name: str, **more: int) -> Candidate:
    """Candidate that computes a thousand tokens per second."""
    return replace(candidate(name, **more), speed=PACE)


def chosen(query: Query, *some: Candidate) -> tuple[str, str]:
    choice = LatencySlo().choose(query, some, random.Random(1))
    assert choice.ttft_s == choice.terms[choice.index] == ttft_s(some[choice.index], WORTH)
    return some[choice.index].id, choice.reason


class TestLatencySlo(PolicyContract):
    def make(self) -> Policy:
        return LatencySlo()


def test_in_time_the_largest_overlap_wins() -> None:
    holder, idle = at("holder", overlap=900, booked=1000), at("idle")
    assert chosen(Query("m", 1000, slo_ttft_s=3.0), holder, idle) == (
        "holder",
        "meets the SLO with the fewest tokens to compute",
    )
    assert chosen(Query("m", 1000, slo_ttft_s=1.15), holder, idle)[0] == "idle"


def test_where_no_worker_is_in_time_the_fastest_is_chosen() -> None:
    late, later = at("late", booked=5000), at("later", overlap=900, booked=9000)
    assert chosen(Query("m", 1000, slo_ttft_s=0.5), later, late) == (
        "late",
        "no worker meets the SLO: lowest predicted TTFT",
    )


def test_a_sheddable_request_goes_to_a_worker_that_is_late_already() -> None:
    some = [at("idle"), at("late", booked=5000), at("later", booked=9000)]
    assert chosen(Query("m", 1000, slo_ttft_s=2.0), *some)[0] == "idle"
    shed = Query("m", 1000, slo_ttft_s=2.0, priority=-1)
    assert chosen(shed, *some) == ("late", "negative priority: leaves the faster workers to others")
    assert chosen(shed, some[0])[0] == "idle"


def test_running_answers_slow_a_prompt_down() -> None:
    assert ttft_s(at("a", in_flight=10), WORTH) == pytest.approx(0.1 + 1000 * 0.002)


def test_the_explanation_adds_up_to_the_cost() -> None:
    policy, some = LatencySlo(), at("a", overlap=200, booked=300, in_flight=7)
    assert isinstance(policy, ExplainingPolicy)
    (terms,) = policy.explain(Query("m", 1000), [some])
    assert sum(terms.values()) == pytest.approx(ttft_s(some, WORTH))
    assert (terms["booked_s"], terms["prefill_s"]) == pytest.approx((0.51, 1.36))


def test_headroom_works_as_a_score() -> None:
    some = [at("a"), at("b", booked=10_000)]
    assert HeadroomScorer().score(Query("m", 1000, slo_ttft_s=2.2), some) == [pytest.approx(0.5), 0.0]
    assert HeadroomScorer().score(Query("m", 1000, slo_ttft_s=0.0), some) == [0.0, 0.0]
