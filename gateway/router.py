"""The decision: which worker a request goes to, and why. One call, without I/O.

    tokens ─ hashes per (model root, block size) ─ index ─► overlap ─┐
                     fleet: who is up      ledger: work booked ──────┴─► policy ─► decision, booked

The server calls `decide` as any program can. A decision books its work at once, so that the next
one sees it; whoever asked must call `finish` exactly once (further calls do nothing), and
`first_token` when the prefill is over.
"""

import logging
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice, pairwise

from mypy_extensions import mypyc_attr

from gateway.core.blocks import SMALL_BLOCK, BlockHash, HashCache, Space, prompt_extra_keys, root_hash
from gateway.core.decision import Candidate, Decision, Prompt, Query, Timings, Witness
from gateway.core.fleet import Eligible, Fleet, Group
from gateway.core.ledger import Booking, Ledger
from gateway.core.media import Links
from gateway.core.request import InferenceRequest
from gateway.core.runs import hash_continued
from gateway.core.sse import Usage
from gateway.core.stream import StreamState
from gateway.core.worker import WorkerId
from gateway.ids import new_id
from gateway.index.assumed import AssumedIndex
from gateway.index.base import Index
from gateway.index.sent import SentLinks
from gateway.policies.base import Policy

log = logging.getLogger("kvgate.router")

MAX_LOOKED_AT = 256
"""Open requests whose prefill is looked after at once; each costs a fraction of a microsecond."""

LOOK_EVERY_S = 0.005
"""How often: a prefill takes longer, and under load decisions come faster."""


Tokenize = Callable[[InferenceRequest], Prompt]
"""Local tokens for a request, or an empty Prompt where the model has no local tokenizer."""


@mypyc_attr(acyclic=True)
class _Open:
    """A decision that is not finished: its booking, the blocks it pinned, its (last) prompt's blocks."""

    __slots__ = ("booking", "hashes", "prompt", "links", "was_run")

    def __init__(
        self,
        booking: Booking,
        hashes: Sequence[BlockHash],
        prompt: Sequence[BlockHash],
        links: Sequence[BlockHash],
    ) -> None:
        self.booking = booking
        self.hashes = hashes
        self.prompt = prompt
        self.links = links
        self.was_run = False


@mypyc_attr(acyclic=True)
class _Lookup:
    """One group's block hashes per prompt; by worker, the blocks that its events tell of each prompt
    and the leading tokens that it holds or will hold of all of them."""

    __slots__ = ("hashes", "told", "held_tokens", "spilled")

    def __init__(self, hashes: list[list[BlockHash]]) -> None:
        self.hashes = hashes
        self.told: list[Mapping[WorkerId, int]] = []
        self.held_tokens: dict[WorkerId, int] = {}
        self.spilled: dict[WorkerId, dict[tuple[str, ...], int]] = {}


class Router:
    """`clock` is monotonic seconds; `rng` breaks ties. Images count as cached for `keep_sent_s` where they
    were sent."""

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
    ) -> None:
        self.fleet = fleet
        self.index = index
        self.assumed = assumed
        self.policy = policy
        self.ledger = Ledger() if ledger is None else ledger
        self.tokenize = tokenize
        self._clock = clock
        self._rng = rng or random.Random()
        self._open: dict[str, _Open] = {}
        self._hashes = HashCache()
        self._looked_s = 0.0
        self._sent = SentLinks(assumed, keep_sent_s)
        self.witnesses: list[Witness] = []

    def __repr__(self) -> str:
        return f"Router({self.policy.name}, {self.fleet}, open={len(self._open)})"

    def decide(
        self,
        request: InferenceRequest,
        *,
        prompt: Prompt | None = None,
        exclude: Collection[WorkerId] = (),
        attempt: int = 1,
    ) -> Decision:
        """Choose a worker and book the work there. `prompt` is given where the tokens are known already,
        `exclude` names workers that failed this request. Raises UnknownModel or NoWorker.
        """
        began, now = time.perf_counter(), self._clock()
        self._see_prefilled(now)
        eligible = self.fleet.eligible(request.model, exclude)
        prompt = self.tokenize(request) if prompt is None else prompt
        has_prompt = time.perf_counter()
        hashed = self._hash_all(request, prompt, eligible)
        marks = began, has_prompt, time.perf_counter()
        with self.ledger.turn(prompt.num_tokens):
            return self._choose(request, prompt, eligible, hashed, attempt, now, marks)

    def _choose(
        self,
        request: InferenceRequest,
        prompt: Prompt,
        eligible: Sequence[Eligible],
        hashed: Mapping[Group, list[list[BlockHash]]],
        attempt: int,
        now: float,
        marks: tuple[float, float, float],
    ) -> Decision:
        """Look at what is held and booked, choose, and book; `marks` are the times of the stages before."""
        num_tokens = prompt.num_tokens
        lookups = {group: self._hold(prompt, group, hashes, now) for group, hashes in hashed.items()}
        if not request.reads_cache:
            for lookup in lookups.values():
                lookup.held_tokens.clear()
        has_overlap = time.perf_counter()
        candidates = self._candidates(eligible, lookups, num_tokens, prompt.links, now)
        choice = self.policy.choose(Query(request.model, num_tokens, request.session), candidates, self._rng)
        chosen, group = candidates[choice.index], eligible[choice.index].group
        used = lookups.get(group)
        decision = Decision(
            id=new_id(12),
            model=request.model,
            policy=self.policy.name,
            worker=chosen.worker,
            num_tokens=num_tokens,
            overlap_tokens=chosen.overlap_tokens,
            reason=choice.reason,
            candidates=candidates,
            terms=choice.terms,
            attempt=attempt,
            prompt_from=prompt.source,
            timings_s=_timings(*marks, has_overlap, time.perf_counter()),
            told_tokens=used.told[-1].get(chosen.id, 0) * group.block_size if used else 0,
        )
        self._book(decision, chosen, used, prompt.links)
        self._show(decision, prompt, used.hashes if used else (), request)
        return decision

    def hasher(self, request: InferenceRequest) -> Callable[[Prompt], None]:
        """Makes the hashes of a long prompt, in a thread: `decide` finds them there already."""
        groups = {e.group for e in self.fleet.eligible(request.model) if e.group.block_size}

        def hash_ahead(prompt: Prompt) -> None:
            for group in groups:
                self._hash(prompt, group, request.cache_salt)

        return hash_ahead

    def asked_of(self, request: InferenceRequest, prompt: Prompt) -> list[tuple[BlockHash, list[BlockHash]]]:
        """The hashes by which a decision will look for a prompt's blocks, each behind its model's root."""
        hashed = self._hash_all(request, prompt, self.fleet.eligible(request.model))
        return [
            (root_hash(group.root), blocks) for group, each in hashed.items() for blocks in each if blocks
        ]

    def first_token(self, decision: Decision) -> None:
        """The worker has prefilled the prompt: its tokens are cached there and no work ahead."""
        if opened := self._open.get(decision.id):
            self._prefilled(opened)

    def finish(self, decision: Decision, usage: Usage | None = None) -> bool:
        """Release what the decision booked; False if that was done before. `usage` is what the engine told
        of a complete answer."""
        opened = self._open.pop(decision.id, None)
        if opened is None:
            return False
        self.ledger.release(opened.booking)
        now = self._clock()
        self.assumed.unpin(decision.worker.id, opened.hashes, now, was_run=opened.was_run)
        if opened.links:
            self._sent.index.unpin(decision.worker.id, opened.links, now, was_run=opened.was_run)
        if usage is not None:
            for witness in self.witnesses:
                try:
                    witness.answered(decision, opened.prompt, usage)
                except Exception:  # noqa: BLE001  see _dismiss
                    self._dismiss(witness)
        return True

    def _show(
        self,
        decision: Decision,
        prompt: Prompt,
        blocks: Sequence[Sequence[BlockHash]],
        request: InferenceRequest,
    ) -> None:
        for witness in self.witnesses:
            try:
                witness.decided(decision, prompt, blocks, request)
            except Exception:  # noqa: BLE001  see _dismiss
                self._dismiss(witness)

    def _dismiss(self, witness: Witness) -> None:
        """A bug in one who only looks on must cost no request, nor a line in the log for each."""
        self.witnesses = [other for other in self.witnesses if other is not witness]
        log.exception("%r failed, and sees no more decisions until the gateway is restarted", witness)

    def _see_prefilled(self, now: float) -> None:
        """An unstreamed answer tells nothing until its end, but the events of its blocks do: where all of a
        prompt's blocks are stored, its prefill is no longer work ahead. The oldest are looked at."""
        if now - self._looked_s < LOOK_EVERY_S:
            return
        self._looked_s = now
        for opened in islice(self._open.values(), MAX_LOOKED_AT):
            if (
                opened.hashes
                and not opened.was_run
                and not opened.links
                and self.index.holds(opened.booking.worker, opened.prompt)
            ):
                self._prefilled(opened)

    def _prefilled(self, opened: _Open) -> None:
        opened.was_run = True
        self.ledger.first_token(opened.booking)

    # stages ------------------------------------------------------------------------------------

    def _hash_all(
        self, request: InferenceRequest, prompt: Prompt, eligible: Sequence[Eligible]
    ) -> dict[Group, list[list[BlockHash]]]:
        """The prompts' block hashes, once for each group of workers that share them."""
        hashed: dict[Group, list[list[BlockHash]]] = {}
        last = None
        for e in eligible if prompt.tokens else ():
            if e.group is not last:
                last = e.group
                if last.block_size and last not in hashed:
                    hashed[last] = self._hash(prompt, last, request.cache_salt)
        return hashed

    def _hash(self, prompt: Prompt, group: Group, cache_salt: str | None) -> list[list[BlockHash]]:
        root, size = root_hash(group.root), group.block_size
        if prompt.run and size >= SMALL_BLOCK:  # a run remembers no smaller ones
            space = Space(root, size, group.adapter, cache_salt)
            return [hash_continued(prompt.tokens[0], prompt.run, space)]
        hashes = []
        for tokens in prompt.tokens:
            extra = prompt_extra_keys(group.adapter, cache_salt, len(tokens) // size)
            hashes.append(self._hashes.hash_blocks(tokens, size, root, extra))
        return hashes

    def _hold(self, prompt: Prompt, group: Group, hashes: list[list[BlockHash]], now: float) -> _Lookup:
        """Leading prompt tokens per holder: what its events say, and behind it what we have sent."""
        size = group.block_size
        lookup = _Lookup(hashes)
        held_tokens = lookup.held_tokens
        for tokens, blocks in zip(prompt.tokens, hashes, strict=True):
            most = max_hit_blocks(len(tokens), size)
            told = self.index.overlap(blocks, most)
            for worker, media in self.index.spilled(blocks, told).items():
                there = lookup.spilled.setdefault(worker, {})
                for names, num in media.items():
                    there[names] = there.get(names, 0) + size * num
            if prompt.told and blocks:
                told = {**prompt.told.get(blocks[-1], _NOTHING), **told}
            lookup.told.append(told)
            held = dict(told)
            self.assumed.extend(blocks, held, now)
            for worker, depth in held.items():
                held_tokens[worker] = held_tokens.get(worker, 0) + size * min(depth, most)
        return lookup

    def _candidates(
        self,
        eligible: Sequence[Eligible],
        lookups: Mapping[Group, _Lookup],
        num_tokens: int,
        links: Links | None,
        now: float,
    ) -> tuple[Candidate, ...]:
        sent = self._sent.find(links, [e.member.worker.id for e in eligible], now) if links else _NOTHING
        behind = sum(links.num_tokens) if links else 0
        candidates: list[Candidate] = []
        load_of, group, held = self.ledger.load, None, _NOTHING
        spilled: Mapping[WorkerId, Mapping[tuple[str, ...], int]] = {}
        for e in eligible:
            if e.group is not group:
                group = e.group
                lookup = lookups.get(group)
                held = lookup.held_tokens if lookup else _NOTHING
                spilled = lookup.spilled if lookup else {}
            member = e.member
            worker, reported = member.worker, member.reported
            assumed = sent.get(worker.id, 0) if sent else 0
            overlap, load = held.get(worker.id, 0), load_of(worker.id)
            worth = overlap if member.confidence == 1.0 else int(overlap * member.confidence)
            candidates.append(
                Candidate(
                    worker,
                    overlap,
                    num_tokens - worth + behind - assumed,
                    load.booked_tokens,
                    load.num_in_flight,
                    reported.num_waiting,
                    reported.kv_usage,
                    member.stream is StreamState.EXACT,
                    member.confidence,
                    spilled.get(worker.id, _ON_GPU) if spilled else _ON_GPU,
                    assumed,
                )
            )
        return tuple(candidates)

    def _book(
        self, decision: Decision, chosen: Candidate, lookup: _Lookup | None, links: Links | None
    ) -> None:
        """The work, and the blocks that it will add to what the worker's events tell."""
        booking = self.ledger.book(chosen.id, chosen.uncached_tokens, decision.num_tokens)
        added: list[BlockHash] = []
        if lookup:
            for blocks, told in zip(lookup.hashes, lookup.told, strict=True):
                added += blocks[told.get(chosen.id, 0) :]
        self.assumed.pin(chosen.id, added)
        behind = links.hashes if links else ()
        if behind:
            self._sent.index.pin(chosen.id, behind)
        self._open[decision.id] = _Open(booking, added, lookup.hashes[-1] if lookup else (), behind)


_NOTHING: Mapping[WorkerId, int] = {}
_ON_GPU: Mapping[tuple[str, ...], int] = {}


def _timings(*marks: float) -> Timings:
    return Timings(*[end - begin for begin, end in pairwise(marks)])


def max_hit_blocks(num_tokens: int, block_size: int) -> int:
    """The most blocks an engine can reuse of a prompt: its last token is always computed."""
    return max(num_tokens - 1, 0) // block_size
