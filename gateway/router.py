"""The decision: which worker a request goes to, and why. One call, without I/O.

    tokens ─ hashes per (model root, block size) ─ index ─► overlap ─┐
                     fleet: who is up      ledger: work booked ──────┴─► policy ─► decision, booked

The server calls `decide` as any program can. A decision books its work at once, so that the next
one sees it; whoever asked must call `finish` exactly once (further calls do nothing), and
`first_token` when the prefill is over.
"""

import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from gateway.core.blocks import BlockHash, HashCache, Tokens, prompt_extra_keys, root_hash
from gateway.core.decision import Candidate, Decision, Query
from gateway.core.fleet import Eligible, Fleet, Group
from gateway.core.ledger import Booking, Ledger
from gateway.core.request import InferenceRequest
from gateway.core.stream import StreamState
from gateway.core.worker import WorkerId
from gateway.ids import new_id
from gateway.index.assumed import AssumedIndex
from gateway.index.base import Index
from gateway.policies.base import Policy


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request's prompts as token ids, one or (for batched completions) several; `source` says by whom."""

    tokens: Sequence[Tokens] = ()
    source: str = "none"

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.tokens))


MAX_LOOKED_AT = 256
"""Open requests whose prefill a decision looks after; each costs a fraction of a microsecond."""

Tokenize = Callable[[InferenceRequest], Prompt]
"""Local tokens for a request, or an empty Prompt where the model has no local tokenizer."""


@dataclass(slots=True, eq=False)
class _Open:
    """A decision that is not finished: its booking and the blocks it pinned."""

    booking: Booking
    hashes: Sequence[BlockHash]
    was_run: bool = False


@dataclass(slots=True, eq=False)
class _Lookup:
    """One group's block hashes per prompt; by worker, the blocks that its events tell of each prompt
    and the leading tokens that it holds or will hold of all of them."""

    hashes: list[list[BlockHash]]
    told: list[Mapping[WorkerId, int]] = field(default_factory=list)
    held_tokens: dict[WorkerId, int] = field(default_factory=dict)


class _Stopwatch:
    """Seconds by stage, for the record of a decision; nothing is decided by them."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.laps[stage] = now - self._last
        self._last = now


class Router:
    """`clock` is monotonic seconds; `rng` breaks ties."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        index: Index,
        assumed: AssumedIndex,
        policy: Policy,
        tokenize: Tokenize,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self.fleet = fleet
        self.index = index
        self.assumed = assumed
        self.policy = policy
        self.ledger = Ledger()
        self.tokenize = tokenize
        self._clock = clock
        self._rng = rng or random.Random()
        self._open: dict[str, _Open] = {}
        self._hashes = HashCache()

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
        watch = _Stopwatch()
        self._see_prefilled()
        eligible = self.fleet.eligible(request.model, exclude)
        if prompt is None:
            prompt = self.tokenize(request)
        watch.lap("prompt")
        lookups = self._look_up(request, prompt, eligible, watch)
        candidates = self._candidates(eligible, lookups, prompt.num_tokens)
        query = Query(request.model, prompt.num_tokens, request.session)
        choice = self.policy.choose(query, candidates, self._rng)
        watch.lap("policy")
        chosen = candidates[choice.index]
        decision = Decision(
            id=new_id(12),
            model=request.model,
            policy=self.policy.name,
            worker=chosen.worker,
            num_tokens=prompt.num_tokens,
            overlap_tokens=chosen.overlap_tokens,
            reason=choice.reason,
            candidates=candidates,
            terms=choice.terms,
            attempt=attempt,
            prompt_from=prompt.source,
            timings_s=watch.laps,
        )
        self._book(decision, chosen, lookups.get(eligible[choice.index].group))
        return decision

    def first_token(self, decision: Decision) -> None:
        """The worker has prefilled the prompt: its tokens are cached there and no work ahead."""
        if opened := self._open.get(decision.id):
            self._prefilled(opened)

    def finish(self, decision: Decision) -> bool:
        """Release what the decision booked; False if that was done before."""
        opened = self._open.pop(decision.id, None)
        if opened is None:
            return False
        self.ledger.release(opened.booking)
        self.assumed.unpin(decision.worker.id, opened.hashes, self._clock(), was_run=opened.was_run)
        return True

    def _see_prefilled(self) -> None:
        """An unstreamed answer tells nothing until its end, but the events of its blocks do: where a
        prompt's last block is stored, its prefill is no longer work ahead. The oldest are looked at."""
        for opened in islice(self._open.values(), MAX_LOOKED_AT):
            if opened.hashes and not opened.was_run:
                last = opened.hashes[-1]
                if opened.booking.worker in self.index.overlap((last,)):
                    self._prefilled(opened)

    def _prefilled(self, opened: _Open) -> None:
        opened.was_run = True
        self.ledger.first_token(opened.booking)

    # stages ------------------------------------------------------------------------------------

    def _look_up(
        self, request: InferenceRequest, prompt: Prompt, eligible: Sequence[Eligible], watch: _Stopwatch
    ) -> dict[Group, _Lookup]:
        """Hashes and holders, once for each group of workers that share them."""
        groups = {e.group for e in eligible if e.group.block_size} if prompt.tokens else ()
        hashed = {group: self._hash(prompt, group, request.cache_salt) for group in groups}
        watch.lap("hash")
        lookups = {group: self._hold(prompt, group, hashes) for group, hashes in hashed.items()}
        watch.lap("index")
        return lookups

    def _hash(self, prompt: Prompt, group: Group, cache_salt: str | None) -> list[list[BlockHash]]:
        root, size = root_hash(group.root), group.block_size
        hashes = []
        for tokens in prompt.tokens:
            extra = prompt_extra_keys(group.adapter, cache_salt, len(tokens) // size)
            hashes.append(self._hashes.hash_blocks(tokens, size, root, extra))
        return hashes

    def _hold(self, prompt: Prompt, group: Group, hashes: list[list[BlockHash]]) -> _Lookup:
        """Leading prompt tokens per holder: what its events say, and behind it what we have sent."""
        now, size = self._clock(), group.block_size
        lookup = _Lookup(hashes)
        for tokens, blocks in zip(prompt.tokens, hashes, strict=True):
            told = self.index.overlap(blocks)
            held = dict(told)
            self.assumed.extend(blocks, held, now)
            most = max_hit_blocks(len(tokens), size)
            for worker, depth in held.items():
                lookup.held_tokens[worker] = lookup.held_tokens.get(worker, 0) + size * min(depth, most)
            lookup.told.append(told)
        return lookup

    def _candidates(
        self, eligible: Sequence[Eligible], lookups: Mapping[Group, _Lookup], num_tokens: int
    ) -> tuple[Candidate, ...]:
        candidates: list[Candidate] = []
        for e in eligible:
            member, worker = e.member, e.member.worker
            lookup = lookups.get(e.group)
            overlap = lookup.held_tokens.get(worker.id, 0) if lookup else 0
            load = self.ledger.load(worker.id)
            candidates.append(
                Candidate(
                    worker,
                    overlap,
                    num_tokens - overlap,
                    load.booked_tokens,
                    load.num_in_flight,
                    member.reported.num_waiting,
                    member.reported.kv_usage,
                    member.stream is StreamState.EXACT,
                )
            )
        return tuple(candidates)

    def _book(self, decision: Decision, chosen: Candidate, lookup: _Lookup | None) -> None:
        """The work, and the blocks that it will add to what the worker's events tell."""
        booking = self.ledger.book(chosen.id, chosen.uncached_tokens, decision.num_tokens)
        added: list[BlockHash] = []
        if lookup:
            for blocks, told in zip(lookup.hashes, lookup.told, strict=True):
                added += blocks[told.get(chosen.id, 0) :]
        self.assumed.pin(chosen.id, added)
        self._open[decision.id] = _Open(booking, added)


def max_hit_blocks(num_tokens: int, block_size: int) -> int:
    """The most blocks an engine can reuse of a prompt: its last token is always computed."""
    return max(num_tokens - 1, 0) // block_size
