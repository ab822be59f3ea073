"""Read-only view of a Redis tree for the command line: published workers, edges, sizes.

Reads the sets that list a slot's edges, in portions: no walk of the keyspace, and no script.
"""

import struct
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from redis.asyncio import Redis

from gateway.core.blocks import BlockHash
from gateway.core.event_stream import StreamState
from gateway.core.worker import WorkerId
from gateway.index.redis_tree.tree import STATES, tree_key

AT_ONCE = 256
"""Edges read by one command, some 0.5 MB at most."""

_owner = struct.Struct("<ddB")


@dataclass(frozen=True, slots=True)
class PublishedWorker:
    """Published state of one worker: lease fence, stream state and slots (with the hidden one, if any)."""

    fence: int
    state: StreamState
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StoredEdge:
    """Edge read from Redis. `held[slot]` is the bitmap of its blocks that a slot holds, the first in the
    lowest bit."""

    head: BlockHash
    blocks: tuple[BlockHash, ...]
    held: dict[int, int]
    num_bytes: int


class Browser:
    def __init__(self, client: "Redis", prefix: str, root: BlockHash) -> None:
        self._client = client
        self._key = tree_key(prefix, root)

    def __repr__(self) -> str:
        return f"Browser({self._key.decode()})"

    async def workers(self) -> dict[WorkerId, PublishedWorker]:
        found = await _bytes(self._client.hgetall(self._key + b"o"))
        published: dict[WorkerId, PublishedWorker] = {}
        for name, value in found.items():
            fence, _, state = _owner.unpack_from(value)
            slots = struct.unpack(f"<{(len(value) - _owner.size) // 2}H", value[_owner.size :])
            published[WorkerId(name.decode())] = PublishedWorker(int(fence), STATES[state], slots)
        return published

    async def visible(self, slots: Sequence[int]) -> list[int]:
        """Return the slots that lookups report."""
        values = [await _bytes(self._client.hget(self._key + b"s", _slot(slot))) for slot in slots]
        return [slot for slot, value in zip(slots, values, strict=True) if value and value[8]]

    async def edges(self, slot: int) -> AsyncIterator[StoredEdge]:
        """Yield the edges listed in a slot's set. Raises ValueError if one is missing or does not decode."""
        heads = sorted(await _bytes(self._client.smembers(self._key + b"w" + _slot(slot))))
        for first in range(0, len(heads), AT_ONCE):
            some = heads[first : first + AT_ONCE]
            values = await _bytes(self._client.mget([self._key + b"e" + head for head in some]))
            for head, value in zip(some, values, strict=True):
                if value is None:
                    raise ValueError(f"{self}: an edge of slot {slot} is not there")
                yield edge_of(head, value)

    async def blocks(self, slots: Sequence[int]) -> set[BlockHash]:
        """Return the blocks that these slots hold."""
        found: set[BlockHash] = set()
        for slot in slots:
            async for edge in self.edges(slot):
                held = edge.held.get(slot, 0)
                found.update(block for i, block in enumerate(edge.blocks) if held >> i & 1)
        return found


def edge_of(head: bytes, value: bytes) -> StoredEdge:
    """Decode an edge as the scripts write it. Raises ValueError for any other value."""
    try:
        num, num_full, num_parts = struct.unpack_from("<HHH", value)
        blocks = struct.unpack_from(f"<{num}Q", value, 6)
        full = struct.unpack_from(f"<{num_full}H", value, 6 + num * 8)
        parts = list(_parts(value, 6 + num * 8 + num_full * 2, num_parts))
    except struct.error as exc:
        raise ValueError(f"edge {head.hex()} does not decode") from exc
    held = dict.fromkeys(full, (1 << num) - 1) | dict(parts)
    return StoredEdge(BlockHash(int.from_bytes(head, "little")), cast("Any", blocks), held, len(value))


def _parts(value: bytes, at: int, num: int) -> Iterator[tuple[int, int]]:
    for _ in range(num):
        slot, depth, width = struct.unpack_from("<HHB", value, at)
        bitmap = value[at + 5 : at + 5 + width]
        yield slot, int.from_bytes(bitmap, "little") if width else (1 << depth) - 1
        at += 5 + width


def _slot(number: int) -> bytes:
    return number.to_bytes(2, "little")


async def _bytes(answer: "Awaitable[Any] | Any") -> Any:
    return await answer
