"""Prefix cache: compared with rules, with an obvious model, and with a live engine's events."""

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.sim.cache import AdapterBlocksStored, CachedSequence, PrefixCache
from engines.vllm import Vllm
from gateway.core.blocks import hash_blocks, root_hash
from gateway.core.kv_events import BlocksCleared, BlocksRemoved, BlocksStored, EngineHash, KvEvent
from tests import DATA

CAPTURES = DATA / "vllm_captures"


def sequence(*ids: int, **fields: Any) -> CachedSequence:
    return CachedSequence(array("I", ids), **fields)


def hold(cache: PrefixCache, cached: CachedSequence) -> int:
    """Find and hold all of its tokens; returns the number of blocks hit."""
    hit = cache.find(cached)
    assert cache.allocate(cached, hit, len(cached.tokens))
    return len(hit)


def use(cache: PrefixCache, *ids: int, **fields: Any) -> int:
    """Allocate and free, as a request of one step."""
    cached = sequence(*ids, **fields)
    num_hit = hold(cache, cached)
    cache.free(cached)
    return num_hit


def stored(events: Sequence[KvEvent]) -> list[list[int]]:
    return [event.tokens.tolist() for event in events if isinstance(event, BlocksStored)]


# rules --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "num_hit"),
    [
        (8, 8, 1),  # the block of the last token never counts as a hit
        (8, 9, 2),
        (7, 8, 1),  # a partial block is not cached
        (3, 9, 0),
        (9, 5, 1),
        (9, 4, 0),
    ],
)
def test_a_hit_ends_before_the_last_token(first: int, second: int, num_hit: int) -> None:
    cache = PrefixCache(10, 4)
    use(cache, *range(first))
    assert use(cache, *range(second)) == num_hit


def test_an_aligned_prompt_stores_its_last_block_again() -> None:
    cache = PrefixCache(10, 4)
    use(cache, *range(8))
    assert stored(cache.take_events()) == [list(range(8))]
    use(cache, *range(8))
    events = cache.take_events()
    assert stored(events) == [[4, 5, 6, 7]]
    assert [copies for _, _, copies in cache.held()] == [1, 2]


def test_twins_are_removed_one_by_one() -> None:
    cache = PrefixCache(4, 4)
    first, second = sequence(*range(4)), sequence(*range(4))
    assert (hold(cache, first), hold(cache, second)) == (0, 0)
    cache.free(first)
    cache.free(second)
    cache.take_events()
    use(cache, *range(100, 108))
    removed, _ = cache.take_events()
    assert isinstance(removed, BlocksRemoved)
    assert use(cache, *range(5)) == 1, "the second copy is still there"


def test_eviction_takes_the_tail_of_the_oldest_first_and_is_published_before_the_store() -> None:
    cache = PrefixCache(5, 2)
    use(cache, 1, 2, 3, 4, 5)
    (run,) = cache.take_events()
    assert isinstance(run, BlocksStored)
    use(cache, 7, 8, 9, 10, 11, 12)
    *removed, store = cache.take_events()
    assert [event.engine_hashes for event in removed if isinstance(event, BlocksRemoved)] == [
        [run.engine_hashes[1]]
    ]
    assert stored([store]) == [[7, 8, 9, 10, 11, 12]]


def test_a_hit_makes_blocks_young() -> None:
    cache = PrefixCache(4, 2)
    use(cache, 1, 2)
    use(cache, 3, 4)
    use(cache, 1, 2, 9)
    use(cache, 5, 6, 7, 8)
    assert use(cache, 1, 2, 9) == 1
    assert use(cache, 3, 4, 9) == 0


def test_blocks_without_a_hash_are_taken_before_cached_ones() -> None:
    cache = PrefixCache(4, 2)
    use(cache, 1, 2, 3)
    use(cache, 5, 6)
    use(cache, 7)
    assert not any(isinstance(event, BlocksRemoved) for event in cache.take_events())


def test_generated_tokens_are_cached_when_their_block_is_full() -> None:
    cache = PrefixCache(10, 4)
    cached = sequence(*range(6))
    hold(cache, cached)
    for token in (6, 7, 8):
        cached.tokens.append(token)
        assert cache.allocate(cached, (), len(cached.tokens))
    first, second = cache.take_events()
    assert isinstance(first, BlocksStored)
    assert isinstance(second, BlocksStored)
    assert (second.parent, second.tokens.tolist()) == (first.engine_hashes[0], [4, 5, 6, 7])


def test_an_allocation_that_does_not_fit_changes_nothing() -> None:
    cache = PrefixCache(4, 2)
    use(cache, 1, 2)
    cache.take_events()
    big = sequence(*range(1, 9))
    assert not cache.allocate(big, cache.find(big), 8)
    assert (cache.num_free, cache.take_events(), big.blocks) == (3, [], [])


def test_a_hit_on_a_free_block_counts_as_used() -> None:
    cache = PrefixCache(3, 2)
    use(cache, 1, 2)
    other = sequence(8, 9)
    hold(cache, other)
    follow = sequence(1, 2, 3)
    assert not cache.allocate(follow, cache.find(follow), 3), "one block is free, and it is the hit"


def test_salt_and_adapter_separate_blocks_and_are_published() -> None:
    cache = PrefixCache(20, 2)
    use(cache, 1, 2, 3, 4, 5)
    assert use(cache, 1, 2, 3, 4, 5, cache_salt="s") == 0
    assert use(cache, 1, 2, 3, 4, 5, adapter="a", cache_salt="s") == 0
    assert use(cache, 1, 2, 3, 4, 5, cache_salt="s") == 2
    plain, salted, both = cache.take_events()
    assert isinstance(plain, AdapterBlocksStored)
    assert isinstance(salted, AdapterBlocksStored)
    assert isinstance(both, AdapterBlocksStored)
    assert (plain.extra_keys, plain.adapter) == (None, None)
    assert salted.extra_keys == [("s",), None]
    assert (both.extra_keys, both.adapter) == ([("a", "s"), ("a",)], "a")


def test_a_prompt_that_does_not_read_the_cache_is_still_stored() -> None:
    cache = PrefixCache(10, 2)
    use(cache, 1, 2, 3)
    assert use(cache, 1, 2, 3, reads_cache=False) == 0
    assert len(cache.take_events()) == 2


def test_a_hit_is_announced_again_on_request() -> None:
    cache = PrefixCache(10, 2)
    use(cache, 1, 2, 3, 4, 5)
    cache.take_events()
    use(cache, 1, 2, 3, 4, 5, reports_hit=True)
    (run,) = cache.take_events()
    assert isinstance(run, BlocksStored)
    assert (run.parent, run.tokens.tolist()) == (None, [1, 2, 3, 4])
    assert [copies for _, _, copies in cache.held()] == [1, 1]


def test_reset_waits_for_holders() -> None:
    cache = PrefixCache(10, 2)
    cached = sequence(1, 2, 3)
    hold(cache, cached)
    assert not cache.reset()
    cache.free(cached)
    assert cache.reset()
    assert cache.take_events()[-1] == BlocksCleared()
    assert cache.held() == []
    assert use(cache, 1, 2, 3) == 0


def test_usage_leaves_out_the_null_block() -> None:
    cache = PrefixCache(5, 2)
    hold(cache, sequence(1, 2, 3))
    assert cache.usage == 0.5


def test_cached_blocks_have_our_hashes_too() -> None:
    cache = PrefixCache(10, 2, model="model")
    tokens = array("I", [1, 2, 3, 4])
    use(cache, *tokens, cache_salt="s")
    ours = hash_blocks(tokens, 2, root_hash("model"), [("s",)])
    assert [block_hash for _, block_hash, _ in cache.held()] == ours


def test_hashes_are_those_of_vllm() -> None:
    """Computed by vLLM 0.32: hash_block_tokens(sha256_cbor, ...) of 1000..1063 with cache_salt "x"."""
    cache = PrefixCache(10, 32)
    use(cache, *range(1000, 1064), cache_salt="x")
    assert [name for name, _, _ in cache.held()] == [16929040574947971794, 13365460146887643943]


def test_raw_hashes_end_in_the_integers() -> None:
    raw, number = PrefixCache(10, 2, hash_form="bytes"), PrefixCache(10, 2)
    use(raw, 1, 2)
    use(number, 1, 2)
    (((name, _, _),), ((integer, _, _),)) = raw.held(), number.held()
    assert isinstance(name, bytes)
    assert (len(name), int.from_bytes(name[-8:], "big")) == (32, integer)


# the obvious model --------------------------------------------------------------------------------


@dataclass
class Slot:
    holders: int = 0
    prefix: tuple[int, ...] | None = None


@dataclass
class Oracle:
    """Model of the same rules with plain lists and whole prefixes instead of hashes: slow and obvious."""

    num_blocks: int
    size: int
    queue: list[Slot] = field(default_factory=list)
    born: list[Slot] = field(default_factory=list)
    tables: dict[int, list[Slot]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.queue = [Slot() for _ in range(self.num_blocks - 1)]

    def find(self, tokens: tuple[int, ...]) -> list[Slot]:
        hit: list[Slot] = []
        for end in range(self.size, len(tokens), self.size):
            slot = next((slot for slot in self.born if slot.prefix == tokens[:end]), None)
            if slot is None:
                break
            hit.append(slot)
        return hit

    def hold(self, key: int, tokens: tuple[int, ...]) -> bool:
        table = self.tables.get(key)
        hit = self.find(tokens) if table is None else []
        have = table or []
        num_new = -(-len(tokens) // self.size) - len(have) - len(hit)
        if num_new > len([slot for slot in self.queue if slot not in hit]):
            return False
        for slot in hit:
            slot.holders += 1
            self.queue = [each for each in self.queue if each is not slot]
        taken, self.queue = self.queue[: max(0, num_new)], self.queue[max(0, num_new) :]
        for slot in taken:
            self.forget(slot)
            slot.holders = 1
        self.tables[key] = [*have, *hit, *taken]
        for end in range(self.size, len(tokens) + 1, self.size):
            slot = self.tables[key][end // self.size - 1]
            if slot.prefix is None:
                slot.prefix = tokens[:end]
                self.born.append(slot)
        return True

    def forget(self, slot: Slot) -> None:
        slot.prefix = None
        self.born = [each for each in self.born if each is not slot]

    def free(self, key: int) -> None:
        given_up = [slot for slot in reversed(self.tables.pop(key)) if not self.drop(slot)]
        front = [slot for slot in given_up if slot.prefix is None]
        self.queue = front + self.queue + [slot for slot in given_up if slot.prefix is not None]

    def drop(self, slot: Slot) -> int:
        slot.holders -= 1
        return slot.holders

    def cached(self) -> Counter[tuple[int, ...]]:
        return Counter(slot.prefix for slot in self.born if slot.prefix)


Slot.__eq__ = object.__eq__  # type: ignore[method-assign] # slots are places, not values


@st.composite
def operations(draw: st.DrawFn) -> list[tuple[str, int, list[int]]]:
    """Requests that share prefixes, grow, and end in any order."""
    kinds = st.sampled_from(["begin", "begin", "begin", "grow", "end", "reset"])
    prompts = st.lists(st.integers(0, 1), min_size=1, max_size=14)
    return draw(st.lists(st.tuples(kinds, st.integers(0, 4), prompts), max_size=40))


@given(operations())
def test_the_cache_equals_the_obvious_model(steps: list[tuple[str, int, list[int]]]) -> None:
    size = 2
    cache, oracle = PrefixCache(9, size), Oracle(9, size)
    living: dict[int, CachedSequence] = {}
    follower = Follower()
    prefixes: dict[EngineHash, tuple[int, ...]] = {}
    for kind, key, ids in steps:
        if kind == "begin" and key not in living:
            cached = sequence(*ids)
            hit = cache.find(cached)
            assert len(hit) == len(oracle.find(tuple(ids)))
            if oracle.hold(key, tuple(ids)):
                assert cache.allocate(cached, hit, len(ids))
                living[key] = cached
            else:
                assert not cache.allocate(cached, hit, len(ids))
        elif kind == "grow" and key in living:
            cached = living[key]
            longer = (*cached.tokens, ids[0])
            fits = oracle.hold(key, longer)
            cached.tokens.append(ids[0])
            assert cache.allocate(cached, (), len(longer)) == fits
            if not fits:
                cached.tokens.pop()
        elif kind == "end" and key in living:
            cache.free(living.pop(key))
            oracle.free(key)
        elif kind == "reset":
            assert cache.reset() == (not living)
            if not living:
                for slot in list(oracle.born):
                    oracle.forget(slot)
        follower.follow(cache.take_events())
        for cached in living.values():
            for index, content in enumerate(cached.contents):
                name = int.from_bytes(content.digest[-8:], "big")
                prefixes[name] = tuple(cached.tokens[: (index + 1) * size])
        held = Counter({name: copies for name, _, copies in cache.held()})
        assert follower.held == held, "the event stream says exactly what is held"
        assert Counter({prefixes[name]: copies for name, copies in held.items()}) == oracle.cached()
        assert cache.num_free == len(oracle.queue)


@dataclass
class Follower:
    """View of a subscriber: copies by engine hash."""

    held: Counter[EngineHash] = field(default_factory=Counter)

    def follow(self, events: Sequence[KvEvent]) -> None:
        for event in events:
            match event:
                case BlocksStored():
                    assert event.parent is None or event.parent in self.held
                    self.held.update(event.engine_hashes)
                case BlocksRemoved():
                    self.held.subtract(event.engine_hashes)
                    assert min(self.held.values()) >= 0
                case BlocksCleared():
                    self.held.clear()
        self.held += Counter()  # drops zeros


# a live engine's events ---------------------------------------------------------------------------


def captured(name: str) -> list[Sequence[KvEvent]]:
    """Published batches: records `[source, recv_ns, frames]` one after the other."""
    content = (CAPTURES / name).read_bytes()
    for count in range(1, 100):
        try:
            records = msgspec.msgpack.decode(b"\xdc" + count.to_bytes(2, "big") + content)
        except msgspec.DecodeError:
            continue
        adapter = Vllm()
        return [adapter.decode(frames).events for source, _, frames in records if source == "pub"]
    raise AssertionError(f"{name} does not split into records")


def run_of(event: KvEvent) -> list[int]:
    assert isinstance(event, BlocksStored)
    return event.tokens.tolist()


def assert_same(real: Sequence[Sequence[KvEvent]], ours: Sequence[Sequence[KvEvent]]) -> None:
    """Equal but for the names of blocks, which must correspond one to one."""
    there: dict[Any, Any] = {None: None}
    for first, second in zip(real, ours, strict=True):
        for expected, event in zip(first, second, strict=True):
            for name, its in zip(_names(expected), _names(event), strict=True):
                assert there.setdefault(name, its) == its
            assert _rest(expected) == _rest(event)
    assert len(set(there.values())) == len(there)


def _names(event: KvEvent) -> Iterator[EngineHash | None]:
    if isinstance(event, BlocksStored):
        yield event.parent
    if isinstance(event, BlocksStored | BlocksRemoved):
        yield from event.engine_hashes


def _rest(event: KvEvent) -> tuple[Any, ...]:
    if not isinstance(event, BlocksStored):
        return type(event), getattr(event, "medium", None)
    keys = [tuple(each) if each else None for each in event.extra_keys or []]
    return event.tokens, event.block_size, keys if any(keys) else None, event.medium, event.spec_kind


def test_a_captured_eviction_is_reproduced() -> None:
    """Four prompts of 16 blocks each through 40 blocks of 32, one token asked of each."""
    real = captured("evict_bs32.bin")
    cache = PrefixCache(40, 32)
    ours = []
    for batch in real:
        use(cache, *run_of(batch[-1]))
        ours.append(cache.take_events())
    assert_same(real, ours)


def test_a_captured_session_is_reproduced() -> None:
    """A prefix, a prompt that continues it, a generated block, a salt, and a reset."""
    real = captured("session_bs128.bin")
    first, child, prompt, generated = (run_of(batch[0]) for batch in real[:4])
    cache = PrefixCache(682, 128)
    ours: list[Sequence[KvEvent]] = []

    assert use(cache, *first, 1) == 0
    ours.append(cache.take_events())
    assert use(cache, *first, *child, 1) == 2
    ours.append(cache.take_events())
    cached = sequence(*prompt, generated[0])
    hold(cache, cached)
    ours.append(cache.take_events())
    for token in generated[1:]:
        cached.tokens.append(token)
        assert cache.allocate(cached, (), len(cached.tokens))
    cache.free(cached)
    ours.append(cache.take_events())
    use(cache, *first, 1, cache_salt="tenantA")
    ours.append(cache.take_events())
    assert cache.reset()
    use(cache, *first, 1)
    ours.append(cache.take_events())
    assert_same(real, ours)
