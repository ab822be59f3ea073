import random
from collections.abc import Sequence
from math import isnan
from typing import Any

import pytest

from gateway.core.decision import Candidate, Choice, Query
from gateway.policies.base import Filter, Policy, Pull
from gateway.policies.baselines import RoundRobin
from gateway.policies.framework.composed_policy import (
    CheckedPolicy,
    FilteredPolicy,
    PartError,
    ScoringPolicy,
    as_choice,
    twin_of,
)
from gateway.policies.least_load import LeastLoad, LoadScorer
from gateway.policies.pickers import Max
from gateway.policies.prefix_overlap import OverlapScorer, PrefixOverlap
from tests.policies.contract import PolicyContract, candidate

QUERY = Query("m", 1000)
SOME = [candidate("a", overlap=800, booked=4000), candidate("b", booked=2000), candidate("c", overlap=200)]


class Only:
    """Filter that keeps the named candidates."""

    def __init__(self, names: str) -> None:
        self.names = names

    def keep(self, query: Query, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        return [each for each in candidates if each.id in self.names]


class Says:
    pull: Pull = "spread"

    def __init__(self, *scores: float) -> None:
        self.scores = scores

    def score(self, query: Query, candidates: Sequence[Candidate]) -> Sequence[float]:
        return self.scores


def choose(policy: Policy, some: list[Candidate] = SOME) -> Choice:
    return policy.choose(QUERY, some, random.Random(1))


class TestScored(PolicyContract):
    def make(self) -> Policy:
        return ScoringPolicy("mine", {"held": (OverlapScorer(), 3), "load": (LoadScorer(), 1)}, Max())


class TestFiltered(PolicyContract):
    def make(self) -> Policy:
        return FilteredPolicy("mine", {"load": _NotTheBusiest()}, PrefixOverlap())


class _NotTheBusiest:
    def keep(self, query: Query, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        most = max(each.booked_tokens for each in candidates)
        return [each for each in candidates if each.booked_tokens < most]


def test_weights_decide() -> None:
    for weight, chosen in ((3, 0), (1, 2)):
        choice = choose(
            ScoringPolicy("mine", {"held": (OverlapScorer(), weight), "load": (LoadScorer(), 1)}, Max())
        )
        assert choice.index == chosen
    assert choice.reason == "held 0.20, load 1.00"
    assert choice.terms == (pytest.approx(0.4), pytest.approx(0.25), pytest.approx(0.6))


def test_filters_run_in_order_and_the_index_is_among_all_candidates() -> None:
    choice = choose(FilteredPolicy("mine", {"one": Only("bc"), "two": Only("ab")}, LeastLoad()))
    assert (choice.index, choice.reason) == (1, "least work ahead, of 1 workers left by the filters")
    assert [isnan(term) for term in choice.terms] == [True, False, True]


def test_a_filter_that_keeps_no_candidate_is_skipped() -> None:
    choice = choose(FilteredPolicy("mine", {"one": Only("xyz"), "two": Only("a")}, LeastLoad()))
    assert choice.index == 0
    assert choose(FilteredPolicy("mine", {"one": Only("")}, LeastLoad())) == choose(LeastLoad())


def test_a_policy_without_terms_has_none_behind_a_filter() -> None:
    assert choose(FilteredPolicy("mine", {"one": Only("bc")}, RoundRobin())).terms == ()


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (
            ScoringPolicy("mine", {"s": (Says(1.0), 1)}, Max()),
            "scorer 's' returned 1 scores for 3 candidates",
        ),
        (
            ScoringPolicy("mine", {"s": (Says(0, 1.5, 0), 1)}, Max()),
            "scorer 's' returned 1.5, which is not from 0 to 1",
        ),
        (ScoringPolicy("mine", {"s": (Says(0, float("nan"), 0), 1)}, Max()), "scorer 's' returned nan"),
        (
            ScoringPolicy("mine", {"s": (Says(0, 0, 0), 1)}, type("P", (), {"pick": lambda *_: 3})()),
            "the picker returned the index 3",
        ),
        (
            FilteredPolicy(
                "mine", {"f": type("F", (), {"keep": lambda *_: [candidate("x")]})()}, LeastLoad()
            ),
            "filter 'f'",
        ),
        (CheckedPolicy("mine", type("P", (), {"choose": lambda *_: -1})()), "it returned the index -1 for 3"),
    ],
)
def test_parts_with_invalid_results_are_named(policy: Policy, words: str) -> None:
    with pytest.raises(PartError, match=words):
        choose(policy)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "it returned None, neither an index nor a Choice"),
        (True, "it returned True"),
        (3, "it returned the index 3 for 3 candidates"),
        (-1, "it returned the index -1 for 3 candidates"),
        (Choice("0", "x"), "it returned the index '0' for 3 candidates"),  # type: ignore[arg-type]
        (Choice(0, "x", (1.0,)), "it returned 1 terms for 3 candidates"),
    ],
)
def test_invalid_choices_are_errors(answer: Any, words: str) -> None:
    with pytest.raises(PartError, match=words):
        as_choice(answer, 3)


def test_an_index_is_a_valid_choice() -> None:
    assert as_choice(2, 3) == Choice(2, "chosen by the policy")


def test_a_foreign_policy_gets_a_name_and_returns_choices() -> None:
    policy = CheckedPolicy("mine", RoundRobin())
    assert [choose(twin_of(policy)).index for _ in range(2)] == [0, 0]
    assert (policy.name, choose(policy).index, choose(policy).index) == ("mine", 0, 1)
    assert policy.explain(QUERY, SOME) == [{}] * 3


def test_a_twin_chooses_without_changing_the_policy() -> None:
    policy = FilteredPolicy("mine", {"one": Only("abc")}, RoundRobin())
    assert [choose(twin_of(policy)).index for _ in range(3)] == [0, 0, 0]
    assert [choose(policy).index for _ in range(3)] == [0, 1, 2]
    plain: Filter = Only("a")
    assert twin_of(plain) is plain


def test_a_filtered_policy_explains_its_inner_policy() -> None:
    assert FilteredPolicy("mine", {}, LeastLoad()).explain(QUERY, SOME) == [{}] * 3
    explains = type("P", (), {"explain": lambda *_: [{"booked_s": 1.0}]})()
    assert FilteredPolicy("mine", {}, explains).explain(QUERY, SOME[:1]) == [{"booked_s": 1.0}]
