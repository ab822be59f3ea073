"""One model's tree in Redis: lookups in one round trip each, and what a writer has to say.

All its keys share a hash tag, so that on a Cluster a lookup has one slot. Under `{tag}`:

    e<hash>   an edge: how many blocks, who holds all or some, packed hashes, holders (the scripts say how)
    w<slot>   the edges in which a slot holds something
    s         slot ─► until when it is kept, and its worker
    o         worker ─► under which fence it is told of, its stream's state, its slots
    d         slots that nobody keeps, whose edges are to be swept
    n         the slot that was given out last
    a         when the tree was begun: who knows another age has no slot in it
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
from gateway.index.redis_tree.pipeline import Lane, LaneRefused, pack
from gateway.index.redis_tree.writer import Slot, Writer

MOST_EDGES = 256
"""Visited in one call, half a millisecond of the server; a longer walk goes on with another call."""
SWEEP_EDGES = 256
KEEP_MS = 30_000
"""A slot that nobody has kept for so long is nobody's."""


STATES = (StreamState.CATCHING_UP, StreamState.EXACT, StreamState.BLIND)
"""By their numbers in Redis."""


def tree_key(prefix: str, root: BlockHash) -> bytes:
    """What all keys of a model's tree begin with."""
    return f"{prefix}:{{{root:016x}}}:".encode()


class Script:
    """Called by its hash, and loaded where the server does not know it. `frees`: a server whose memory is
    full may do it too."""

    def __init__(self, name: str, *, is_read_only: bool = False, frees: bool = False) -> None:
        self.source = files("gateway.index.redis_tree").joinpath(f"{name}.lua").read_bytes()
        if frees:
            self.source = self.source.replace(b"#!lua\n", b"#!lua flags=allow-oom\n", 1)
        self._verb = b"EVALSHA_RO" if is_read_only else b"EVALSHA"
        self._sha = sha1(self.source, usedforsecurity=False).hexdigest().encode()

    async def call(self, lane: Lane, key: bytes, *words: bytes | int) -> Any:
        command = pack(self._verb, self._sha, 1, key, *words)
        try:
            return await lane.ask(command)
        except LaneRefused as exc:
            if not str(exc).startswith("NOSCRIPT"):
                raise
        await lane.ask(pack(b"SCRIPT", b"LOAD", self.source))
        return await lane.ask(command)


LOOKUP, APPLY, SLOTS = Script("lookup", is_read_only=True), Script("apply"), Script("slots")
SWEEP = Script("apply", frees=True)


class Forgotten(Exception):
    """The server does not know our slots any more: emptied, failed over, or we were paused for too long. What
    is held has to be told again."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Who tells of a worker, by the fence of its lease, and what its stream is known to be."""

    fence: int
    state: StreamState


@dataclass(slots=True)
class Lanes:
    """Lookups wait behind no write. Exchanged for others when they are lost."""

    asks: Lane
    writes: Lane


class RadixTree:
    """`timeout_s` is for each call but lookups, whose time is kept by who asks."""

    def __init__(
        self, lanes: Lanes, prefix: str, root: BlockHash, *, keep_ms: int = KEEP_MS, timeout_s: float = 5.0
    ) -> None:
        self.lanes = lanes
        self.broken: set[bytes] = set()  # first blocks of edges that do not decode, as lookups found
        self.key = tree_key(prefix, root)
        self._keep_ms = keep_ms
        self._timeout_s = timeout_s

    def __repr__(self) -> str:
        return f"RadixTree({self.key.decode()})"

    async def overlap(self, hashes: Sequence[BlockHash], most_edges: int = MOST_EDGES) -> dict[WorkerId, int]:
        """Leading blocks held, for each worker that holds the first."""
        found: dict[WorkerId, int] = {}
        packed, done, left = pack_numbers(f"<{len(hashes)}Q", *hashes), 0, b""
        while packed:
            walked, left, broken, *told = await LOOKUP.call(
                self.lanes.asks, self.key, packed, most_edges, left
            )
            for name, depth in zip(told[::2], told[1::2], strict=True):
                worker = _worker(name)
                found[worker] = max(found.get(worker, 0), done + depth)
            done += walked
            if broken:
                self.broken.add(broken)
            packed = packed[walked * 8 :] if left else b""
        return found

    async def write(self, writer: Writer) -> None:
        """All that is queued. Raises Forgotten, after which the writer is of no use any more."""
        await self._open(writer)
        while batch := writer.plan():
            placed, gone, _ = await self._change(APPLY, batch.packed, writer.age)
            if lost := writer.done(batch, placed, gone):
                raise Forgotten(f"{self} has forgotten {lost[0].worker}")
            await self._open(writer)

    async def keep(self, writer: Writer) -> None:
        """Its slots go on. Raises Forgotten."""
        slots = [slot for slot in writer.slots if slot.number is not None]
        if slots and await self._change(SLOTS, b"keep", self._keep_ms, _packed(slots), writer.age):
            raise Forgotten(f"{self} has forgotten some of {len(slots)} workers")

    async def tell_state(self, worker: WorkerId, fence: int, state: StreamState) -> None:
        """Of a worker that has a slot under this fence."""
        await self._change(SLOTS, b"state", worker.encode(), fence, STATES.index(state))

    async def owners(self) -> dict[WorkerId, Owner]:
        """Of the workers that somebody tells of."""
        told = await self._change(SLOTS, b"owners")
        each = zip(told[::3], told[1::3], told[2::3], strict=True)
        return {_worker(name): Owner(fence, _state(state)) for name, state, fence in each}

    async def mend(self) -> int:
        """What does not decode is dropped, and told again by who has a part in it; how many edges it was."""
        broken = list(self.broken)
        for head in broken:
            await self._change(SLOTS, b"broken", head)
        self.broken.difference_update(broken)  # found once more meanwhile
        return len(broken)

    async def sweep(self) -> bool:
        """A bounded part of what forgotten slots have left; False if none is left."""
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
            return await script.call(self.lanes.writes, self.key, *words)

    async def _open(self, writer: Writer) -> None:
        """Each slot has a number, and those that have ended are seen by no lookup."""
        while writer.unopened or writer.unclosed:
            if writer.unopened:
                slot = writer.unopened[0]
                asked = slot.worker.encode(), self._keep_ms, slot.fence, int(slot.is_hidden)
                is_first = int(slot.worker in writer.unknown)
                number, age = await self._change(SLOTS, b"open", *asked, is_first)
                if number < 0:
                    writer.refused(slot)
                elif not writer.opened(slot, number, age):
                    raise Forgotten(f"{self} was begun anew")
            else:
                ended = list(writer.unclosed)
                await self._change(SLOTS, b"close", _packed(ended), writer.age)
                writer.unclosed = writer.unclosed[len(ended) :]


def _worker(name: bytes) -> WorkerId:
    """Whoever may write to Redis may have written it: a name that is no text is no worker's of ours."""
    return WorkerId(name.decode("utf-8", "replace"))


def _state(number: int) -> StreamState:
    return STATES[number] if 0 <= number < len(STATES) else StreamState.CATCHING_UP


def _packed(slots: Sequence[Slot]) -> bytes:
    return pack_numbers(f"<{len(slots)}H", *(slot.number for slot in slots))
