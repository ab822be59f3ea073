"""What a worker keeps beside its GPU blocks of full attention: offload tiers, and a window's group.

After vLLM 0.32's OffloadingConnector and its hybrid coordinator, in the least form that says the same on the
wire:

tier     full blocks are copied there, and told a step later: a store without tokens, parent or block size,
         when the GPU's block may be gone already. The least recently used leave it; a clear spares it
load     leading blocks behind a hit that some tier has are not computed: stored on the GPU as if they were
window   group 1 keeps its blocks apart, those outside the window too, as long as there is room. Of a run that
         is longer it tells the last blocks, with the tokens of all; a hit ends where its window is there
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from gateway.core.blocks import BlockHash, tokens_of
from gateway.core.kv_events import GPU, BlocksRemoved, BlocksStored, EngineHash, KvEvent

WINDOW_GROUP = 1


class Held(Protocol):
    @property
    def digest(self) -> bytes: ...

    @property
    def block_hash(self) -> BlockHash: ...


Name = Callable[[bytes], EngineHash]


class Shelf:
    """Blocks by digest, the least recently used first, up to `num_blocks`."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.blocks: OrderedDict[bytes, BlockHash] = OrderedDict()

    def put(self, contents: Iterable[Held]) -> tuple[list[bytes], list[bytes]]:
        """What is new there, and what had to leave for it."""
        added: list[bytes] = []
        for content in contents:
            if content.digest not in self.blocks:
                added.append(content.digest)
            self.blocks[content.digest] = content.block_hash
            self.blocks.move_to_end(content.digest)
        gone = [self.blocks.popitem(last=False)[0] for _ in range(len(self.blocks) - self.num_blocks)]
        return [digest for digest in added if digest in self.blocks], [d for d in gone if d not in added]


class Tiers:
    """`shelves` by medium as `core/kv_events.py` names it; one without room is left out."""

    def __init__(self, sizes: Iterable[tuple[str, int]], name: Name) -> None:
        self.shelves = {medium: Shelf(num_blocks) for medium, num_blocks in sizes if num_blocks}
        self._name = name
        self._under_way: list[Held] = []
        self._arriving: list[Held] = []

    def offload(self, contents: Iterable[Held]) -> None:
        if self.shelves:
            self._under_way += contents

    def take_events(self) -> list[KvEvent]:
        """Of copies that began in the step before."""
        done, self._arriving, self._under_way = self._arriving, self._under_way, []
        events: list[KvEvent] = []
        for medium, shelf in self.shelves.items():
            added, gone = shelf.put(done)
            if gone:
                events.append(BlocksRemoved([self._name(digest) for digest in gone], medium))
            events += [BlocksStored([self._name(d)], None, tokens_of(()), 0, None, medium) for d in added]
        return events

    def num_leading(self, contents: Sequence[Held]) -> int:
        """Blocks from the first of `contents` on that some tier has."""
        held = [shelf.blocks for shelf in self.shelves.values()]
        return next(
            (i for i, c in enumerate(contents) if not any(c.digest in b for b in held)), len(contents)
        )


class Window:
    """The blocks of a group with a sliding window of `window` tokens, 0: there is none."""

    def __init__(self, window: int, num_blocks: int, block_size: int, name: Name) -> None:
        self.window = window
        self.shelf = Shelf(num_blocks)
        self._num = max(1, -(-(window - 1) // block_size))
        self._name = name

    def bound(self, contents: Sequence[Held]) -> int:
        """How many of the blocks that full attention has a hit can begin with."""
        if not self.window:
            return len(contents)
        held = [content.digest in self.shelf.blocks for content in contents]
        lengths = range(len(held), 0, -1)
        return next((end for end in lengths if all(held[max(0, end - self._num) : end])), 0)

    def store(self, run: BlocksStored, contents: Sequence[Held]) -> list[KvEvent]:
        """Of blocks that were computed, those that there is room for."""
        if not self.window:
            return []
        added, gone = self.shelf.put(contents)
        events: list[KvEvent] = []
        if gone:
            events.append(BlocksRemoved([self._name(d) for d in gone], GPU, WINDOW_GROUP))
        names = [self._name(digest) for digest in added]
        if names:
            told = replace(run, engine_hashes=names, extra_keys=None, group_idx=WINDOW_GROUP)
            events.append(replace(told, spec_kind="sliding_window", window=self.window))
        return events

    def clear(self) -> None:
        self.shelf.blocks.clear()
