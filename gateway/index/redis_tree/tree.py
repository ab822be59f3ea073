"""Tree of one model in Redis: lookups in one round trip each, and a writer's commands.

All its keys share a hash tag, so that on a Cluster a lookup has one slot. Under `{tag}`:

    e<hash>   an edge: number of blocks, holders of all or some, packed hashes, holders (format: the scripts)
    w<slot>   the edges in which a slot holds something
    s         slot ─► until when it is kept, and its worker
    o         worker ─► fence of its publication, its stream's state, its slots
    d         expired slots, with edges to be swept
    n         the slot that was given out last
    a         age: when the tree was begun; a writer with another age has no slot in it
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha1
from importlib.resources import files
from struct import pack as pack_numbers
from typing import Any

from gateway.core.blocks import BlockHash
from gateway.core.event_stream import StreamState
from gateway.core.worker import WorkerId
from gateway.index.redis_tree.pipeline import Pipeline, PipelineRejected, pack
from gateway.index.redis_tree.writer import Slot, Writer

MOST_EDGES = 256
"""Edges visited in one call, half a millisecond of the server; a longer walk goes on with another call."""
SWEEP_EDGES = 256
KEEP_MS = 30_000
"""Time after which a slot that was not prolonged is free."""


STATES = (StreamState.CATCHING_UP, StreamState.EXACT, StreamState.BLIND, StreamState.UNPROVEN)
"""Stream states by their numbers in Redis."""


def tree_key(prefix: str, root: BlockHash) -> bytes:
    """Return the common beginning of all keys of a model's tree."""
    return f"{prefix}:{{{root:016x}}}:".encode()


class Script:
    """Lua script, called by its hash and loaded where the server does not know it. `frees`: a server out of
    memory may run it too."""

    def __init__(self, name: str, *, is_read_only: bool = False, frees: bool = False) -> None:
        self.source = files(__package__).joinpath(f"{name}.lua").read_bytes()
        if frees:
            self.source = self.source.replace(b"#!lua\n", b"#!lua flags=allow-oom\n", 1)
        self._verb = b"EVALSHA_RO" if is_read_only else b"EVALSHA"
        self._sha = sha1(self.source, usedforsecurity=False).hexdigest().encode()

    async def call(self, pipeline: Pipeline, key: bytes, *words: bytes | int) -> Any:
        command = pack(self._verb, self._sha, 1, key, *words)
        try:
            return await pipeline.ask(command)
        except PipelineRejected as exc:
            if not str(exc).startswith("NOSCRIPT"):
                raise
        await pipeline.ask(pack(b"SCRIPT", b"LOAD", self.source))
        return await pipeline.ask(command)


LOOKUP, APPLY, SLOTS = Script("lookup", is_read_only=True), Script("apply"), Script("slots")
SWEEP = Script("apply", frees=True)


class SlotsLost(Exception):
    """Redis lost our slots (flushed, failed over, or we paused for too long); all blocks must be published
    again."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Lease fence and stream state under which a worker is published."""

    fence: int
    state: StreamState


@dataclass(slots=True)
class Pipelines:
    """Two connections, so that lookups wait behind no write. Replaced when they are lost."""

    asks: Pipeline
    writes: Pipeline


class RadixTree:
    """Calls of the scripts of one tree. `timeout_s` is for each call but lookups, which the caller limits."""

    def __init__(
        self,
        pipelines: Pipelines,
        prefix: str,
        root: BlockHash,
        *,
        keep_ms: int = KEEP_MS,
        timeout_s: float = 5.0,
    ) -> None:
        self.pipelines = pipelines
        self.broken: set[bytes] = set()  # first blocks of edges that lookups failed to decode
        self.key = tree_key(prefix, root)
        self._keep_ms = keep_ms
        self._timeout_s = timeout_s

    def __repr__(self) -> str:
        return f"RadixTree({self.key.decode()})"

    async def overlap(self, hashes: Sequence[BlockHash], most_edges: int = MOST_EDGES) -> dict[WorkerId, int]:
        """Count leading blocks held, for each worker that holds the first."""
        found: dict[WorkerId, int] = {}
        packed, done, left = pack_numbers(f"<{len(hashes)}Q", *hashes), 0, b""
        while packed:
            walked, left, broken, *answer = await LOOKUP.call(
                self.pipelines.asks, self.key, packed, most_edges, left
            )
            for name, depth in zip(answer[::2], answer[1::2], strict=True):
                worker = _worker(name)
                found[worker] = max(found.get(worker, 0), done + depth)
            done += walked
            if broken:
                self.broken.add(broken)
            packed = packed[walked * 8 :] if left else b""
        return found

    async def write(self, writer: Writer) -> None:
        """Write all that is queued. Raises SlotsLost, after which the writer is useless."""
        await self._open(writer)
        while batch := writer.plan():
            placed, gone, _ = await self._change(APPLY, batch.packed, writer.age)
            if lost := writer.done(batch, placed, gone):
                raise SlotsLost(f"{self} lost the slots of {lost[0].worker}")
            await self._open(writer)

    async def keep(self, writer: Writer) -> None:
        """Prolong a writer's slots. Raises SlotsLost."""
        slots = [slot for slot in writer.slots if slot.number is not None]
        if slots and await self._change(SLOTS, b"keep", self._keep_ms, _packed(slots), writer.age):
            raise SlotsLost(f"{self} lost some of {len(slots)} slots")

    async def publish_state(self, worker: WorkerId, fence: int, state: StreamState) -> None:
        """Publish the stream state of a worker that has a slot under this fence."""
        await self._change(SLOTS, b"state", worker.encode(), fence, STATES.index(state))

    async def owners(self) -> dict[WorkerId, Owner]:
        """Return the published workers."""
        answer = await self._change(SLOTS, b"owners")
        each = zip(answer[::3], answer[1::3], answer[2::3], strict=True)
        return {_worker(name): Owner(fence, _state(state)) for name, state, fence in each}

    async def mend(self) -> int:
        """Drop edges that do not decode, for their holders to publish again; returns how many."""
        broken = list(self.broken)
        for head in broken:
            await self._change(SLOTS, b"broken", head)
        self.broken.difference_update(broken)  # found once more meanwhile
        return len(broken)

    async def sweep(self) -> bool:
        """Sweep a bounded part of the edges of expired slots; False if none is left."""
        dead: list[int] = await self._change(SLOTS, b"dead")
        if not dead:
            return False
        slot = pack_numbers("<H", dead[0])
        _, _, left = await self._change(SWEEP, b"S" + slot + pack_numbers("<H", SWEEP_EDGES), b"")
        if not left:
            await self._change(SLOTS, b"swept", slot)
        return True

    async def _change(self, script: Script, *words: bytes | int) -> Any:
        async with asyncio.timeout(self._timeout_s):
            return await script.call(self.pipelines.writes, self.key, *words)

    async def _open(self, writer: Writer) -> None:
        """Allocate a number to each new slot, and hide ended slots from lookups."""
        while writer.unopened or writer.unclosed:
            if writer.unopened:
                slot = writer.unopened[0]
                asked = slot.worker.encode(), self._keep_ms, slot.fence, int(slot.is_hidden)
                is_first = int(slot.worker in writer.unknown)
                number, age = await self._change(SLOTS, b"open", *asked, is_first)
                if number < 0:
                    writer.reject(slot)
                elif not writer.opened(slot, number, age):
                    raise SlotsLost(f"{self} has a new age")
            else:
                ended = list(writer.unclosed)
                await self._change(SLOTS, b"close", _packed(ended), writer.age)
                writer.unclosed = writer.unclosed[len(ended) :]


def _worker(name: bytes) -> WorkerId:
    """Decode a worker's name; bytes that are no text (from a foreign client) match no worker of ours."""
    return WorkerId(name.decode("utf-8", "replace"))


def _state(number: int) -> StreamState:
    return STATES[number] if 0 <= number < len(STATES) else StreamState.CATCHING_UP


def _packed(slots: Sequence[Slot]) -> bytes:
    return pack_numbers(f"<{len(slots)}H", *(slot.number for slot in slots))
