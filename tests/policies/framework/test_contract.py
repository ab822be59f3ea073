"""Policies that break each rule of the contract are found."""

import random
from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import pytest

from gateway.core.decision import Candidate, Choice, Query
from gateway.policies.framework.contract import DECLARED, POLICY_CHECKS, run
from gateway.policies.framework.plugins import Kind

Choose = Callable[[Query, Sequence[Candidate], random.Random], Any]


class Given:
    name = "given"

    def __init__(self, choose: Choose) -> None:
        self.choose = choose


def least(candidates: Sequence[Candidate], rng: random.Random) -> Choice:
    costs = [each.booked_tokens for each in candidates]
    best = [i for i, cost in enumerate(costs) if cost == min(costs)]
    return Choice(rng.choice(best), "least", tuple(map(float, costs)))


def by_chance_of_its_own(query: Query, candidates: Sequence[Candidate], rng: random.Random) -> int:
    return random.randrange(len(candidates))


def drops(query: Query, candidates: list[Candidate], rng: random.Random) -> Choice:
    choice = least(candidates, rng)
    candidates[choice.index] = candidates[0]
    return choice


def first(query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Choice:
    return Choice(0, "the first", tuple(float(each.booked_tokens) for each in candidates))


BROKEN: dict[str, tuple[Choose, str]] = {
    "one candidate is chosen": (lambda q, c, rng: 1, "it returned the index 1 for 1 candidates"),
    "one of many candidates is chosen": (lambda q, c, rng: 0 if len(c) == 1 else len(c), "candidates"),
    "an unknown prompt is accepted": (
        lambda q, c, rng: int(0 / q.num_tokens),
        "ZeroDivisionError",
    ),
    "equal workers share the requests": (lambda q, c, rng: 0, "as [400, 0, 0, 0]; break ties with rng"),
    "candidates are not changed": (drops, "it changed the candidates"),
    "the same rng gives the same choices": (by_chance_of_its_own, "use rng alone for random numbers"),
    "the order of candidates does not matter": (first, "in another order led to another choice"),
    DECLARED: (lambda q, c, rng: (q.prefix or 0) % len(c), "reads query.prefix"),
}


@pytest.mark.parametrize("check", BROKEN)
def test_a_broken_rule_is_found(check: str) -> None:
    choose, words = BROKEN[check]
    results = {result.check: result.fault for result in run("policy", lambda: Given(choose), inf)}
    assert words in (results[check] or "")
    assert set(results) == set(POLICY_CHECKS)


def test_time_over_budget_is_found() -> None:
    faults = [
        each for each in run("policy", lambda: Given(lambda q, c, rng: least(c, rng)), 0.0) if each.fault
    ]
    assert [each.check for each in faults] == ["1000 candidates are within the budget"]
    assert "1000 candidates took" in (faults[0].fault or "")


@pytest.mark.parametrize(
    "choice", [Choice(0, ""), Choice(0, "x", (), -1.0), Choice(0, "x", (), float("nan"))]
)
def test_invalid_choices_are_found(choice: Choice) -> None:
    assert next(run("policy", lambda: Given(lambda q, c, rng: choice), inf)).fault


class Part:
    pull = "spread"

    def __init__(self, answer: Callable[..., Any]) -> None:
        self.keep = self.score = self.pick = answer


@pytest.mark.parametrize(
    ("kind", "answer", "fault"),
    [
        ("filter", lambda q, c: c[:2], None),
        ("filter", lambda q, c: [*c, *c], "each once"),
        ("scorer", lambda q, c: [0.5] * len(c), None),
        ("scorer", lambda q, c: [0.5], "it returned 1 scores for 2 candidates"),
        ("scorer", lambda q, c: [2.0] * len(c), "it returned 2.0, which is not from 0 to 1"),
        ("picker", lambda s, rng: rng.randrange(len(s)), None),
        ("picker", lambda s, rng: len(s), "it returned the index 1 for 1 scores"),
        ("picker", lambda s, rng: None, "it returned the index None for 1 scores"),
    ],
)
def test_parts_are_checked(kind: Kind, answer: Callable[..., Any], fault: str | None) -> None:
    result = next(run(kind, lambda: Part(answer), inf))
    assert (result.fault is None) if fault is None else fault in (result.fault or "")


def test_a_pull_is_reuse_or_spread() -> None:
    part = Part(lambda q, c: [0.5] * len(c))
    part.pull = "both"
    result = next(run("scorer", lambda: part, inf))
    assert result.fault == 'its pull is \'both\', neither "reuse" nor "spread"'


class ByPrefix:
    name, pull = "by_prefix", "reuse"

    def score(self, query: Query, candidates: Sequence[Candidate]) -> Sequence[float]:
        return [0.0 if query.prefix is None else 1.0 for _ in candidates]


class Keeps:
    def keep(self, query: Query, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        return candidates if query.session or query.prefix else candidates[:1]


@pytest.mark.parametrize(("kind", "make"), [("scorer", ByPrefix), ("filter", Keeps)])
def test_parts_that_read_the_prefix_declare_it(kind: Kind, make: type) -> None:
    faults = {result.check: result.fault for result in run(kind, make, inf)}
    assert "`reads_prefix = True`" in (faults[DECLARED] or "")
    declared = type("Declared", (make,), {"reads_prefix": True})
    assert not [result for result in run(kind, declared, inf) if result.fault]
