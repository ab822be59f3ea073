"""The contract of policies: checks that every policy must pass, whatever it prefers.

A check gets a maker of policies, so that each begins with one that has seen nothing, and raises
ContractViolation with what is wrong. Chance has fixed seeds: the same policy always passes, or always fails.
"""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

from gateway.core.decision import Candidate, Choice, Query
from gateway.core.speed import Speed
from gateway.core.value import astuple
from gateway.core.worker import ServedModel, Worker, WorkerId
from gateway.policies.base import Filter, Picker, Policy, Scorer, reads_prefix
from gateway.policies.framework.composed_policy import PartError, as_choice
from gateway.policies.framework.guard import where
from gateway.policies.framework.plugins import Kind, kind_of

MANY = 1000
ROUNDS = 20
TIES = 400


DECLARED = "reading query.prefix is declared"


class ContractViolation(Exception):
    """A violation of the contract."""


@dataclass(frozen=True, slots=True)
class ContractResult:
    """Result of one check; `fault` is None if it passed."""

    check: str
    fault: str | None


def candidate(name: str, rng: random.Random | None = None, num_tokens: int = 1000) -> Candidate:
    """Return a candidate, idle or in a random state."""
    worker = Worker(
        WorkerId(name),
        f"http://{name}",
        (ServedModel("m", "m"),),
        block_size=16,
        topology=rng.choice(["", "zone1/rack1", "zone1/rack2"]) if rng else "",
    )
    if rng is None:
        return Candidate(worker, 0, num_tokens, 0, 0)
    overlap = rng.randrange(max(num_tokens, 1)) // 16 * 16
    return Candidate(
        worker,
        overlap,
        num_tokens - overlap,
        booked_tokens=rng.randrange(50_000),
        num_in_flight=rng.randrange(100),
        num_waiting=rng.choice([0, 0, rng.randrange(100)]),
        kv_usage=rng.choice([0.0, 1.0, rng.random()]),
        is_exact=rng.random() < 0.5,
        confidence=rng.choice([1.0, 0.5]),
        offloaded={("CPU",): overlap // 2} if overlap and rng.random() < 0.5 else {},
        assumed_tokens=0,
        speed=Speed(token_s=rng.choice([1 / 8000, 1 / 4000])),
    )


def fleet(num: int, seed: int, num_tokens: int = 1000) -> list[Candidate]:
    rng = random.Random(seed)
    return [candidate(f"10.0.{i // 250}.{i % 250}:8000", rng, num_tokens) for i in range(num)]


def queries(seed: int, num_tokens: int = 1000) -> Iterator[Query]:
    """Yield queries with no optional field, and with random ones."""
    rng = random.Random(seed)
    yield Query("m", num_tokens)
    while True:
        yield Query(
            "m",
            num_tokens,
            session=rng.choice([None, f"s{rng.randrange(5)}"]),
            tenant=rng.choice([None, f"t{rng.randrange(3)}"]),
            adapter=rng.choice([None, "lora"]),
            priority=rng.choice([0, -1, 1]),
            slo_ttft_s=rng.choice([None, 0.0, 0.5, 10.0]),
            prefix=rng.choice([None, rng.getrandbits(64)]) if num_tokens else None,
        )


Make = Callable[[], Policy]


def _choose(policy: Policy, query: Query, some: Sequence[Candidate], rng: random.Random) -> Choice:
    try:
        choice = as_choice(policy.choose(query, some, rng), len(some))
    except PartError as exc:
        raise ContractViolation(str(exc)) from exc
    if not isinstance(choice.reason, str) or not choice.reason:
        raise ContractViolation(f"its reason is {choice.reason!r}, not a text")
    if choice.ttft_s is not None and not choice.ttft_s >= 0:
        raise ContractViolation(f"it predicted {choice.ttft_s} seconds")
    return choice


def one_candidate(make: Make, budget_s: float) -> None:
    policy, asked = make(), queries(1)
    for seed in range(ROUNDS):
        _choose(policy, next(asked), fleet(1, seed), random.Random(seed))


def many_candidates(make: Make, budget_s: float) -> None:
    policy, asked = make(), queries(2)
    for seed in range(10 * ROUNDS):
        _choose(policy, next(asked), fleet(2 + seed % 20, seed), random.Random(seed))


def unknown_prompt(make: Make, budget_s: float) -> None:
    policy, asked = make(), queries(3, num_tokens=0)
    for seed in range(ROUNDS):
        _choose(policy, next(asked), fleet(1 + seed % 8, seed, num_tokens=0), random.Random(seed))


def ties_are_spread(make: Make, budget_s: float) -> None:
    policy, rng, num = make(), random.Random(4), 4
    equals = [candidate(f"w{i}:8000") for i in range(num)]
    counts = [0] * num
    for _ in range(TIES):
        counts[_choose(policy, Query("m", 1000), equals, rng).index] += 1
    if min(counts) < TIES / num / 2:
        raise ContractViolation(
            f"{TIES} requests went to {num} equal workers as {counts}; break ties with rng"
        )


def never_mutates(make: Make, budget_s: float) -> None:
    policy, asked = make(), queries(5)
    for seed in range(ROUNDS):
        some = fleet(8, seed)
        _choose(policy, next(asked), some, random.Random(seed))
        if some != fleet(8, seed):  # compiled values cannot be copied
            raise ContractViolation("it changed the candidates")


def is_deterministic(make: Make, budget_s: float) -> None:
    """Chance is the rng it is given, and time none of its business."""
    one, other = _seen(make()), _seen(make())
    if one != other:
        raise ContractViolation(
            "the same requests and the same rng led to other choices; use rng alone for random numbers"
        )


def _seen(policy: Policy) -> list[WorkerId]:
    asked, rng, chosen = queries(6), random.Random(6), []
    for seed in range(ROUNDS):
        some = fleet(8, seed)
        chosen.append(some[_choose(policy, next(asked), some, rng).index].id)
    return chosen


def order_means_nothing(make: Make, budget_s: float) -> None:
    """Check that the order of candidates is ignored where all terms differ; else chance may decide."""
    asked = queries(7)
    for seed in range(ROUNDS):
        some, query = fleet(8, seed), next(asked)
        choice = _choose(make(), query, some, random.Random(seed))
        known = [term for term in choice.terms if not isnan(term)]
        if not known or len(set(known)) < len(known):
            continue
        turned = some[::-1]
        again = turned[_choose(make(), query, turned, random.Random(seed)).index]
        if again.id != some[choice.index].id:
            raise ContractViolation("the same candidates in another order led to another choice")


class _Watched(Query):
    """A query that raises where its prefix is read; by interpreted code, as that of plugins is."""

    def __getattribute__(self, name: str) -> Any:
        if name == "prefix":
            raise _PrefixRead
        return object.__getattribute__(self, name)


class _PrefixRead(BaseException):
    """Not an Exception, so that no policy catches it."""


def declares_what_it_reads(make: Callable[[], Any], budget_s: float) -> None:
    """`query.prefix` is None for policies, filters and scorers that do not declare that they read it."""
    part, asked = make(), queries(12)
    if reads_prefix(part):
        return
    try:
        for seed in range(5 * ROUNDS):
            _ask(part, _watched(next(asked)), fleet(1 + seed % 8, seed), random.Random(seed))
    except _PrefixRead as exc:
        raise ContractViolation(
            "it reads query.prefix, which is None unless it declares `reads_prefix = True`"
        ) from exc


def _watched(query: Query) -> Query:
    return _Watched(*astuple(query))


def _ask(part: Any, query: Query, some: Sequence[Candidate], rng: random.Random) -> None:
    match kind_of(part):
        case "filter":
            part.keep(query, some)
        case "scorer":
            part.score(query, some)
        case _:
            _choose(part, query, some, rng)


def within_budget(make: Make, budget_s: float) -> None:
    policy, asked, some = make(), queries(8), fleet(MANY, 8)
    took_s = []
    for seed in range(9):
        query, rng = next(asked), random.Random(seed)
        began = time.perf_counter()
        _choose(policy, query, some, rng)
        took_s.append(time.perf_counter() - began)
    if (median_s := sorted(took_s)[4]) > budget_s:
        raise ContractViolation(
            f"{MANY} candidates took {median_s * 1e3:.2f} ms, the budget is {budget_s * 1e3:g} ms"
        )


POLICY_CHECKS: Mapping[str, Callable[[Make, float], None]] = {
    "one candidate is chosen": one_candidate,
    "one of many candidates is chosen": many_candidates,
    "an unknown prompt is accepted": unknown_prompt,
    "equal workers share the requests": ties_are_spread,
    "candidates are not changed": never_mutates,
    "the same rng gives the same choices": is_deterministic,
    "the order of candidates does not matter": order_means_nothing,
    DECLARED: declares_what_it_reads,
    f"{MANY} candidates are within the budget": within_budget,
}


def _filter(make: Callable[[], Filter], budget_s: float) -> None:
    part, asked = make(), queries(9)
    for seed in range(5 * ROUNDS):
        some = fleet(1 + seed % 20, seed)
        ids = [each.id for each in some]
        kept = [each.id for each in part.keep(next(asked), some)]
        if not set(kept) <= set(ids) or len(set(kept)) < len(kept):
            raise ContractViolation(
                f"of {len(ids)} candidates it kept {kept}; return some of them, each once"
            )


def _scorer(make: Callable[[], Scorer], budget_s: float) -> None:
    part = make()
    if getattr(part, "pull", "spread") not in ("reuse", "spread"):
        raise ContractViolation(f'its pull is {part.pull!r}, neither "reuse" nor "spread"')
    for num_tokens in (1000, 0):
        asked = queries(10, num_tokens)
        for seed in range(5 * ROUNDS):
            some = fleet(1 + seed % 20, seed, num_tokens)
            scores = part.score(next(asked), some)
            if len(scores) != len(some):
                raise ContractViolation(f"it returned {len(scores)} scores for {len(some)} candidates")
            wrong = [score for score in scores if not 0 <= score <= 1]
            if wrong:
                raise ContractViolation(f"it returned {wrong[0]}, which is not from 0 to 1")


def _picker(make: Callable[[], Picker], budget_s: float) -> None:
    part, chance = make(), random.Random(11)
    for seed in range(5 * ROUNDS):
        scores = [chance.choice([0.0, 1.0, chance.random()]) for _ in range(1 + seed % 20)]
        for some in (scores, [0.0] * len(scores)):
            index = part.pick(some, random.Random(seed))
            if type(index) is not int or not 0 <= index < len(some):
                raise ContractViolation(f"it returned the index {index!r} for {len(some)} scores")


CHECKS: Mapping[Kind, Mapping[str, Callable[..., None]]] = {
    "policy": POLICY_CHECKS,
    "filter": {"some of the candidates are kept": _filter, DECLARED: declares_what_it_reads},
    "scorer": {"each candidate has a score from 0 to 1": _scorer, DECLARED: declares_what_it_reads},
    "picker": {"one of the scores is picked": _picker},
}


def run(kind: Kind, make: Callable[[], object], budget_s: float) -> Iterator[ContractResult]:
    """Each check, and what was found."""
    for name, check in CHECKS[kind].items():
        try:
            check(make, budget_s)
        except ContractViolation as exc:
            yield ContractResult(name, str(exc))
        except Exception as exc:  # noqa: BLE001  others' code: what it raises is what is wrong
            yield ContractResult(name, where(exc))
        else:
            yield ContractResult(name, None)
