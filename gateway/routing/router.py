"""The decision: which worker a request goes to, and why. One call, without I/O.

    tokens ─ hashes per (model root, block size) ─ index ─► overlap ─┐
                     fleet: workers up     ledger: work booked ──────┴─► policy ─► decision, booked

The server calls `decide` as any program can. A decision books its work at once, so that the next
one sees it; the caller must call `finish` exactly once (further calls do nothing), and
`first_token` when the prefill is over.
"""

import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice, pairwise
from typing import Final

from mypy_extensions import mypyc_attr

from gateway.core.blocks import BlockHash, count_tokens, root_hash
from gateway.core.decision import Candidate, Choice, Decided, Decision, PrefillChoice, Prompt, Query, Timings
from gateway.core.errors import NoWorker
from gateway.core.fleet import EligibleWorker, Fleet, HashGroup
from gateway.core.ledger import Booking, Ledger
from gateway.core.multimodal import Links
from gateway.core.pd_pairs import partners_of
from gateway.core.request import InferenceRequest
from gateway.core.route_table import RouteKind
from gateway.core.usage import Usage
from gateway.core.usage_reading import of_own_cache
from gateway.core.worker import WorkerId
from gateway.index.assumed import AssumedIndex
from gateway.index.base import Index
from gateway.index.sent_media import SentLinks
from gateway.observability.observers import Observers
from gateway.policies.base import Policy
from gateway.policies.disaggregation import DisaggregationPolicy
from gateway.policies.framework.composed_policy import twin_of
from gateway.routing.candidates import Lookup, Lookups, cached_prefix
from gateway.routing.learning import Learning, SpeedObservation
from gateway.routing.predictions import Predictions
from gateway.routing.query import query_of
from gateway.routing.speed_model import SpeedModels
from gateway.runtime.ids import new_id

MAX_LOOKED_AT: Final = 256
"""Open requests checked for a finished prefill at once; each costs a fraction of a microsecond."""

LOOK_EVERY_S: Final = 0.005
"""The interval of those checks: a prefill takes longer, and under load decisions come faster."""


Tokenize = Callable[[InferenceRequest], Prompt]
"""Local tokens for a request, or an empty Prompt where the model has no local tokenizer."""


@mypyc_attr(acyclic=True)
class _Open:
    """A decision that is not finished: its booking, its prompts' blocks, and for each prompt how many leading
    blocks events had reported; those behind them are pinned."""

    __slots__ = ("booking", "hashes", "firsts", "links", "was_run", "lesson")

    def __init__(
        self,
        booking: Booking,
        hashes: Sequence[Sequence[BlockHash]],
        firsts: Sequence[int],
        links: Sequence[BlockHash],
        lesson: SpeedObservation,
    ) -> None:
        self.booking = booking
        self.lesson = lesson
        self.hashes = hashes
        self.firsts = firsts
        self.links = links
        self.was_run = False

    @property
    def prompt(self) -> Sequence[BlockHash]:
        """Blocks of the last prompt."""
        return self.hashes[-1] if self.hashes else ()

    @property
    def adds_blocks(self) -> bool:
        return any([first < len(blocks) for first, blocks in zip(self.firsts, self.hashes, strict=True)])


@mypyc_attr(acyclic=True)
class _Weighed:
    """A choice among candidates, with the prefill worker where there is one."""

    __slots__ = ("candidates", "choice", "index", "split")

    def __init__(
        self, candidates: tuple[Candidate, ...], choice: Choice, index: int, split: PrefillChoice | None
    ) -> None:
        self.candidates = candidates
        self.choice = choice
        self.index = index
        self.split = split


class Router:
    """Routes the requests of one gateway. `clock` is monotonic seconds; `rng` breaks ties. Images count as
    cached for `keep_sent_s` where they were sent. `spare` excludes workers that take no more for now, and
    `on_freed` is called with each worker that has less work ahead (`tenancy/admission/`)."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        index: Index,
        assumed: AssumedIndex,
        policy: Policy,
        tokenize: Tokenize,
        ledger: Ledger | None = None,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
        keep_sent_s: float = 600.0,
        disaggregation: DisaggregationPolicy | None = None,
        speed_models: SpeedModels | None = None,
        observers: Observers | None = None,
    ) -> None:
        self.fleet = fleet
        self.index = index
        self.assumed = assumed
        self.policy = policy
        self.ledger = Ledger() if ledger is None else ledger
        self.tokenize = tokenize
        self.disaggregation = disaggregation
        self._clock = clock
        self._rng = rng or random.Random()
        self._open: dict[str, _Open] = {}
        self._prefilling: dict[str, _Open] = {}
        self._looked_s = 0.0
        self._sent = SentLinks(assumed, keep_sent_s)
        self.learning = Learning(fleet, index, speed_models, self.ledger)
        self._lookups = Lookups(index, assumed, self.ledger, self._sent)
        self.observers = observers or Observers()
        self.predictions = Predictions()
        self.reads_prefix = True
        self.spare: Callable[[list[EligibleWorker]], list[EligibleWorker]] | None = None
        self.on_freed: Callable[[WorkerId], None] | None = None

    def __repr__(self) -> str:
        return f"Router({self.policy.name}, {self.fleet}, open={len(self._open)})"

    def decide(
        self,
        request: InferenceRequest,
        *,
        prompt: Prompt | None = None,
        exclude: Collection[WorkerId] = (),
        attempt: int = 1,
        may_split: bool = False,
        twin: Policy | None = None,
    ) -> Decision:
        """Choose a worker and book the work there; with `may_split` perhaps a pair, and the work at both
        (then the caller must also call `prefilled`). `prompt` is given where the tokens are known already,
        `exclude` names workers that failed this request, `twin` is for `preview`. Raises UnknownModel or
        NoWorker.
        """
        began, now = time.perf_counter(), self._clock()
        self._see_prefilled(now)
        self.learning.look(now)
        eligible = self.fleet.eligible(request.model, exclude, request.path)
        if request.kind is RouteKind.COMPLETION and self.fleet.has_text_only and request.has_list_prompt:
            eligible = self.fleet.taking_lists(eligible, request.model)
        prompt = self.tokenize(request) if prompt is None else prompt
        has_prompt = time.perf_counter()
        prefills: Sequence[EligibleWorker] = ()
        is_bound = self.fleet.is_bound(request.model)
        if may_split and self.disaggregation is not None and (request.may_split or is_bound):
            prefills = self.fleet.prefills(request.model, exclude)
        if is_bound and not prefills:
            eligible = self.fleet.alone(eligible, request.model)
        if self.spare is not None and attempt == 1:
            eligible, prefills = self.spare(eligible), self.spare(list(prefills)) if prefills else ()
        hashed = self._lookups.hash_all(request, prompt, [*eligible, *prefills] if prefills else eligible)
        marks = began, has_prompt, time.perf_counter()
        with self.ledger.lock(count_tokens(prompt.tokens)):
            return self._choose(request, prompt, eligible, prefills, hashed, attempt, now, marks, twin)

    def preview(self, request: InferenceRequest, prompt: Prompt | None = None) -> Decision:
        """Return the decision that `decide` would make now, without booking it, notifying observers or
        changing a policy's state."""
        return self.decide(request, prompt=prompt, may_split=True, twin=twin_of(self.policy))

    def _choose(
        self,
        request: InferenceRequest,
        prompt: Prompt,
        eligible: Sequence[EligibleWorker],
        prefills: Sequence[EligibleWorker],
        hashed: Mapping[HashGroup, list[list[BlockHash]]],
        attempt: int,
        now: float,
        marks: tuple[float, float, float],
        twin: Policy | None,
    ) -> Decision:
        """Look up overlap and load, choose, and book; `marks` are the times of the stages before."""
        lookups = self._lookups.hold_all(prompt, hashed, now, reads_cache=request.reads_cache)
        has_overlap = time.perf_counter()
        query = self._query(request, prompt, eligible[0].group, hashed, lookups, now)
        made = self._weigh(twin, query, prompt, eligible, prefills, lookups, now)
        choice, chosen, group = made.choice, made.candidates[made.index], eligible[made.index].group
        decision = Decision(
            id=new_id(12),
            model=request.model,
            policy=choice.policy or self.policy.name,
            worker=chosen.worker,
            num_tokens=count_tokens((rendered := _rendered(prompt, group)).tokens),
            overlap_tokens=chosen.overlap_tokens,
            reason=choice.reason,
            candidates=made.candidates,
            terms=choice.terms,
            attempt=attempt,
            prompt_from=rendered.source,
            timings_s=_timings(*marks, has_overlap, time.perf_counter()),
            confirmed_tokens=_confirmed_tokens(lookups.get(group), chosen, group),
            split=made.split,
            query=query,
            ttft_s=choice.ttft_s,
        )
        if twin is None:
            self._book(decision, chosen, lookups, group, prompt.links)
            self.observers.notify_decided(Decided(decision, rendered, _blocks(lookups.get(group)), request))
        return decision

    def _query(
        self,
        request: InferenceRequest,
        prompt: Prompt,
        group: HashGroup,
        hashed: Mapping[HashGroup, list[list[BlockHash]]],
        lookups: Mapping[HashGroup, Lookup],
        now: float,
    ) -> Query:
        prefix, cached = hashed if self.reads_prefix else None, cached_prefix(lookups)
        return query_of(request, prompt, group, prefix, cached, now, predicts=self.predictions.holds)

    def _weigh(
        self,
        twin: Policy | None,
        query: Query,
        prompt: Prompt,
        eligible: Sequence[EligibleWorker],
        prefills: Sequence[EligibleWorker],
        lookups: Mapping[HashGroup, Lookup],
        now: float,
    ) -> _Weighed:
        candidates = self._lookups.candidates(eligible, lookups, prompt, now)
        choice = (twin or self.policy).choose(query, candidates, self._rng)
        others = self._lookups.candidates(prefills, lookups, prompt, now) if prefills else ()
        partners, is_real = partners_of(eligible, prefills), twin is None
        index, split = self._split(query, partners, candidates, choice.index, others, is_real=is_real)
        return _Weighed(candidates, choice, index, split)

    def hasher(self, request: InferenceRequest) -> Callable[[Prompt], None]:
        """Return a function that hashes a long prompt in a thread; `decide` then finds the hashes cached."""
        groups = {
            e.group for e in self.fleet.eligible(request.model, path=request.path) if e.group.block_size
        }

        def hash_ahead(prompt: Prompt) -> None:
            for group in groups:
                self._lookups.hash(prompt, group, request.cache_salt)

        return hash_ahead

    def asked_of(self, request: InferenceRequest, prompt: Prompt) -> list[tuple[BlockHash, list[BlockHash]]]:
        """Return the hashes that a decision will look up for a prompt, each with its model's root."""
        eligible = self.fleet.eligible(request.model, path=request.path)
        hashed = self._lookups.hash_all(request, prompt, eligible)
        return [
            (root_hash(group.root), blocks) for group, each in hashed.items() for blocks in each if blocks
        ]

    def first_token(self, decision: Decision, ttft_s: float | None = None) -> None:
        """The worker has prefilled the prompt: its tokens are cached there and no work ahead. `ttft_s` is
        since the request was sent, where its answer is streamed."""
        if opened := self._open.get(decision.id):
            self._prefilled(opened)
            predicted_s = None if decision.split is not None and decision.split.prefill else ttft_s
            self.learning.began(opened.lesson, predicted_s, self._clock())
            if decision.ttft_s is not None and predicted_s is not None:
                self.predictions.came(decision.ttft_s, predicted_s)

    def prefilled(self, decision: Decision, took_s: float | None = None, *, was_run: bool = True) -> bool:
        """Release the booking at a decision's prefill worker, which answered after `took_s`, or will not
        (`was_run`). False if it was released before."""
        opened = self._prefilling.pop(decision.id, None)
        if opened is None:
            return False
        now = self._clock()
        self.ledger.release(opened.booking, now)
        if self.on_freed is not None:
            self.on_freed(opened.booking.worker)
        self._unpin(opened, now, was_run=was_run)
        if was_run:
            self.learning.began(opened.lesson, took_s, now)
        return True

    def ahead_s(self, worker: WorkerId) -> float:
        """Return the predicted seconds of the work booked at a worker."""
        return self.ledger.load(worker).booked_tokens * self.learning.speed_models.speed(worker).token_s

    def prefilling(self) -> Sequence[Booking]:
        """Return the bookings of open prefill legs."""
        return [opened.booking for opened in self._prefilling.values()]

    def finish(self, decision: Decision, usage: Usage | None = None, answer_s: float = 0.0) -> bool:
        """Release the bookings of a decision; False if that was done before. `usage` is the engine's report
        of a complete answer, `answer_s` the time from its first token to its last where it was streamed."""
        opened = self._open.pop(decision.id, None)
        if opened is None:
            return False
        if decision.split is not None:
            self.prefilled(decision, was_run=False)
        now = self._clock()
        self.ledger.release(opened.booking, now)
        if self.on_freed is not None:
            self.on_freed(decision.worker.id)
        self._unpin(opened, now, was_run=opened.was_run)
        if opened.links:
            self._sent.index.unpin(decision.worker.id, opened.links, now, was_run=opened.was_run)
        if usage is not None:
            if answer_s and usage.completion_tokens:
                self.learning.ended(opened.lesson, usage.completion_tokens - 1, answer_s, now)
            self.observers.notify_answered(decision, opened.prompt, of_own_cache(usage, decision))
        return True

    def _see_prefilled(self, now: float) -> None:
        """Detect finished prefills by KV events, since an unstreamed answer shows nothing until its end:
        where all of a prompt's blocks are stored, its prefill is no longer work ahead. Checks the oldest."""
        if now - self._looked_s < LOOK_EVERY_S:
            return
        self._looked_s = now
        for opened in islice(self._open.values(), MAX_LOOKED_AT):
            if (
                not opened.was_run
                and not opened.links
                and opened.adds_blocks
                and self.index.holds(opened.booking.worker, opened.prompt)
            ):
                self._prefilled(opened)

    def _prefilled(self, opened: _Open) -> None:
        opened.was_run = True
        self.ledger.first_token(opened.booking, self._clock())
        if self.on_freed is not None:
            self.on_freed(opened.booking.worker)

    def _split(
        self,
        query: Query,
        partners: Sequence[Sequence[int]],
        candidates: tuple[Candidate, ...],
        direct: int,
        there: tuple[Candidate, ...],
        *,
        is_real: bool,
    ) -> tuple[int, PrefillChoice | None]:
        """Return the candidate that answers, and the plan for computing its prompt. Raises NoWorker."""
        if not there or self.disaggregation is None:
            return direct, None
        plan = self.disaggregation.choose(
            query, candidates, direct, there, partners, self._rng, is_real=is_real
        )
        if plan.prefill is None and candidates[plan.decode].worker.is_bound:
            raise NoWorker("no prefill worker is available for this request; retry", retry_after_s=1)
        prefill = there[plan.prefill] if plan.prefill is not None else None
        return plan.decode, PrefillChoice(plan.reason, prefill, plan.direct_s, plan.split_s, there)

    def _book(
        self,
        decision: Decision,
        chosen: Candidate,
        lookups: Mapping[HashGroup, Lookup],
        group: HashGroup,
        links: Links | None,
    ) -> None:
        """Book the work, and pin the blocks that it will add to those that events reported."""
        uncached, split, lookup = chosen.uncached_tokens, decision.split, lookups.get(group)
        if split is not None and (prefill := split.prefill) is not None:
            self._prefilling[decision.id] = self._pin(
                decision, prefill, prefill.uncached_tokens, lookup, None
            )
            uncached = 0
        self._open[decision.id] = self._pin(decision, chosen, uncached, lookup, links)

    def _pin(
        self,
        decision: Decision,
        chosen: Candidate,
        uncached_tokens: int,
        lookup: Lookup | None,
        links: Links | None,
    ) -> _Open:
        name = chosen.worker.id
        booking = self.ledger.book(name, uncached_tokens, decision.num_tokens, self._clock())
        hashes: Sequence[Sequence[BlockHash]] = lookup.hashes if lookup else ()
        firsts = [overlap.get(name, 0) for overlap in lookup.overlaps] if lookup else []
        for blocks, first in zip(hashes, firsts, strict=True):
            self.assumed.pin(name, blocks, first)
        behind = links.hashes if links else ()
        if behind:
            self._sent.index.pin(name, behind)
        lesson = self.learning.booked(chosen, uncached_tokens)
        return _Open(booking, hashes, firsts, behind, lesson)

    def _unpin(self, opened: _Open, now: float, *, was_run: bool) -> None:
        for blocks, first in zip(opened.hashes, opened.firsts, strict=True):
            self.assumed.unpin(opened.booking.worker, blocks, now, first, was_run=was_run)


def _rendered(prompt: Prompt, group: HashGroup) -> Prompt:
    return prompt.rendered_by(group.rendering) if prompt.others else prompt


def _confirmed_tokens(used: Lookup | None, chosen: Candidate, group: HashGroup) -> int:
    return used.overlaps[-1].get(chosen.worker.id, 0) * group.block_size if used else 0


def _timings(*marks: float) -> Timings:
    return Timings(*[end - begin for begin, end in pairwise(marks)])


def _blocks(lookup: Lookup | None) -> Sequence[Sequence[BlockHash]]:
    return lookup.hashes if lookup else ()
