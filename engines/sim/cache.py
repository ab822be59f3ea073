"""Prefix cache of a vLLM v1 worker without the KV: the tokens of each block, and their lifetimes.

After vLLM's BlockPool, KVCacheManager and FullAttentionManager (0.32), one full-attention group:

    hit      the leading full blocks found by chained hash, never the block of the last token
    touch    a hit block without a holder leaves the free queue
    take     new blocks come from the front of the free queue; a cached one is evicted: removal event
    store    a block is cached as soon as its last token is scheduled: one store event per run
    twins    equal blocks of two sequences are both cached; the older is found, each is removed on its own
    free     tail first: blocks with a hash to the back of the queue, those without to the front
    report   a sequence may ask for its hit to be announced again, as one run from the root
    tiers    see tiers.py: blocks beside the GPU, and a window's group
    partial  on request, the beginning of a block that a sequence leaves is published too, under a hash and
             size of its own; it is removed by the next such
    fail     some free blocks lose their contents, in any place: holes, as after failed loads
    reset    only while no sequence holds blocks; the queue keeps its order

Block 0 is the null block, which is never handed out.
"""

import random
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from struct import Struct
from typing import Literal, NamedTuple

from engines.sim.cbor import block_digest
from engines.sim.tiers import Tiers, Window
from gateway.core.blocks import BlockHash, ExtraKeys, Tokens, hash_blocks, root_hash
from gateway.core.kv_events import GPU, BlocksCleared, BlocksRemoved, BlocksStored, EngineHash, KvEvent

ROOT = sha256(b"\x6evllm-none-hash").digest()
"""vLLM's NONE_HASH under sha256_cbor: the digest of its fixed seed as a CBOR text of 14 bytes."""

HashForm = Literal["int", "bytes", "ours"]


@dataclass(frozen=True, slots=True)
class AdapterBlocksStored(BlocksStored):
    """Run of blocks with its adapter, which the wire names beside the extra keys."""

    adapter: str | None = None


@dataclass(slots=True, eq=False)
class CacheBlock:
    """Physical block of the cache. `content` is set while it is cached."""

    number: int
    refs: int = 0
    content: "Content | None" = None


class Content(NamedTuple):
    """Contents of a full block: the engine's digest, and kvgate's hash of the same tokens and extra keys."""

    digest: bytes
    block_hash: BlockHash


@dataclass(slots=True, eq=False)
class CachedSequence:
    """Tokens of one sequence so far, and the blocks that hold them. Only PrefixCache changes blocks."""

    tokens: Tokens
    adapter: str | None = None
    cache_salt: str | None = None
    reads_cache: bool = True
    reports_hit: bool = False
    contents: list[Content] = field(default_factory=list)
    blocks: list[CacheBlock] = field(default_factory=list)
    num_stored: int = 0

    @property
    def has_keys(self) -> bool:
        return bool(self.adapter or self.cache_salt)

    def extra_keys(self, index: int) -> tuple[str, ...] | None:
        """Extra keys of the block at `index`: the adapter in each, the salt in the first."""
        keys = (self.adapter, self.cache_salt if index == 0 else None)
        return tuple(key for key in keys if key) or None


class PrefixCache:
    """Prefix cache of one rank; `num_blocks` counts the null block, as vLLM's num_gpu_blocks does."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        model: str = "m",
        hash_form: HashForm = "int",
        tiers: Iterable[tuple[str, int]] = (),
        window: tuple[int, int] = (0, 0),
        publishes_partial: bool = False,
    ) -> None:
        """Make an empty cache. `hash_form`: vLLM's digest or its last bytes as a number; "ours" is kvgate's
        hash, a tenth of the cost where none compares them. `tiers`: medium and blocks of each; `window`:
        tokens of a sliding one, blocks of its group."""
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._root = root_hash(model)
        self._is_int = hash_form != "bytes"
        self._is_ours = hash_form == "ours"
        self._num_made = 1  # with the null block; blocks are made when they are first taken
        self._bare: list[CacheBlock] = []  # without a hash: the front of the free queue, the first one last
        self._free: OrderedDict[CacheBlock, None] = OrderedDict()  # its back, behind those not yet made
        self._cached: dict[bytes, list[CacheBlock]] = {}
        self._events: list[KvEvent] = []
        self.tiers = Tiers(tiers, self._name)
        self.window = Window(*window, block_size, self._name)
        self._publishes_partial = publishes_partial
        self._partial: list[EngineHash] = []

    def __repr__(self) -> str:
        return (
            f"PrefixCache({self.num_blocks} blocks, {self.num_free} free, {len(self._cached)} cached hashes)"
        )

    @property
    def num_free(self) -> int:
        """Blocks without a holder, cached or not."""
        return len(self._bare) + self.num_blocks - self._num_made + len(self._free)

    @property
    def usage(self) -> float:
        """Share of the blocks that sequences hold."""
        return 1.0 - self.num_free / (self.num_blocks - 1)

    def held(self) -> list[tuple[EngineHash, BlockHash, int]]:
        """Engine hash, kvgate's hash and number of copies of all cached blocks."""
        firsts = ((blocks[0].content, len(blocks)) for blocks in self._cached.values())
        return [(self._name(it.digest), it.block_hash, copies) for it, copies in firsts if it is not None]

    @property
    def has_events(self) -> bool:
        return bool(self._events)

    def take_events(self) -> list[KvEvent]:
        events, self._events = self._events, []
        return [*events, *self.tiers.take_events()]

    def media(self) -> dict[str, list[BlockHash]]:
        """Hashes of the cached blocks by medium; under "window", those of the window's group."""
        held = {GPU: [block_hash for _, block_hash, _ in self.held()]}
        held |= {
            medium: list(block_set.blocks.values()) for medium, block_set in self.tiers.by_medium.items()
        }
        return held | {"window": list(self.window.block_set.blocks.values())}

    def fail(self, num_blocks: int, rng: random.Random) -> None:
        """Lose the contents of any free cached blocks."""
        cached = [block for block in self._free if block.content is not None]
        for block in rng.sample(cached, min(num_blocks, len(cached))):
            assert block.content is not None
            self._evict(block, block.content.digest)
            del self._free[block]
            self._bare.append(block)

    # what a scheduler does ------------------------------------------------------------------------

    def find(self, sequence: CachedSequence) -> list[CacheBlock]:
        """The longest cached prefix, as blocks; the last token is never part of it."""
        if not sequence.reads_cache:
            return []
        self._hash(sequence)
        hit: list[CacheBlock] = []
        for content in sequence.contents[: (len(sequence.tokens) - 1) // self.block_size]:
            blocks = self._cached.get(content.digest)
            if blocks is None:
                break
            hit.append(blocks[0])
        del hit[self.window.bound(sequence.contents[: len(hit)]) :]
        if hit and sequence.reports_hit:
            self._events.append(self._stored(sequence, 0, len(hit)))
        return hit

    def num_to_load(self, sequence: CachedSequence, num_hit: int) -> int:
        """Number of blocks behind a hit that need not be computed, because a tier has them."""
        most = (len(sequence.tokens) - 1) // self.block_size
        is_possible = sequence.reads_cache and self.tiers.by_medium and not self.window.window
        return self.tiers.num_leading(sequence.contents[num_hit:most]) if is_possible else 0

    def fits(self, sequence: CachedSequence, hit: Sequence[CacheBlock], num_tokens: int) -> bool:
        """True if `num_tokens` in all could be held now; hit blocks on the free queue are used up too."""
        num_new = -(-num_tokens // self.block_size) - len(sequence.blocks) - len(hit)
        return max(num_new, 0) + sum(block.refs == 0 for block in hit) <= self.num_free

    def allocate(
        self, sequence: CachedSequence, hit: Sequence[CacheBlock], num_tokens: int, stores: bool = True
    ) -> bool:
        """Hold blocks for the first `num_tokens`, and cache the full ones; False where there are too few.

        With `stores` False their contents come later: call `store` then.
        """
        if not hit and num_tokens <= len(sequence.blocks) * self.block_size:  # most steps of decoding
            self._store(sequence, min(num_tokens, len(sequence.tokens)) // self.block_size)
            return True
        if not self.fits(sequence, hit, num_tokens):
            return False
        self._touch(hit)
        sequence.blocks.extend(hit)
        sequence.num_stored += len(hit)
        while len(sequence.blocks) * self.block_size < num_tokens:
            sequence.blocks.append(self._take())
        if stores:
            self.store(sequence, num_tokens)
        return True

    def store(self, sequence: CachedSequence, num_tokens: int) -> None:
        """Cache the full blocks of the first `num_tokens`, which the sequence holds."""
        self._store(sequence, min(num_tokens, len(sequence.tokens)) // self.block_size)

    def free(self, sequence: CachedSequence) -> None:
        """Give up all blocks, the tail first; cached blocks stay cached until they are taken."""
        uncached: list[CacheBlock] = []
        for block in reversed(sequence.blocks):
            block.refs -= 1
            if block.refs == 0:
                if block.content is None:
                    uncached.append(block)
                else:
                    self._free[block] = None
        self._bare += reversed(uncached)
        if self._publishes_partial:
            self._publish_partial(sequence)
        sequence.blocks.clear()
        sequence.num_stored = 0

    def reset(self) -> bool:
        """Forget everything cached; False while sequences hold blocks."""
        if self.num_free != self.num_blocks - 1:
            return False
        for blocks in self._cached.values():
            for block in blocks:
                block.content = None
        self._cached.clear()
        self.window.clear()
        self._events.append(BlocksCleared())
        return True

    # blocks ---------------------------------------------------------------------------------------

    def _touch(self, hit: Sequence[CacheBlock]) -> None:
        for block in hit:
            if block.refs == 0:
                del self._free[block]
            block.refs += 1

    def _take(self) -> CacheBlock:
        if self._bare:
            block = self._bare.pop()
        elif self._num_made < self.num_blocks:
            block = CacheBlock(self._num_made)
            self._num_made += 1
        else:
            block, _ = self._free.popitem(last=False)
            if block.content is not None:
                self._evict(block, block.content.digest)
        block.refs = 1
        return block

    def _evict(self, block: CacheBlock, digest: bytes) -> None:
        twins = self._cached[digest]
        twins.remove(block)
        if not twins:
            del self._cached[digest]
        block.content = None
        self._events.append(BlocksRemoved([self._name(digest)]))

    def _store(self, sequence: CachedSequence, num_full: int) -> None:
        first = sequence.num_stored
        if first >= num_full:
            return
        self._hash(sequence)
        contents = sequence.contents[first:num_full]
        for block, content in zip(sequence.blocks[first:num_full], contents, strict=True):
            block.content = content
            self._cached.setdefault(content.digest, []).append(block)
        sequence.num_stored = num_full
        run = self._stored(sequence, first, num_full)
        self._events += [run, *self.window.store(run, contents)]
        self.tiers.offload(contents)

    def _stored(self, sequence: CachedSequence, first: int, end: int) -> AdapterBlocksStored:
        keys: list[ExtraKeys] = []
        if sequence.has_keys:
            keys = [sequence.extra_keys(index) for index in range(first, end)]
        return AdapterBlocksStored(
            engine_hashes=[self._name(content.digest) for content in sequence.contents[first:end]],
            parent=self._name(sequence.contents[first - 1].digest) if first else None,
            tokens=sequence.tokens[first * self.block_size : end * self.block_size],
            block_size=self.block_size,
            extra_keys=keys if any(keys) else None,
            spec_kind="full_attention",
            adapter=sequence.adapter,
        )

    def _publish_partial(self, sequence: CachedSequence) -> None:
        tail = sequence.tokens[sequence.num_stored * self.block_size :]
        if not 0 < len(tail) < self.block_size:
            return
        if self._partial:
            self._events.append(BlocksRemoved(self._partial))
        parent = sequence.contents[sequence.num_stored - 1].digest if sequence.num_stored else None
        self._partial = [self._name(sha256((parent or ROOT) + tail.tobytes()).digest())]
        parent_name = None if parent is None else self._name(parent)
        event = BlocksStored(self._partial, parent_name, tail, len(tail), spec_kind="full_attention")
        self._events.append(event)

    def _hash(self, sequence: CachedSequence) -> None:
        """Add the contents of blocks that became full."""
        size, contents = self.block_size, sequence.contents
        first, end = len(contents), len(sequence.tokens) // size
        if first == end:
            return
        tokens = sequence.tokens[first * size : end * size]
        digest, ours = (contents[-1].digest, contents[-1].block_hash) if contents else (ROOT, self._root)
        keys = [sequence.extra_keys(index) for index in range(first, end)] if sequence.has_keys else None
        hashes = hash_blocks(tokens, size, ours, keys)
        if self._is_ours:
            contents += map(Content, map(_pack, hashes), hashes)
            return
        for i, block_hash in enumerate(hashes):
            tagged = _tagged(sequence, first + i)
            digest = block_digest(digest, tokens[i * size : (i + 1) * size], tagged)
            contents.append(Content(digest, block_hash))

    def _name(self, digest: bytes) -> EngineHash:
        return int.from_bytes(digest[-8:], "big") if self._is_int else digest


_pack = Struct(">Q").pack


def _tagged(sequence: CachedSequence, index: int) -> Sequence[Sequence[str]]:
    """Extra keys as they enter the digest. An adapter's path is its name here."""
    keys: list[tuple[str, ...]] = []
    if sequence.adapter:
        keys.append(("lora", sequence.adapter, sequence.adapter))
    if sequence.cache_salt and index == 0:
        keys.append(("cache_salt", sequence.cache_salt))
    return keys
