"""Splitting of large events: a prompt of a million tokens is stored in one event of 62,500 blocks."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from gateway.core.kv_events import BlocksRemoved, BlocksStored, KvEvent, num_blocks
from gateway.index.base import is_prefix_group

PORTION_BLOCKS = 1024
"""Blocks that the index stores in a millisecond or two."""


def portions(events: Iterable[KvEvent]) -> Iterator[KvEvent]:
    """Yield events with the same effect as `events`, in order, none of more than PORTION_BLOCKS blocks."""
    for event in events:
        if num_blocks(event) <= PORTION_BLOCKS:
            yield event
        elif isinstance(event, BlocksRemoved):
            for first in range(0, len(event.engine_hashes), PORTION_BLOCKS):
                yield replace(event, engine_hashes=event.engine_hashes[first : first + PORTION_BLOCKS])
        elif isinstance(event, BlocksStored) and _is_whole(event):
            yield from _stored(event)
        elif isinstance(event, BlocksStored) and not is_prefix_group(event.group_idx, event.spec_kind):
            for first in range(0, len(event.engine_hashes), PORTION_BLOCKS):  # placed by engine hash alone
                names = event.engine_hashes[first : first + PORTION_BLOCKS]
                yield replace(event, engine_hashes=names, parent=None, extra_keys=None)
        else:
            yield event  # cannot be placed, which takes no time; runs come in portions already


def _is_whole(event: BlocksStored) -> bool:
    """Return True if the event has tokens for each of its blocks, or for none (an offload tier's)."""
    return len(event.tokens) in (0, event.block_size * len(event.engine_hashes))


def _stored(event: BlocksStored) -> Iterator[BlocksStored]:
    """Yield a store in portions, each the child of the one before."""
    names, size, extra = event.engine_hashes, event.block_size, event.extra_keys
    for first in range(0, len(names), PORTION_BLOCKS):
        last = first + PORTION_BLOCKS
        yield replace(
            event,
            engine_hashes=names[first:last],
            parent=names[first - 1] if first else event.parent,
            tokens=event.tokens[first * size : last * size],
            extra_keys=extra[first:last] if extra else extra,
        )
