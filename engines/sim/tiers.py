"""Offload tiers, and a window's group: blocks that a worker keeps beside its GPU blocks of full attention.

After vLLM 0.32's OffloadingConnector and its hybrid coordinator, in the least form that is the same on the
wire:

    tier     full blocks are copied there, and published a step later: a store without tokens, parent or block
    size,
             when the GPU's block may be gone already. The least recently used leave it; a clear spares it
    load     leading blocks behind a hit that some tier has are not computed: stored on the GPU as if they
    were
    window   group 1 keeps its blocks apart, those outside the window too, as long as there is room. For a
    longer
             run it publishes the last blocks, with the tokens of all; a hit ends where its window is there
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from gateway.core.blocks import BlockHash, tokens_of
from gateway.core.kv_events import GPU, BlocksRemoved, BlocksStored, EngineHash, KvEvent

WINDOW_GROUP = 1


class HasDigest(Protocol):
    @property
    def digest(self) -> bytes: ...

    @property
    def block_hash(self) -> BlockHash: ...


Name = Callable[[bytes], EngineHash]


class BlockSet:
    """Least-recently-used set of blocks by digest, up to `num_blocks`."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.blocks: OrderedDict[bytes, BlockHash] = OrderedDict()

    def put(self, contents: Iterable[HasDigest]) -> tuple[list[bytes], list[bytes]]:
        """Put blocks. Returns the new ones, and those that had to leave for them."""
        added: list[bytes] = []
        for content in contents:
            if content.digest not in self.blocks:
                added.append(content.digest)
            self.blocks[content.digest] = content.block_hash
            self.blocks.move_to_end(content.digest)
        gone = [self.blocks.popitem(last=False)[0] for _ in range(len(self.blocks) - self.num_blocks)]
        return [digest for digest in added if digest in self.blocks], [d for d in gone if d not in added]


class Tiers:
    """Offload tiers by medium as `core/kv_events.py` names it; one without room is left out."""

    def __init__(self, sizes: Iterable[tuple[str, int]], name: Name) -> None:
        self.by_medium = {medium: BlockSet(num_blocks) for medium, num_blocks in sizes if num_blocks}
        self._name = name
        self._under_way: list[HasDigest] = []
        self._arriving: list[HasDigest] = []

    def offload(self, contents: Iterable[HasDigest]) -> None:
        if self.by_medium:
            self._under_way += contents

    def take_events(self) -> list[KvEvent]:
        """Take the events of copies that began in the step before."""
        done, self._arriving, self._under_way = self._arriving, self._under_way, []
        events: list[KvEvent] = []
        for medium, block_set in self.by_medium.items():
            added, gone = block_set.put(done)
            if gone:
                events.append(BlocksRemoved([self._name(digest) for digest in gone], medium))
            events += [BlocksStored([self._name(d)], None, tokens_of(()), 0, None, medium) for d in added]
        return events

    def num_leading(self, contents: Sequence[HasDigest]) -> int:
        """Number of leading blocks of `contents` that some tier has."""
        held = [block_set.blocks for block_set in self.by_medium.values()]
        return next(
            (i for i, c in enumerate(contents) if not any(c.digest in b for b in held)), len(contents)
        )


class Window:
    """Blocks of a group with a sliding window of `window` tokens, 0: there is none."""

    def __init__(self, window: int, num_blocks: int, block_size: int, name: Name) -> None:
        self.window = window
        self.block_set = BlockSet(num_blocks)
        self._num = max(1, -(-(window - 1) // block_size))
        self._name = name

    def bound(self, contents: Sequence[HasDigest]) -> int:
        """Number of the blocks of a full-attention hit that can be used with the window."""
        if not self.window:
            return len(contents)
        held = [content.digest in self.block_set.blocks for content in contents]
        lengths = range(len(held), 0, -1)
        return next((end for end in lengths if all(held[max(0, end - self._num) : end])), 0)

    def store(self, run: BlocksStored, contents: Sequence[HasDigest]) -> list[KvEvent]:
        """Store computed blocks as far as there is room. Returns the events."""
        if not self.window:
            return []
        added, gone = self.block_set.put(contents)
        events: list[KvEvent] = []
        if gone:
            events.append(BlocksRemoved([self._name(d) for d in gone], GPU, WINDOW_GROUP))
        names = [self._name(digest) for digest in added]
        if names:
            published = replace(run, engine_hashes=names, extra_keys=None, group_idx=WINDOW_GROUP)
            events.append(replace(published, spec_kind="sliding_window", window=self.window))
        return events

    def clear(self) -> None:
        self.block_set.blocks.clear()
