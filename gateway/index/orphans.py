"""Stored runs with an unknown parent, kept until something shows where they belong.

    by_parent   engine hash ─► runs that follow it
    by_name     engine hash ─► the runs that contain it (a block alone, stored again, and a run around it)
    by_tokens   first block's tokens ─► runs that begin with them

An engine does not announce again what it holds: after a replay buffer that did not reach back, all that is
stored behind an old prefix has an unknown parent. Bounded in blocks, the oldest run is dropped first.
Removals by the engine are marked here; a run without blocks left still shows that another run, which looks
the same, need not be the one in question. A run that is stored twice is kept once: a count that is too low is
forgotten too early, which costs a hit; one that is too high is credited for ever.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from gateway.core.blocks import BlockHash, Tokens, hash_blocks
from gateway.core.kv_events import BlocksStored, EngineHash

Key = TypeVar("Key")

MAX_BLOCKS = 16_384
"""Blocks kept per worker: with their tokens about 2 MB at 16 tokens a block."""
MAX_KEY_CHARS = 1024
"""Extra keys per kept block, on average over its run: adapters, salts and digests of images."""
MAX_TIMES = 16
"""Store times kept per run: how often it was stored again within a few seconds."""


@dataclass(slots=True, eq=False)
class Orphan:
    """Run as it was stored, at `times` (it may be evicted and stored again).

    `gone` are its blocks that were removed since; `is_parent_gone` says so of its parent.
    """

    event: BlocksStored
    times: list[float]
    gone: set[EngineHash] = field(default_factory=set)
    is_parent_gone: bool = False

    @property
    def beginning(self) -> bytes:
        return self.event.tokens[: self.event.block_size].tobytes()

    @property
    def names(self) -> Sequence[EngineHash]:
        return self.event.engine_hashes

    def was_stored(self, first: float, last: float) -> bool:
        return any(first <= time <= last for time in self.times)

    def hashes(self, before: BlockHash) -> list[BlockHash]:
        """Return our hashes of the run, if it lies behind the block `before`."""
        event = self.event
        return hash_blocks(event.tokens, event.block_size, before, event.extra_keys)

    def continues(self, chain: Sequence[BlockHash], depth: int, before: BlockHash) -> bool:
        """Return True if the run can be the blocks of `chain` from number `depth` on, behind `before`: the
        same tokens and extra keys as far as both go. The rest of the run belongs to the answer."""
        event = self.event
        if depth >= len(chain):
            return False
        num, size, extra = (
            min(len(event.engine_hashes), len(chain) - depth),
            event.block_size,
            event.extra_keys,
        )
        first = hash_blocks(event.tokens[:size], size, before, extra[:1] if extra else None)
        if first[0] != chain[depth]:
            return False
        expected = hash_blocks(event.tokens[: num * size], size, before, extra[:num] if extra else None)
        return expected == list(chain[depth : depth + num])


class Orphans:
    def __init__(self, max_blocks: int = MAX_BLOCKS) -> None:
        self.max_blocks = max_blocks
        self.num_blocks = 0
        self._runs: OrderedDict[Orphan, None] = OrderedDict()
        self._by_parent: dict[EngineHash, list[Orphan]] = {}
        self._by_name: dict[EngineHash, list[Orphan]] = {}
        self._by_tokens: dict[bytes, list[Orphan]] = {}

    def __repr__(self) -> str:
        return f"Orphans({len(self._runs)} runs, {self.num_blocks} blocks)"

    def __iter__(self) -> Iterator[Orphan]:
        return iter(list(self._runs))

    def __len__(self) -> int:
        return len(self._runs)

    def __contains__(self, run: Orphan) -> bool:
        return run in self._runs

    def with_name(self, name: EngineHash) -> Orphan | None:
        return next(iter(self._by_name.get(name, ())), None)

    def behind(self, name: EngineHash) -> Sequence[Orphan]:
        return tuple(self._by_parent.get(name, ()))

    def beginning(self, block: Tokens) -> Sequence[Orphan]:
        """Return the runs with these tokens as their first block."""
        return tuple(self._by_tokens.get(block.tobytes(), ()))

    def keep(self, event: BlocksStored, now: float) -> None:
        """Keep a run that has tokens and a parent; one over the limits is dropped."""
        there = self._by_name.get(event.engine_hashes[0], ())
        known = next((run for run in there if run.names[0] == event.engine_hashes[0]), None)
        for name in event.engine_hashes:
            for run in self._by_name.get(name, ()):
                run.gone.discard(name)
        if known is not None:
            known.times = [*known.times[-MAX_TIMES + 1 :], now]
            if known.event.parent == event.parent:
                known.is_parent_gone = False
            if len(event.engine_hashes) <= len(known.names):
                return
            self.drop(known)
        times = known.times if known else [now]
        num = len(event.engine_hashes)
        if event.parent is None or num > self.max_blocks:
            return
        if event.extra_keys and len(repr(event.extra_keys)) > MAX_KEY_CHARS * num:
            return
        run = Orphan(event, times)
        self._runs[run] = None
        self._by_parent.setdefault(event.parent, []).append(run)
        self._by_tokens.setdefault(run.beginning, []).append(run)
        for name in run.names:
            self._by_name.setdefault(name, []).append(run)
        self.num_blocks += len(run.names)
        while self.num_blocks > self.max_blocks:
            self.drop(next(iter(self._runs)))

    def drop(self, run: Orphan) -> None:
        """Drop a run that was placed, or is the oldest."""
        if run not in self._runs:
            return
        del self._runs[run]
        self.num_blocks -= len(run.names)
        assert run.event.parent is not None
        _discard(self._by_parent, run.event.parent, run)
        _discard(self._by_tokens, run.beginning, run)
        for name in run.names:
            _discard(self._by_name, name, run)

    def remove(self, names: Sequence[EngineHash]) -> None:
        """Mark blocks as removed by the engine."""
        for name in names if self._runs else ():
            for run in self._by_name.get(name, ()):
                run.gone.add(name)
            for child in self._by_parent.get(name, ()):
                child.is_parent_gone = True

    def clear(self) -> None:
        self._runs.clear()
        self._by_parent.clear()
        self._by_name.clear()
        self._by_tokens.clear()
        self.num_blocks = 0


def _discard(runs: dict[Key, list[Orphan]], key: Key, run: Orphan) -> None:
    there = runs[key]
    there.remove(run)
    if not there:
        del runs[key]


def positions(block: Tokens, tokens: Tokens) -> Iterator[int]:
    """Yield the block numbers, except 0, at which a prompt has a block of these tokens."""
    wanted, width = block.tobytes(), len(block) * block.itemsize
    data = tokens.tobytes()
    at = data.find(wanted, 1)
    while at >= 0:
        if at % width == 0:
            yield at // width
        at = data.find(wanted, at + 1)
