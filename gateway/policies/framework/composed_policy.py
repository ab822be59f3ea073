"""Policies that are put together of parts, as the configuration says:

[policies.mine]
filters = ["topology"]                               eligible candidates; one that leaves none is skipped
scorers = { prefix_overlap = 3, least_load = 1 }     how good is each, by weight
picker = "max"                                       one of the scores
policy = "prefix_overlap"                            in place of scorers and picker: who chooses
"""

import random
from collections.abc import Mapping, Sequence
from math import nan
from typing import Any, TypeVar, cast

from gateway.core.decision import Candidate, Choice, Query
from gateway.policies.base import (
    ExplainingPolicy,
    Filter,
    Picker,
    Policy,
    Scorer,
    StatefulPolicy,
    reads_prefix,
)

Part = TypeVar("Part", Policy, Filter)


class PartError(Exception):
    """A policy or part that returned an invalid result."""


class ScoringPolicy:
    """A composition of scorers: the picker's choice by the weighted mean of all scores."""

    def __init__(self, name: str, scorers: Mapping[str, tuple[Scorer, float]], picker: Picker) -> None:
        self.name = name
        total = sum(weight for _, weight in scorers.values())
        self._scorers = [(part, scorer, weight / total) for part, (scorer, weight) in scorers.items()]
        self._picker = picker
        self.reads_prefix = any(reads_prefix(scorer) for scorer, _ in scorers.values())

    def __repr__(self) -> str:
        return f"ScoringPolicy({self.name}, {[name for name, _, _ in self._scorers]})"

    def choose(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Choice:
        """The reason has what each scorer said of the chosen one."""
        num = len(candidates)
        sums = [0.0] * num
        said = []
        for name, scorer, weight in self._scorers:
            scores = scorer.score(query, candidates)
            if len(scores) != num:
                raise PartError(f"scorer '{name}' returned {len(scores)} scores for {num} candidates")
            for i, score in enumerate(scores):
                if not 0.0 <= score <= 1.0:
                    raise PartError(f"scorer '{name}' returned {score}, which is not from 0 to 1")
                sums[i] += weight * score
            said.append((name, scores))
        index = self._picker.pick(sums, rng)
        if not 0 <= index < num:
            raise PartError(f"the picker returned the index {index} for {num} scores")
        reason = ", ".join([f"{name} {scores[index]:.2f}" for name, scores in said])
        return Choice(index, reason, tuple(sums))


class CheckedPolicy:
    """Somebody's policy, named as it was asked for; what it answers is a Choice, or PartError."""

    def __init__(self, name: str, policy: Policy) -> None:
        self.name = name
        self._policy = policy
        self.reads_prefix = reads_prefix(policy)

    def __repr__(self) -> str:
        return f"CheckedPolicy({self.name}, {self._policy!r})"

    def twin(self) -> "CheckedPolicy":
        return CheckedPolicy(self.name, twin_of(self._policy))

    def choose(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Choice:
        return as_choice(self._policy.choose(query, candidates, rng), len(candidates))

    def explain(self, query: Query, candidates: Sequence[Candidate]) -> Sequence[Mapping[str, float]]:
        return explained(self._policy, query, candidates)


class FilteredPolicy:
    """A policy's choice among the candidates that all filters keep; the others have no term (nan)."""

    def __init__(self, name: str, filters: Mapping[str, Filter], policy: Policy) -> None:
        self.name = name
        self._filters = filters
        self._policy = policy
        self.reads_prefix = any(map(reads_prefix, [policy, *filters.values()]))

    def __repr__(self) -> str:
        return f"FilteredPolicy({self.name}, {list(self._filters)}, {self._policy!r})"

    def twin(self) -> "FilteredPolicy":
        filters = {name: twin_of(part) for name, part in self._filters.items()}
        return FilteredPolicy(self.name, filters, twin_of(self._policy))

    def choose(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Choice:
        kept = candidates
        for name, part in self._filters.items():
            left = part.keep(query, kept)
            if left and left is not kept:
                given = {candidate.id for candidate in kept}
                if not all([candidate.id in given for candidate in left]):
                    raise PartError(f"filter '{name}' kept a worker that it was not given")
                kept = left
        choice = self._policy.choose(query, kept, rng)
        if kept is candidates:
            return choice
        places = {candidate.id: i for i, candidate in enumerate(candidates)}
        there = [places[candidate.id] for candidate in kept]
        terms = [nan] * len(candidates) if choice.terms else []
        for i, term in zip(there, choice.terms, strict=False):
            terms[i] = term
        reason = (
            f"{choice.reason}, of {len(kept)} workers left by the filters"
            if len(kept) < len(candidates)
            else ""
        )
        return Choice(there[choice.index], reason or choice.reason, tuple(terms), choice.ttft_s)

    def explain(self, query: Query, candidates: Sequence[Candidate]) -> Sequence[Mapping[str, float]]:
        """Return the explanation of the policy behind the filters, if it has one."""
        return explained(self._policy, query, candidates)


def explained(policy: Policy, query: Query, candidates: Sequence[Candidate]) -> Sequence[Mapping[str, float]]:
    """Return the parts of each candidate's cost; empty for policies that do not explain them."""
    return (
        policy.explain(query, candidates)
        if isinstance(policy, ExplainingPolicy)
        else [{} for _ in candidates]
    )


def as_choice(answer: Any, num_candidates: int) -> Choice:
    """Return a policy's result as a Choice, also where it is only an index. Raises PartError otherwise."""
    choice = Choice(answer, "chosen by the policy") if type(answer) is int else answer
    if not isinstance(choice, Choice):
        if isinstance(answer, Candidate):
            raise PartError("it returned a candidate; return its index or a Choice")
        raise PartError(f"it returned {answer!r:.80}, neither an index nor a Choice")
    index: object = choice.index  # its declared type is unchecked
    if not isinstance(index, int) or not 0 <= index < num_candidates:
        raise PartError(f"it returned the index {index!r:.80} for {num_candidates} candidates")
    fields: tuple[object, object] = choice.ttft_s, choice.reason
    if not isinstance(fields[0], int | float | None) or not isinstance(fields[1], str):
        raise PartError(f"its choice has the ttft_s {fields[0]!r:.80} and the reason {fields[1]!r:.80}")
    if choice.terms and len(choice.terms) != num_candidates:
        raise PartError(f"it returned {len(choice.terms)} terms for {num_candidates} candidates")
    return choice


def twin_of(part: Part) -> Part:
    """Return a copy of a part for trial choices, which leaves the part's state unchanged."""
    return cast(Part, part.twin()) if isinstance(part, StatefulPolicy) else part
