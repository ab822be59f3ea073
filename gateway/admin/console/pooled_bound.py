"""Hit rate of one cache of the fleet's whole size on the traffic of now: nothing placed better reuses more.

A model of the fleet in small (SHARDS, Waldspurger et al., FAST '15; miniature simulation, ATC '17): of all
blocks those with a hash below a threshold, one in 1/R, go through an exact LRU of R times the size. As
hashes are spread evenly, its misses are R of those of the whole. Misses are counted, not hits: a few blocks
that all prompts begin with are most of the hits, and are in the sample or not by chance. R is chosen so that
at most MAX_ENTRIES are kept.

A prompt's blocks are touched from the last to the first: a prefix is never older than what continues it,
so that a block that is there has all blocks before it, as in an engine that frees the end of a prompt first.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from gateway.config import Config
from gateway.core.blocks import BlockHash
from gateway.core.decision import Decision
from gateway.core.fleet import Fleet, Member

MAX_ENTRIES = 16_384
LEAST_ENTRIES = 1024
"""Entries from which on one in eight blocks is enough."""
MAX_RATE = 1 / 8
MAX_MODELS = 4
"""Models with a cache of their own here; further ones are not estimated."""
RESIZE_S = 5.0
HASH_SPACE = 1 << 64


class SampledCache:
    """LRU of `capacity` blocks, of which a sample is kept."""

    def __init__(self, capacity: int) -> None:
        self._entries: OrderedDict[int, None] = OrderedDict()
        self._threshold = HASH_SPACE
        self.resize(capacity)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def rate(self) -> float:
        return self._threshold / HASH_SPACE

    def resize(self, capacity: int) -> None:
        """Set the capacity in blocks. The rate only falls: what was not sampled is not there."""
        wanted = min(1.0, MAX_ENTRIES / max(capacity, 1), max(MAX_RATE, LEAST_ENTRIES / max(capacity, 1)))
        if (threshold := int(wanted * HASH_SPACE)) < self._threshold:
            self._threshold = threshold
            for block in [block for block in self._entries if block >= threshold]:
                del self._entries[block]
        self._most = max(1, round(capacity * self.rate))
        self._evict()

    def touch(self, blocks: Iterable[int]) -> float:
        """Use a prompt's blocks, in their order; returns about how many of all of them were not there."""
        threshold, entries = self._threshold, self._entries
        sampled = [block for block in blocks if block < threshold]
        num_missed = sum(block not in entries for block in sampled)
        for block in reversed(sampled):
            entries[block] = None
            entries.move_to_end(block)
        self._evict()
        return num_missed / self.rate

    def _evict(self) -> None:
        while len(self._entries) > self._most:
            self._entries.popitem(last=False)


class PooledCounts(NamedTuple):
    """Prompt tokens so far: of full blocks, of these about how many are missed, and all."""

    missed_tokens: int = 0
    block_tokens: int = 0
    prompt_tokens: int = 0

    @property
    def hit_rate(self) -> float | None:
        if not self.prompt_tokens:
            return None
        return max(0, self.block_tokens - self.missed_tokens) / self.prompt_tokens


class PooledBound:
    """A sampled cache for each model, as large as those of its workers together."""

    def __init__(self, fleet: Iterable[Member], clock: Callable[[], float] = time.monotonic) -> None:
        self._fleet = fleet
        self._clock = clock
        self._caches: dict[str, SampledCache] = {}
        self._resized_s = -RESIZE_S
        self.counts = PooledCounts()

    def seen(self, decision: Decision, prompts: Sequence[Sequence[BlockHash]]) -> None:
        """Count a request's prompts, with the hashes of their full blocks."""
        size, root = decision.worker.block_size, self._root(decision)
        if size is None or root is None:
            return
        if (now := self._clock()) - self._resized_s >= RESIZE_S:
            self._resize(now)
        if (cache := self._caches.get(root)) is None:
            return
        missed = sum(map(cache.touch, prompts))
        more = (round(missed * size), sum(map(len, prompts)) * size, decision.num_tokens)
        self.counts = PooledCounts(*(total + each for total, each in zip(self.counts, more, strict=True)))

    def _root(self, decision: Decision) -> str | None:
        served = decision.worker.find(decision.model)
        return served.root if served else None

    def _resize(self, now: float) -> None:
        self._resized_s = now
        capacities: dict[str, int] = {}
        for member in self._fleet:
            for root in {served.root for served in member.worker.served}:
                capacities[root] = capacities.get(root, 0) + (member.worker.num_blocks or 0)
        for root, capacity in capacities.items():
            if root in self._caches:
                self._caches[root].resize(capacity)
            elif capacity and len(self._caches) < MAX_MODELS:
                self._caches[root] = SampledCache(capacity)


def pooled_bound_of(config: Config, fleet: Fleet) -> PooledBound | None:
    """Return the bound; None with several processes, each of which sees a share of the traffic only."""
    return PooledBound(fleet) if config.server.processes == 1 else None
