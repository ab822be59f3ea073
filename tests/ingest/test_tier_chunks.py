"""Chunks of offload tiers as the blocks that their tokens make."""

import random
from array import array
from collections.abc import Iterable

import pytest

from gateway.core.blocks import hash_blocks, root_hash, tokens_of
from gateway.core.kv_events import BlocksRemoved, BlocksStored, KvEvent, num_blocks
from gateway.core.worker import WorkerId
from gateway.index.base import Applied
from gateway.index.memory import MemoryIndex
from gateway.ingest.chunks import PORTION_BLOCKS, portions
from gateway.ingest.tier_chunks import TierChunks

W, ROOT, SIZE = WorkerId("w:1"), root_hash("m"), 4
PROMPT = hash_blocks(tokens_of(range(96)), SIZE, ROOT, None)


class TierWorld:
    """Worker with blocks of 4 tokens, and a tier with chunks of 16."""

    def __init__(self) -> None:
        self.index = MemoryIndex()
        self.index.add_worker(W, ROOT, SIZE)
        self.chunks = TierChunks(SIZE)

    def apply(self, *events: KvEvent) -> None:
        for event in portions(self.chunks.in_blocks(events, self.index.applied(W))):
            self.index.apply(W, event)

    @property
    def depth(self) -> int:
        return self.index.overlap(PROMPT).get(W, 0)

    @property
    def unplaced(self) -> dict[str, int]:
        applied = self.index.applied(W)
        assert (applied.num_orphans, applied.num_mismatched) == (0, 0)
        return applied.unplaced


def chunk(
    names: list[int | bytes], first: int = 0, parent: int | bytes | None = None, size: int = 16
) -> BlocksStored:
    ids = range(first, first + size * len(names))
    return BlocksStored(names, parent, tokens_of(ids), size, medium="CPU")


def on_gpu(ids: Iterable[int], names: list[int], parent: int | None = None) -> BlocksStored:
    return BlocksStored(names, parent, tokens_of(ids), SIZE)


def test_a_chunk_is_credited_by_its_tokens_and_goes_with_its_name() -> None:
    world = TierWorld()
    world.apply(chunk([b"first"]), chunk([-7], 16, b"first"), chunk([8, 9], 32, -7))
    assert (world.depth, world.unplaced) == (16, {})
    assert world.index.media(PROMPT) == {W: {"CPU": 16}}
    world.apply(BlocksRemoved([9, 8], "CPU"))
    assert (world.depth, world.index.num_blocks(W)) == (8, 8)
    world.apply(BlocksRemoved([b"first", -7], "CPU"))
    assert (world.depth, world.index.num_blocks(W), repr(world.chunks)) == (0, 0, "TierChunks(0 chunks)")


def test_the_gpu_is_followed_beside_a_tier_with_chunks() -> None:
    world = TierWorld()
    world.apply(on_gpu(range(16), [1, 2, 3, 4]), chunk([70]), on_gpu(range(16, 20), [5], 4))
    assert world.index.media(PROMPT) == {W: {"GPU": 5, "CPU": 4}}
    world.apply(BlocksRemoved([5, 4, 3]))
    assert (world.depth, world.index.media(PROMPT)) == (4, {W: {"GPU": 2, "CPU": 4}})
    world.apply(BlocksRemoved([70], "CPU"))
    assert world.depth == 2


def test_a_chunk_announced_again_is_still_one() -> None:
    world = TierWorld()
    world.apply(chunk([70]), chunk([70, 71]), BlocksRemoved([70], "CPU"))
    assert world.index.num_blocks(W) == 4
    world.apply(BlocksRemoved([71], "CPU"))
    assert world.index.num_blocks(W) == 0


@pytest.mark.parametrize(
    ("event", "num"),
    [
        (chunk([70], 16, parent=0), 4),
        (chunk([70], size=15), 1),
        (chunk([70], size=3), 1),
        (BlocksStored([70], None, tokens_of(range(12)), 16, medium="CPU"), 1),
        (BlocksStored([70], None, tokens_of(range(16)), 16, [["salt"]], "CPU"), 1),
        (BlocksStored([70], None, tokens_of([]), 16, None, "CPU"), 1),
        (BlocksStored([70], None, tokens_of(range(16)), 16, medium="CPU@pool"), 1),
        (
            BlocksStored(
                [70], None, array("I", range(SIZE * (PORTION_BLOCKS + 1))), SIZE * (PORTION_BLOCKS + 1)
            ),
            0,
        ),
    ],
    ids=[
        "unknown parent", "no whole blocks", "smaller", "tokens missing", "extra keys", "no tokens", "shared",
        "on the GPU",
    ],
)  # fmt: skip
def test_a_chunk_that_cannot_be_credited_is_counted_for_its_medium(event: BlocksStored, num: int) -> None:
    world = TierWorld()
    world.apply(on_gpu(range(8), [1, 2]))
    world.apply(event)
    applied = world.index.applied(W)
    assert applied.unplaced == ({event.medium: num} if num else {})
    assert (applied.num_orphans, applied.num_mismatched) == (0, 0 if num else 1)
    assert (world.depth, repr(world.chunks)) == (2, "TierChunks(0 chunks)")


def test_a_group_beside_full_attention_keeps_its_own_blocks() -> None:
    chunks = TierChunks(SIZE)
    event = BlocksStored([70], None, tokens_of(range(16)), 16, None, "CPU", 1, "mamba")
    assert list(chunks.in_blocks([event], Applied())) == [event]


def test_a_full_tier_takes_removals_only() -> None:
    world = TierWorld()
    world.apply(on_gpu(range(8), [1, 2]), chunk([70]))
    world.chunks.is_full = True
    world.apply(chunk([71, 72], 16, 70), on_gpu(range(8, 12), [3], 2))
    assert (world.depth, world.unplaced) == (4, {"CPU": 2})
    world.apply(BlocksRemoved([70], "CPU"))
    assert (world.depth, world.index.num_blocks(W)) == (3, 3)
    world.chunks.reset()
    assert not world.chunks.is_full


def test_removals_come_in_portions() -> None:
    world, num = TierWorld(), 40
    size = SIZE * 128
    world.apply(*[chunk([name], name * size, size=size) for name in range(num)])
    assert world.index.num_blocks(W) == num * 128
    removals = list(world.chunks.in_blocks([BlocksRemoved(range(num), "CPU")], world.index.applied(W)))
    assert max(map(num_blocks, removals)) <= PORTION_BLOCKS + 128
    world.apply(*removals)
    assert world.index.num_blocks(W) == 0


def test_any_order_of_stores_and_removals_ends_empty() -> None:
    rng, world, names = random.Random(1), TierWorld(), set[int]()
    for _ in range(500):
        name = rng.randrange(6)
        if name in names and rng.random() < 0.5:
            names.discard(name)
            world.apply(BlocksRemoved([name], "CPU"))
        else:
            names.add(name)
            world.apply(chunk([name], name * 16))
        assert world.index.num_blocks(W) == 4 * len(names)
    world.apply(BlocksRemoved(sorted(names), "CPU"))
    assert (world.index.num_blocks(W), world.unplaced) == (0, {})
