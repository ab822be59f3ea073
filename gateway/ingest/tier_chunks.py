"""Events of media other than the GPU, in blocks of the worker's own size.

A tier may keep KV in chunks of several blocks, under hashes of its own: LMCache stores 256 tokens at a time.
A chunk becomes the blocks that its tokens make, each under a name derived from the chunk's, the last one
under the chunk's own (the next chunk's parent); the removal of a chunk removes all of them. A chunk that is
announced again is still one chunk.

Credited are chunks of whole blocks, at most PORTION_BLOCKS, of one worker's tier, without extra keys (events
do not say to which of the blocks these belong). All else is counted for its medium, and says nothing about
the GPU.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from xxhash import xxh3_64_intdigest

from gateway.core.kv_events import GPU, SHARED, BlocksRemoved, BlocksStored, EngineHash, KvEvent
from gateway.index.base import Applied, is_prefix_group
from gateway.index.engine_hashes import key_of
from gateway.ingest.chunks import PORTION_BLOCKS

Place = tuple[str, int, EngineHash]
"""(medium, group, name) of a chunk."""


class TierChunks:
    """Chunks of one worker's media other than the GPU; `applied` are the worker's counters. `is_full`: these
    media hold as many blocks as are kept of a worker, so that nothing more is stored there."""

    def __init__(self, block_size: int | None) -> None:
        self.block_size = block_size
        self.is_full = False
        self._chunks: dict[Place, int] = {}

    def __repr__(self) -> str:
        return f"TierChunks({len(self._chunks)} chunks)"

    def reset(self) -> None:
        self.is_full = False
        self._chunks.clear()

    def in_blocks(self, events: Iterable[KvEvent], applied: Applied) -> Iterator[KvEvent]:
        """Yield the events, those about chunks in blocks. A chunk that the consumer could not place is
        forgotten when the next event is asked for."""
        for event in events:
            if isinstance(event, BlocksStored) and event.medium != GPU:
                yield from self._stored(event, applied)
            elif self._chunks and isinstance(event, BlocksRemoved) and event.medium != GPU:
                yield from self._removed(event)
            else:
                yield event

    def _stored(self, event: BlocksStored, applied: Applied) -> Iterator[KvEvent]:
        if self.is_full:
            applied.miss(event.medium, len(event.engine_hashes))
            return
        num = self._num_blocks(event)
        if num < 2:
            yield event
            return
        size, parent = event.block_size, event.parent
        for i, name in enumerate(event.engine_hashes):
            place = event.medium, event.group_idx, name
            if place not in self._chunks:
                before = applied.unplaced.get(event.medium, 0)
                tokens = event.tokens[i * size : (i + 1) * size]
                names = [*_names(name, num), name]
                yield replace(
                    event, engine_hashes=names, parent=parent, tokens=tokens, block_size=size // num
                )
                if applied.unplaced.get(event.medium, 0) == before:
                    self._chunks[place] = num
            parent = name

    def _num_blocks(self, event: BlocksStored) -> int:
        """Return how many blocks each chunk of a store has; 1 where it stores blocks, or cannot be credited
        as chunks."""
        size, whole = event.block_size, self.block_size
        if not whole or not event.tokens or size <= whole or size % whole or event.extra_keys:
            return 1
        if SHARED in event.medium or not is_prefix_group(event.group_idx, event.spec_kind):
            return 1
        num = size // whole
        return num if num <= PORTION_BLOCKS and len(event.tokens) == size * len(event.engine_hashes) else 1

    def _removed(self, event: BlocksRemoved) -> Iterator[BlocksRemoved]:
        names: list[EngineHash] = []
        for name in event.engine_hashes:
            names += _names(name, self._chunks.pop((event.medium, event.group_idx, name), 1))
            names.append(name)
            if len(names) >= PORTION_BLOCKS:
                yield replace(event, engine_hashes=names)
                names = []
        if names:
            yield replace(event, engine_hashes=names)


def _names(name: EngineHash, num: int) -> Sequence[int]:
    """Return the names of the blocks of a chunk but the last."""
    key = key_of(name).to_bytes(8, "big")
    return [xxh3_64_intdigest(key, seed) for seed in range(1, num)]
