"""What is known again of a worker whose stream is BLIND, although its engine never repeats itself.

    what is seen                              what it proves
    --------------------------------------    ------------------------------------------------------------
    an answer: c tokens were cached           its prompt's first c // block size blocks are there, under
                                              engine hashes that we do not know: credited, and forgotten
                                              after `keep_s`. What was credited beyond is withdrawn.
    a run with an unknown parent, stored      the parent is that prompt's block before the first computed
    for such a request: it begins where the   one. The run and what hangs on it is placed under its own
    cached tokens end                         engine hashes, so that removals find it.
    a run from the root for a request that    all of the hit prefix, under its engine hashes
    asked the engine to announce its hit

Blocks whose engine hash is not known are *links* (`proofs.py`), runs whose parent is not known *orphans*
(`orphans.py`). A run is matched by our hash, of tokens and extra keys both, and only if nothing else fits:
no other prompt that was there while it came, and no other run for this prompt. A wrong credit is worse
than none.

A run from the root that is stored again may be a second copy, or what a request (ours, or one of another
process beside us) asked to have announced: they look alike. So from the first time that a stream is BLIND
until its engine restarts (or a while after its cache was cleared), root runs are not counted twice. Too low
a count forgets a copied block when its first copy goes, which costs a hit; too high a count would credit it
for ever.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from gateway.core.blocks import BlockHash, Tokens, hash_blocks
from gateway.core.kv_events import (
    GPU,
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    EngineHash,
    KvEvent,
    RunStored,
)
from gateway.core.worker import WorkerId
from gateway.index.base import Healed, is_prefix_group
from gateway.index.orphans import Orphan, Orphans, positions
from gateway.index.proofs import HealCounts, Proofs, stretches

SETTLE_S = 0.25
"""Between an answer and the search for its run: events are on their way, and one that also fits may come."""
PATIENCE_S = 5.0
"""How long after an answer its run may come."""
FADE_S = 60.0
"""After a clear, for requests that asked before it and run behind it."""
MAX_SENT = 1024
"""Prompts that are remembered of one worker, 8 bytes a block."""
MAX_AWAITING = 64
"""Requests whose run is looked for at a time."""
MAX_ASKED = 4_096
QUIET_REQUESTS = 64
"""So many announcements in a row that told nothing: from then on one request of RARELY asks for one."""
RARELY = 16


@dataclass(slots=True, eq=False)
class _Sent:
    """A prompt, and from when to when it was at the worker; how many of its blocks were known then under
    their engine hashes, and how many it found."""

    tokens: Tokens
    blocks: Sequence[BlockHash]
    since: float
    known: int = 0
    asks: bool = False
    reads_cache: bool = True
    ended: float = math.inf
    depth: int = 0


class Healing:
    """Of one worker in `index`. `can_report`: its engine announces a hit prefix when it is asked to."""

    def __init__(
        self,
        worker: WorkerId,
        index: Healed,
        *,
        root: BlockHash,
        block_size: int,
        can_report: bool,
        keep_s: float,
        clock: Callable[[], float],
    ) -> None:
        self.worker = worker
        self.counts = HealCounts()
        self.orphans = Orphans()
        self.proofs = Proofs(worker, index, root)
        self.is_blind = False
        self.was_blind = False  # since its engine started: events go through here
        self.on_change: Callable[[Healing], None] = lambda healing: None
        self._index = index
        self._root = root
        self._size = block_size
        self._can_report = can_report
        self._keep_s = keep_s
        self._clock = clock
        self._next_look = 0.0
        self._num_quiet = 0
        self._cleared_s = math.inf
        self._sent: OrderedDict[str, _Sent] = OrderedDict()
        self._awaiting: list[_Sent] = []
        self._due: list[_Sent] = []
        self._asked: OrderedDict[BlockHash, None] = OrderedDict()

    def __repr__(self) -> str:
        return f"Healing({self.worker}, blind={self.is_blind}, {self.proofs}, {self.orphans})"

    def describe(self) -> dict[str, int]:
        """For people: what is known of a worker although its stream is BLIND."""
        return {
            "proven_blocks": len(self.proofs),
            "orphan_blocks": self.orphans.num_blocks,
            "placed_blocks": self.counts.num_placed,
            "withdrawn_blocks": self.counts.num_withdrawn,
            "announcements_asked": self.counts.num_reports,
        }

    # the stream --------------------------------------------------------------------------------

    def tell(self, *, is_blind: bool) -> None:
        """What the stream knows, whenever it may have changed."""
        if is_blind is not self.is_blind:
            self.is_blind = is_blind
            if not self.was_blind:
                self.was_blind, self._cleared_s = True, math.inf
            if not is_blind:
                self.proofs.drop_all()
                self._forget()
            self.on_change(self)

    def reset(self, *, is_restart: bool) -> None:
        """Its blocks are forgotten: the index knows none any more."""
        self._forget()
        if is_restart:
            self.was_blind = self.is_blind

    def apply(self, event: KvEvent) -> None:
        """One event of a stream that is or was BLIND, to the index and to what is kept here."""
        match event:
            case BlocksStored():
                self._store(event)
            case BlocksRemoved():
                self._remove(event)
            case BlocksCleared():
                self._forget()
                self._cleared_s = self._clock()
                self._index.apply(self.worker, event)
            case _:
                self._index.apply(self.worker, event)
        if not self.is_blind and self._clock() > self._cleared_s + FADE_S:
            self.was_blind = False

    def look_back(self, events: Iterable[KvEvent]) -> None:
        """Events that were applied before it was known that something is missing."""
        for event in events:
            if not isinstance(event, BlocksStored) or not self._is_run(event) or event.parent is None:
                continue
            if self._index.find(self.worker, event.engine_hashes[0]) is None:
                self.orphans.keep(event, self._clock())

    # requests ----------------------------------------------------------------------------------

    def sent(
        self,
        id: str,
        tokens: Sequence[Tokens],
        prompts: Sequence[Sequence[BlockHash]],
        reads_cache: bool = True,
    ) -> bool:
        """A request goes there; whether it should ask for an announcement of what it finds."""
        now = self._clock()
        known = [self._named(blocks) for blocks in prompts]
        asks = self._can_report and reads_cache and any(map(self._is_worth_asking, prompts, known))
        if asks and self._num_quiet >= QUIET_REQUESTS:
            self._num_quiet += 1
            asks = self._num_quiet % RARELY == 0
        self.counts.num_reports += asks
        self._sent[id] = _Sent(tokens[-1], prompts[-1], now, known[-1], asks, reads_cache)
        if len(self._sent) > MAX_SENT:
            self._sent.popitem(last=False)
        return asks

    def answered(self, id: str, cached_tokens: int | None) -> None:
        """The engine told of a request's (last) prompt how much of it it held."""
        sent = self._sent.get(id)
        if sent is None or sent.ended < math.inf:
            return
        now = sent.ended = self._clock()
        if cached_tokens is None or not sent.reads_cache:
            return
        sent.depth = min(cached_tokens // self._size, len(sent.blocks))
        if sent.asks:
            self._num_quiet = 0 if sent.depth > sent.known else self._num_quiet + 1
            self._has_asked(sent)
        if sent.depth < len(sent.blocks):
            self.counts.num_withdrawn += self.proofs.withdraw(sent.blocks[sent.depth])
        self.counts.num_proven += self.proofs.prove(sent.blocks[: sent.depth], now + self._keep_s)
        if 0 < sent.depth < len(sent.blocks) and not self._is_named(sent):
            self._awaiting = [*self._awaiting[-MAX_AWAITING + 1 :], sent]

    def tick(self) -> bool:
        """A portion of what is due: a proof that has expired goes, or an answer's run is looked for. Whether
        more is due."""
        now = self._clock()
        if not self._due and now >= self._next_look:
            self._next_look = now + SETTLE_S
            self._due = [sent for sent in reversed(self._awaiting) if now >= sent.ended + SETTLE_S]
        has_expired = self.proofs.expire(now)
        if self._due and not has_expired:
            self._look_for_run(self._due.pop(), now)
        return has_expired or bool(self._due)

    # events ------------------------------------------------------------------------------------

    def _store(self, event: BlocksStored) -> None:
        worker, is_run = self.worker, self._is_run(event)
        applied = self._index.applied(worker)
        for part in self._unheld(event) if is_run and event.parent is None else (event,):
            before = applied.num_orphans
            self._index.apply(worker, part)
            if is_run and applied.num_orphans > before:
                self.orphans.keep(event, self._clock())
            elif is_run:
                self._placed(part)

    def _is_run(self, event: BlocksStored) -> bool:
        """Blocks of the engine's own cache that prefixes are made of, all with their tokens."""
        num = len(event.engine_hashes)
        is_whole = num > 0 and event.block_size == self._size and len(event.tokens) == num * self._size
        return is_whole and event.medium == GPU and is_prefix_group(event.group_idx, event.spec_kind)

    def _unheld(self, event: BlocksStored) -> Iterator[BlocksStored]:
        """Of a run, the parts whose engine hashes are not known yet."""
        names, size, extra = event.engine_hashes, event.block_size, event.extra_keys
        if not any(self._is_held(name) for name in names):
            yield event
            return
        for first, end in self._new_parts(names):
            yield replace(
                event,
                engine_hashes=names[first:end],
                parent=names[first - 1] if first else event.parent,
                tokens=event.tokens[first * size : end * size],
                extra_keys=extra[first:end] if extra else None,
            )

    def _new_parts(self, names: Sequence[EngineHash]) -> list[tuple[int, int]]:
        """First and end of the stretches of names that are not known."""
        return stretches([not self._is_held(name) for name in names])

    def _is_held(self, name: EngineHash) -> bool:
        return self._index.find(self.worker, name) is not None

    def _placed(self, event: BlocksStored) -> None:
        """A run is in the index: its blocks are no links any more, and orphans may belong behind it."""
        self._named_now(event)
        if len(self.orphans):
            self._place_behind(event.engine_hashes)
        self._settle()

    def _settle(self) -> None:
        """Requests whose run has found its place wait for no other, though it may be evicted again."""
        if self._awaiting:
            self._awaiting = [sent for sent in self._awaiting if not self._is_named(sent)]

    def _named_now(self, event: BlocksStored) -> None:
        if len(self.proofs):
            before = self._root if event.parent is None else self._index.find(self.worker, event.parent)
            if before is not None:
                self.proofs.drop(hash_blocks(event.tokens, event.block_size, before, event.extra_keys))

    def _remove(self, event: BlocksRemoved) -> None:
        if len(self.proofs):
            found = (self._index.find(self.worker, name) for name in event.engine_hashes)
            self.proofs.drop([block for block in found if block is not None])
        self.orphans.remove(event.engine_hashes)
        self._index.apply(self.worker, event)

    # announcements -----------------------------------------------------------------------------

    def _named(self, blocks: Sequence[BlockHash]) -> int:
        """Leading blocks that the worker is known to hold under engine hashes."""
        known = self._index.overlap(blocks).get(self.worker, 0)
        if len(self.proofs):
            return next((i for i in range(known) if blocks[i] in self.proofs), known)
        return known

    def _is_worth_asking(self, blocks: Sequence[BlockHash], known: int) -> bool:
        """Whether it is not known that the first block that we do not know is not there."""
        return known < len(blocks) and blocks[known] not in self._asked

    def _has_asked(self, sent: _Sent) -> None:
        """What it did not find was stored for it, or will be when it is: either is announced."""
        for frontier in (sent.known, sent.depth):
            if frontier < len(sent.blocks):
                self._asked[sent.blocks[frontier]] = None
        while len(self._asked) > MAX_ASKED:
            self._asked.popitem(last=False)

    # orphans -----------------------------------------------------------------------------------

    def _look_for_run(self, sent: _Sent, now: float) -> None:
        if sent in self._awaiting and (self._find_run(sent) or now >= sent.ended + PATIENCE_S):
            self._awaiting = [other for other in self._awaiting if other is not sent]
            self._settle()

    def _is_named(self, sent: _Sent) -> bool:
        """Whether what was stored for it found its place by itself."""
        known = self._index.overlap(sent.blocks).get(self.worker, 0)
        return known > sent.depth and sent.blocks[sent.depth] not in self.proofs

    def _find_run(self, sent: _Sent) -> bool:
        """Place the one run that was stored for it, if it is only one; whether it is settled."""
        blocks, depth = sent.blocks, sent.depth
        if self._is_named(sent):
            return True
        before, latest = blocks[depth - 1], sent.ended + PATIENCE_S
        runs = [
            run
            for run in self.orphans.beginning(sent.tokens[depth * self._size : (depth + 1) * self._size])
            if run.was_stored(sent.since, latest) and run.continues(blocks, depth, before)
        ]
        if len({run.event.parent for run in runs}) != 1:
            return False
        others = [other for other in self._sent.values() if other is not sent]
        if any(self._fits_elsewhere(run, other, before) for run in runs for other in others):
            return True  # it could be another's: nobody will ever tell
        for run in runs:
            if run in self.orphans:  # not placed with one before
                self._place(run, blocks, depth)
        return True

    def _fits_elsewhere(self, run: Orphan, other: _Sent, before: BlockHash) -> bool:
        """Whether it could be a part of another prompt that was there when it was stored."""
        chain = other.blocks
        if not run.was_stored(other.since, other.ended + PATIENCE_S):
            return False
        return any(
            chain[i - 1] != before and run.continues(chain, i, chain[i - 1])
            for i in positions(run.event.tokens[: self._size], other.tokens)
        )

    def _place(self, run: Orphan, chain: Sequence[BlockHash], depth: int) -> None:
        """Its first block is number `depth` of `chain`: into the index with it, and with all that hangs on
        it or that it hangs on."""
        event, parent = run.event, run.event.parent
        assert parent is not None
        if (older := self.orphans.with_name(parent)) is not None:
            first = depth - 1 - list(older.names).index(parent)
            if first >= 1 and older.continues(chain, first, chain[first - 1]):
                self._place(older, chain, first)  # and what hangs on it
            return
        self.orphans.drop(run)
        laid = self.proofs.lay(chain[:depth])
        before, place = chain[depth - 1], (event.medium, event.group_idx)
        placed = run.hashes(before)
        apply, worker = self._index.apply, self.worker
        for first, end in self._new_parts(event.engine_hashes):
            ahead = placed[first - 1] if first else before
            link = event.engine_hashes[first - 1] if first else before
            apply(worker, RunStored(placed[first:end], event.engine_hashes[first:end], link, ahead, *place))
        if not run.is_parent_gone and not self._is_held(parent):
            root = chain[depth - 2] if depth > 1 else self._root
            apply(worker, RunStored([before], [parent], root if depth > 1 else None, root, *place))
        if run.gone:
            apply(worker, BlocksRemoved(list(run.gone), *place))
        self.counts.num_placed += len(placed) - len(run.gone)
        self.proofs.drop([*laid, *placed, before])
        self._place_behind([parent, *event.engine_hashes])

    def _place_behind(self, names: Sequence[EngineHash]) -> None:
        """Orphans whose parent the index knows by now, and what hangs on these."""
        todo = deque(names)
        while todo and len(self.orphans):
            for run in self.orphans.behind(todo.popleft()):
                event = run.event
                self.orphans.drop(run)
                for part in self._unheld(event):
                    self._index.apply(self.worker, part)
                self._named_now(event)
                if run.gone:
                    gone = BlocksRemoved(list(run.gone), event.medium, event.group_idx)
                    self._index.apply(self.worker, gone)
                self.counts.num_placed += len(event.engine_hashes) - len(run.gone)
                todo.extend(event.engine_hashes)

    def _forget(self) -> None:
        """All that hangs on what the index knew; answers to what is there now prove nothing of what comes."""
        self.proofs.clear()
        self.orphans.clear()
        self._sent.clear()
        self._awaiting.clear()
        self._asked.clear()
