"""Recovery of a worker's blocks while its stream is BLIND, although its engine never repeats itself.

    observation                               proof
    --------------------------------------    ------------------------------------------------------------
    an answer: c tokens were cached           its prompt's first c // block size blocks are there, under
                                              unknown engine hashes: credited, and forgotten
                                              after `keep_s`. Credit beyond these is withdrawn.
    a run with an unknown parent, stored      the parent is that prompt's block before the first computed
    for such a request: it begins where the   one. The run and its descendants are placed under their own
    cached tokens end                         engine hashes, so that removals find them.
    a run from the root for a request that    all of the hit prefix, under its engine hashes
    asked the engine to announce its hit

Blocks with unknown engine hashes are *links* (`proofs.py`), runs with an unknown parent *orphans*
(`orphans.py`). A run is matched by our hash, of tokens and extra keys both, and only if nothing else fits: no
other prompt that was there while it came, and no other run for this prompt. A wrong credit is worse than
none.

A root run that is stored again may be a second copy, or an announcement that a request (ours, or one of a
process beside us) asked for: they look alike. So from the first time that a stream is BLIND until its engine
restarts (or a while after its cache was cleared), root runs are not counted twice. Too low a count forgets a
copied block when its first copy goes, which costs a hit; too high a count would credit it for ever.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

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
from gateway.index.base import RecoveryIndex, is_prefix_group
from gateway.index.orphans import Orphan, Orphans, positions
from gateway.index.proofs import Proofs, RecoveryCounts, stretches

SETTLE_S: Final = 0.25
"""Time between an answer and the search for its run: events are on their way, and one that also fits may
come."""
PATIENCE_S: Final = 5.0
"""Time after an answer in which its run may come."""
FADE_S: Final = 60.0
"""Time after a clear for requests that asked before it and run behind it."""
MAX_SENT: Final = 1024
"""Prompts remembered per worker, 8 bytes a block."""
MAX_AWAITING: Final = 64
"""Requests with a run to look for, at most, at a time."""
MAX_ASKED: Final = 4_096
MAX_REPEATED: Final = 16_384
"""Blocks of repeated runs remembered per worker, some 300 bytes each."""
QUIET_REQUESTS: Final = 64
"""Fruitless announcements in a row after which one request of RARELY asks for one."""
RARELY: Final = 16


class _Sent:
    """Prompt sent to a worker: from when to when it was there, how many of its blocks were known then under
    their engine hashes (`known`), and how many it found (`depth`)."""

    def __init__(
        self,
        tokens: Tokens,
        blocks: Sequence[BlockHash],
        since: float,
        known: int,
        asks: bool,
        reads_cache: bool,
    ) -> None:
        self.tokens = tokens
        self.blocks = blocks
        self.since = since
        self.known = known
        self.asks = asks
        self.reads_cache = reads_cache
        self.ended = math.inf
        self.depth = 0


class _Repeated(NamedTuple):
    """Block of a run that was stored again, and the one before it; `parent` is None at the root."""

    block: BlockHash
    parent: EngineHash | None
    before: BlockHash
    group_idx: int


class BlindRecovery:
    """Blind recovery of one worker in `index`. `can_report`: its engine announces a hit prefix on request."""

    def __init__(
        self,
        worker: WorkerId,
        index: RecoveryIndex,
        *,
        root: BlockHash,
        block_size: int,
        can_report: bool,
        keep_s: float,
        clock: Callable[[], float],
    ) -> None:
        self.worker = worker
        self.counts = RecoveryCounts()
        self.orphans = Orphans()
        self.proofs = Proofs(worker, index, root)
        self.is_blind = False
        self.was_blind = False  # since its engine started: events go through here
        self.on_change: Callable[[BlindRecovery], None] = lambda recovery: None
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
        self._repeated: OrderedDict[EngineHash, _Repeated] = OrderedDict()

    def __repr__(self) -> str:
        return f"Healing({self.worker}, blind={self.is_blind}, {self.proofs}, {self.orphans})"

    def describe(self) -> dict[str, int]:
        """Return counts of recovered blocks for the admin API."""
        return {
            "proven_blocks": len(self.proofs),
            "orphan_blocks": self.orphans.num_blocks,
            "adopted_orphan_blocks": self.counts.num_placed,
            "disproven_blocks": self.counts.num_withdrawn,
            "announcements": self.counts.num_reports,
        }

    # the stream --------------------------------------------------------------------------------

    def set_blind(self, *, is_blind: bool) -> None:
        """Set whether the stream is BLIND; called whenever that may have changed."""
        if is_blind is not self.is_blind:
            self.is_blind = is_blind
            if not self.was_blind:
                self.was_blind, self._cleared_s = True, math.inf
            if not is_blind:
                self.proofs.drop_all()
                self._forget()
            self.on_change(self)

    def reset(self, *, is_restart: bool) -> None:
        """Forget everything: the index has dropped the worker's blocks."""
        self._forget()
        self._repeated.clear()
        if is_restart:
            self.was_blind = self.is_blind

    def apply(self, event: KvEvent) -> None:
        """Apply one event of a stream that is or was BLIND, updating orphans and proofs too."""
        match event:
            case BlocksStored():
                self._store(event)
            case BlocksRemoved():
                self._remove(event)
            case BlocksCleared():
                self._forget()
                self._repeated.clear()
                self._cleared_s = self._clock()
                self._index.apply(self.worker, event)
            case _:
                self._index.apply(self.worker, event)
        if not self.is_blind and self._clock() > self._cleared_s + FADE_S:
            self.was_blind = False

    def look_back(self, events: Iterable[KvEvent]) -> None:
        """Keep the orphan runs among events applied before the gap was known."""
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
        """Register a request sent to the worker; returns True if it should ask for an announcement of its
        hit."""
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
        """Use the engine's cached-token count of a request's (last) prompt as a proof."""
        sent = self._sent.get(id)
        if sent is None or sent.ended < math.inf:
            return
        now = sent.ended = self._clock()
        if cached_tokens is None or not sent.reads_cache:
            return
        sent.depth = min(cached_tokens // self._size, len(sent.blocks))
        if sent.asks:
            self._num_quiet = 0 if sent.depth > sent.known else self._num_quiet + 1
            self._note_asked(sent)
        if sent.depth < len(sent.blocks):
            self.counts.num_withdrawn += self.proofs.withdraw(sent.blocks[sent.depth])
        self.counts.num_proven += self.proofs.prove(sent.blocks[: sent.depth], now + self._keep_s)
        if 0 < sent.depth < len(sent.blocks) and not self._is_named(sent):
            self._awaiting = [*self._awaiting[-MAX_AWAITING + 1 :], sent]

    def tick(self) -> bool:
        """Do a portion of what is due: expire a proof, or look for an answer's run. Returns True if more is
        due."""
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
        if is_run and event.parent is not None and event.parent in self._repeated:
            self._place_again(event.parent)
        for part in self._unknown_parts(event) if is_run and event.parent is None else (event,):
            before = applied.num_orphans
            self._index.apply(worker, part)
            if is_run and applied.num_orphans > before:
                self.orphans.keep(event, self._clock())
            elif is_run:
                self._placed(part)

    def _is_run(self, event: BlocksStored) -> bool:
        """Return True for GPU blocks with all their tokens, of a group that prefixes consist of."""
        num = len(event.engine_hashes)
        is_whole = num > 0 and event.block_size == self._size and len(event.tokens) == num * self._size
        return is_whole and event.medium == GPU and is_prefix_group(event.group_idx, event.spec_kind)

    def _unknown_parts(self, event: BlocksStored) -> Iterator[BlocksStored]:
        """Yield the parts of a run with unknown engine hashes."""
        names, size, extra = event.engine_hashes, event.block_size, event.extra_keys
        if not any(self._is_known(name) for name in names):
            yield event
            return
        self._note_repeated(event)
        for first, end in self._new_parts(names):
            yield replace(
                event,
                engine_hashes=names[first:end],
                parent=names[first - 1] if first else event.parent,
                tokens=event.tokens[first * size : end * size],
                extra_keys=extra[first:end] if extra else None,
            )

    def _note_repeated(self, event: BlocksStored) -> None:
        """Remember the leading known blocks of a repeated run, since it may be another copy."""
        parent = event.parent
        before = self._root if parent is None else self._index.find(self.worker, parent)
        for name in event.engine_hashes:
            block = self._index.find(self.worker, name)
            if block is None or before is None:
                break
            self._repeated[name] = _Repeated(block, parent, before, event.group_idx)
            self._repeated.move_to_end(name)
            parent, before = name, block
        while len(self._repeated) > MAX_REPEATED:
            self._repeated.popitem(last=False)

    def _place_again(self, name: EngineHash) -> None:
        """Place a remembered block and those before it, if the index has forgotten them."""
        missing: list[tuple[EngineHash, _Repeated]] = []
        parent: EngineHash | None = name
        while parent is not None and not self._is_known(parent):
            if (it := self._repeated.get(parent)) is None:
                return  # the run is an orphan
            missing.append((parent, it))
            parent = it.parent
        for known_as, it in reversed(missing):
            run = RunStored([it.block], [known_as], it.parent, it.before, GPU, it.group_idx)
            self._index.apply(self.worker, run)
            self.proofs.drop([it.block])

    def _new_parts(self, names: Sequence[EngineHash]) -> list[tuple[int, int]]:
        """Return first and end of each stretch of unknown engine hashes."""
        return stretches([not self._is_known(name) for name in names])

    def _is_known(self, name: EngineHash) -> bool:
        return self._index.find(self.worker, name) is not None

    def _placed(self, event: BlocksStored) -> None:
        """Update links and orphans after a run entered the index: its blocks are links no longer, orphans may
        follow it."""
        self._named_now(event)
        if len(self.orphans):
            self._place_behind(event.engine_hashes)
        self._settle()

    def _settle(self) -> None:
        """Stop awaiting runs for requests with a run that found its place, though it may be evicted again."""
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
        """Count the leading blocks that the worker is known to hold under engine hashes."""
        known = self._index.overlap(blocks).get(self.worker, 0)
        if len(self.proofs):
            return next((i for i in range(known) if blocks[i] in self.proofs), known)
        return known

    def _is_worth_asking(self, blocks: Sequence[BlockHash], known: int) -> bool:
        """Return True unless the first unknown block is known to be absent."""
        return known < len(blocks) and blocks[known] not in self._asked

    def _note_asked(self, sent: _Sent) -> None:
        """Remember the frontier blocks of a request: the engine announces them, at once or when it stores
        them."""
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
        """Return True if the run stored for the request found its place by itself."""
        known = self._index.overlap(sent.blocks).get(self.worker, 0)
        return known > sent.depth and sent.blocks[sent.depth] not in self.proofs

    def _find_run(self, sent: _Sent) -> bool:
        """Place the run stored for a request if exactly one fits; returns True if the search is over."""
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
            return True  # it could be another's: no later event will show
        for run in runs:
            if run in self.orphans:  # not placed with one before
                self._place(run, blocks, depth)
        return True

    def _fits_elsewhere(self, run: Orphan, other: _Sent, before: BlockHash) -> bool:
        """Return True if the run could be a part of another prompt that was there when it was stored."""
        chain = other.blocks
        if not run.was_stored(other.since, other.ended + PATIENCE_S):
            return False
        return any(
            chain[i - 1] != before and run.continues(chain, i, chain[i - 1])
            for i in positions(run.event.tokens[: self._size], other.tokens)
        )

    def _place(self, run: Orphan, chain: Sequence[BlockHash], depth: int) -> None:
        """Place a run with number `depth` of `chain` as its first block into the index, with its orphan
        ancestors and descendants."""
        event, parent = run.event, run.event.parent
        assert parent is not None
        if (older := self.orphans.with_name(parent)) is not None:
            first = depth - 1 - list(older.names).index(parent)
            if first >= 1 and older.continues(chain, first, chain[first - 1]):
                self._place(older, chain, first)  # and its descendants
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
        if not run.is_parent_gone and not self._is_known(parent):
            root = chain[depth - 2] if depth > 1 else self._root
            apply(worker, RunStored([before], [parent], root if depth > 1 else None, root, *place))
        if run.gone:
            apply(worker, BlocksRemoved(list(run.gone), *place))
        self.counts.num_placed += len(placed) - len(run.gone)
        self.proofs.drop([*laid, *placed, before])
        self._place_behind([parent, *event.engine_hashes])

    def _place_behind(self, names: Sequence[EngineHash]) -> None:
        """Place orphans with a parent that the index knows by now, and their descendants."""
        todo = deque(names)
        while todo and len(self.orphans):
            for run in self.orphans.behind(todo.popleft()):
                event = run.event
                self.orphans.drop(run)
                for part in self._unknown_parts(event):
                    self._index.apply(self.worker, part)
                self._named_now(event)
                if run.gone:
                    gone = BlocksRemoved(list(run.gone), event.medium, event.group_idx)
                    self._index.apply(self.worker, gone)
                self.counts.num_placed += len(event.engine_hashes) - len(run.gone)
                todo.extend(event.engine_hashes)

    def _forget(self) -> None:
        """Forget all that depends on the index's content; answers to earlier requests prove nothing now."""
        self.proofs.clear()
        self.orphans.clear()
        self._sent.clear()
        self._awaiting.clear()
        self._asked.clear()
