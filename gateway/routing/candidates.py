"""Candidates of a decision: each worker's overlap with a prompt, and its load.

tokens ─ hashes per (model root, block size) ─ index: blocks that events reported ─┐
                         assumed: blocks that were sent, not reported yet ─────────┴─► overlap per worker
"""

from collections.abc import Mapping, Sequence
from typing import Final

from mypy_extensions import mypyc_attr

from gateway.core.blocks import (
    SMALL_BLOCK,
    BlockHash,
    HashCache,
    HashSpace,
    count_tokens,
    prompt_extra_keys,
    root_hash,
)
from gateway.core.decision import Candidate, Prompt
from gateway.core.event_stream import StreamState
from gateway.core.fleet import EligibleWorker, HashGroup, Member
from gateway.core.hit_rule import PLAIN
from gateway.core.ledger import Ledger, Load
from gateway.core.request import InferenceRequest
from gateway.core.token_runs import hash_continued
from gateway.core.worker import WorkerId
from gateway.index.assumed import AssumedIndex
from gateway.index.base import Index
from gateway.index.sent_media import SentLinks


@mypyc_attr(acyclic=True)
class Lookup:
    """Lookup for a group of workers: block hashes per prompt; by worker, the blocks of each prompt that its
    events reported, and the leading tokens of all prompts that are cached there or will be."""

    __slots__ = ("hashes", "overlaps", "held_tokens", "offloaded")

    def __init__(self, hashes: list[list[BlockHash]]) -> None:
        self.hashes = hashes
        self.overlaps: list[Mapping[WorkerId, int]] = []
        self.held_tokens: dict[WorkerId, int] = {}
        self.offloaded: dict[WorkerId, dict[tuple[str, ...], int]] = {}


@mypyc_attr(acyclic=True)
class CachedPrefix:
    """Longest prefix of a prompt that any worker has cached, or will have: the hash of its last block, its
    tokens, and how many of those no worker has reported yet."""

    __slots__ = ("block", "num_tokens", "computing_tokens")

    def __init__(self, block: BlockHash, num_tokens: int, computing_tokens: int) -> None:
        self.block = block
        self.num_tokens = num_tokens
        self.computing_tokens = computing_tokens


class Lookups:
    """Looks prompts up in the index; `sent` finds images by the workers that they were sent to."""

    def __init__(self, index: Index, assumed: AssumedIndex, ledger: Ledger, sent: SentLinks) -> None:
        self.index = index
        self.assumed = assumed
        self._ledger = ledger
        self._sent = sent
        self._hashes = HashCache()

    def __repr__(self) -> str:
        return f"Lookups({self.index})"

    def hash_all(
        self, request: InferenceRequest, prompt: Prompt, eligible: Sequence[EligibleWorker]
    ) -> dict[HashGroup, list[list[BlockHash]]]:
        """Return the prompts' block hashes, once for each group of workers that share them; without groups
        of a rendering by which the prompt is not known."""
        hashed: dict[HashGroup, list[list[BlockHash]]] = {}
        last = None
        for e in eligible if prompt.tokens or prompt.others else ():
            if e.group is not last:
                last = e.group
                is_known = (prompt.rendered_by(last.rendering) if prompt.others else prompt).tokens
                if last.block_size and is_known and last not in hashed:
                    hashed[last] = self.hash(prompt, last, request.cache_salt)
        return hashed

    def hash(self, prompt: Prompt, group: HashGroup, cache_salt: str | None) -> list[list[BlockHash]]:
        root, size = root_hash(group.root), group.block_size
        if prompt.others:
            prompt = prompt.rendered_by(group.rendering)
        if prompt.run and size >= SMALL_BLOCK:  # a run remembers no smaller ones
            space = HashSpace(root, size, group.adapter, cache_salt)
            return [hash_continued(prompt.tokens[0], prompt.run, space)]
        hashes = []
        for tokens in prompt.tokens:
            extra = prompt_extra_keys(group.adapter, cache_salt, len(tokens) // size)
            hashes.append(self._hashes.hash_blocks(tokens, size, root, extra))
        return hashes

    def hold_all(
        self,
        prompt: Prompt,
        hashed: Mapping[HashGroup, list[list[BlockHash]]],
        now: float,
        *,
        reads_cache: bool,
    ) -> dict[HashGroup, Lookup]:
        """Look the prompts up for each group; a request that reads no cache has no overlap."""
        lookups = {group: self.hold(prompt, group, hashes, now) for group, hashes in hashed.items()}
        if not reads_cache:
            for lookup in lookups.values():
                lookup.held_tokens.clear()
        return lookups

    def hold(self, prompt: Prompt, group: HashGroup, hashes: list[list[BlockHash]], now: float) -> Lookup:
        """Look the prompts up for one group: leading blocks that events reported, then those sent."""
        size = group.block_size
        if prompt.others:
            prompt = prompt.rendered_by(group.rendering)
        lookup = Lookup(hashes)
        held_tokens = lookup.held_tokens
        for tokens, blocks in zip(prompt.tokens, hashes, strict=True):
            most = max_hit_blocks(len(tokens), size)
            overlap = self.index.overlap(blocks, most, drops_last=group.hit_rule.drops_last)
            reused = overlap if group.hit_rule is PLAIN else _reused(overlap, group)
            for worker, media in self.index.offloaded(blocks, reused).items():
                there = lookup.offloaded.setdefault(worker, {})
                for names, num in media.items():
                    there[names] = there.get(names, 0) + size * num
            lookup.overlaps.append(overlap)
            held = dict(overlap)
            self.assumed.extend(blocks, held, now)
            for worker, depth in held.items():
                num = group.hit_rule.num_reused(min(depth, most), size)
                held_tokens[worker] = held_tokens.get(worker, 0) + size * num
        return lookup

    def candidates(
        self,
        eligible: Sequence[EligibleWorker],
        lookups: Mapping[HashGroup, Lookup],
        prompt: Prompt,
        now: float,
    ) -> tuple[Candidate, ...]:
        links = prompt.links
        sent = self._sent.find(links, [e.member.worker.id for e in eligible], now) if links else _NOTHING
        num_linked = sum(links.num_tokens) if links else 0
        num_tokens = count_tokens(prompt.tokens) + num_linked
        candidates: list[Candidate] = []
        ledger, group, held = self._ledger, None, _NOTHING
        offloaded: Mapping[WorkerId, Mapping[tuple[str, ...], int]] = {}
        for e in eligible:
            if e.group is not group:
                group = e.group
                if prompt.others:
                    num_tokens = count_tokens(prompt.rendered_by(group.rendering).tokens) + num_linked
                lookup = lookups.get(group)
                held = lookup.held_tokens if lookup else _NOTHING
                offloaded = lookup.offloaded if lookup else {}
            name = e.member.worker.id
            assumed = sent.get(name, 0) if sent else 0
            there = offloaded.get(name, _ON_GPU) if offloaded else _ON_GPU
            candidates.append(
                _candidate(e.member, ledger.load(name), num_tokens, held.get(name, 0), assumed, there, now)
            )
        return tuple(candidates)


def cached_prefix(lookups: Mapping[HashGroup, Lookup]) -> CachedPrefix | None:
    """Return the longest prefix that any worker has or is computing, of a request with one prompt."""
    longest = None
    for group, lookup in lookups.items():
        if len(lookup.hashes) == 1 and lookup.held_tokens:
            size, overlap = group.block_size, lookup.overlaps[0]
            depth = min(max(lookup.held_tokens.values()) // size, len(lookup.hashes[0]))
            if depth and (longest is None or depth * size > longest.num_tokens):
                num_new = max(depth - max(overlap.values(), default=0), 0)
                longest = CachedPrefix(lookup.hashes[0][depth - 1], depth * size, num_new * size)
    return longest


def _candidate(
    member: Member,
    load: Load,
    num_tokens: int,
    overlap: int,
    assumed: int,
    offloaded: Mapping[tuple[str, ...], int],
    now: float,
) -> Candidate:
    speed = member.speed
    worth = overlap if member.confidence == 1.0 else int(overlap * member.confidence)
    reported, booked_tokens = member.reported, load.booked_tokens
    if booked_tokens:
        booked_tokens = load.ahead_tokens(now, speed.prefill_token_s(float(load.num_in_flight)))
    return Candidate(
        member.worker,
        overlap,
        num_tokens - worth - assumed,
        booked_tokens,
        load.num_in_flight,
        reported.num_waiting,
        reported.kv_usage,
        member.stream is _EXACT,
        member.confidence,
        offloaded,
        assumed,
        speed,
        member.stays_s,
        reported.unknown,
    )


_EXACT: Final = StreamState.EXACT  # of a module that is not compiled: two lookups
_NOTHING: Final[Mapping[WorkerId, int]] = {}
_ON_GPU: Final[Mapping[tuple[str, ...], int]] = {}


def _reused(overlap: Mapping[WorkerId, int], group: HashGroup) -> dict[WorkerId, int]:
    rule, size = group.hit_rule, group.block_size
    return {worker: num for worker, depth in overlap.items() if (num := rule.num_reused(depth, size))}


def max_hit_blocks(num_tokens: int, block_size: int) -> int:
    """Return the most blocks of a prompt that an engine can reuse: the last token is always computed."""
    return max(num_tokens - 1, 0) // block_size
