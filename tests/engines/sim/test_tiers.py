from dataclasses import dataclass

import pytest

from engines.sim.tiers import BlockSet, Tiers, Window
from gateway.core.blocks import BlockHash, root_hash, tokens_of
from gateway.core.kv_events import BlocksRemoved, BlocksStored, EngineHash
from gateway.core.worker import WorkerId
from gateway.index.memory import MemoryIndex
from tests.support.vllm_captures import published


@dataclass(frozen=True)
class Content:
    digest: bytes
    block_hash: BlockHash


RUN = [Content(bytes([i]), BlockHash(i)) for i in range(8)]
STORED = BlocksStored(list(range(8)), None, tokens_of(range(8)), 1, spec_kind="full_attention")


def name(digest: bytes) -> EngineHash:
    return digest[0]


def test_the_least_recently_used_blocks_leave_a_tier() -> None:
    block_set = BlockSet(2)
    assert block_set.put(RUN[:2]) == ([b"\0", b"\1"], [])
    assert block_set.put(RUN[:1]) == ([], [])
    assert block_set.put(RUN[2:3]) == ([b"\2"], [b"\1"])
    assert block_set.put(RUN[3:7]) == ([b"\5", b"\6"], [b"\0", b"\2"])


def test_a_copy_is_published_a_step_later_without_tokens() -> None:
    tiers = Tiers([("CPU", 2), ("STORAGE@", 0)], name)
    tiers.offload(RUN[:2])
    assert tiers.take_events() == []
    tiers.offload(RUN[2:3])
    none = tokens_of(())
    assert tiers.take_events() == [BlocksStored([i], None, none, 0, None, "CPU") for i in (0, 1)]
    assert tiers.num_leading(RUN) == 2
    assert tiers.take_events() == [BlocksRemoved([0], "CPU"), BlocksStored([2], None, none, 0, None, "CPU")]
    assert (tiers.num_leading(RUN), tiers.num_leading(RUN[1:])) == (0, 2)


@pytest.mark.parametrize(("window", "bound"), [(0, 8), (1, 6), (2, 6), (3, 6), (4, 3), (5, 3)])
def test_a_window_bounds_a_hit_by_blocks_before_its_end(window: int, bound: int) -> None:
    group = Window(window, 10, 1, name)
    for held in (RUN[:3], RUN[4:6]):
        for content in held:
            group.store(STORED, [content])
    assert group.bound(RUN) == bound


def test_a_group_publishes_blocks_it_has_room_for_with_all_tokens() -> None:
    group = Window(3, 2, 1, name)
    (stored,) = group.store(STORED, RUN[:4])
    assert isinstance(stored, BlocksStored)
    assert (stored.engine_hashes, stored.group_idx, stored.window, len(stored.tokens)) == ([2, 3], 1, 3, 8)
    assert stored.spec_kind == "sliding_window"
    removed, _ = group.store(STORED, RUN[4:5])
    assert removed == BlocksRemoved([2], "GPU", 1)
    group.clear()
    assert group.bound(RUN) == 0


def test_a_live_tier_publishes_as_the_simulated_one() -> None:
    """vLLM 0.32 with its OffloadingConnector on CPU, without self-description."""
    index, worker, num_placed = MemoryIndex(), WorkerId("w:1"), 0
    index.add_worker(worker, root_hash("m"), 32)
    for batch in published("offload_placeholders_bs32.bin"):
        for event in batch.events:
            index.apply(worker, event)
            if isinstance(event, BlocksStored) and event.medium == "CPU":
                num_placed += 1
                simulated = Tiers([("CPU", 1)], lambda digest, names=event.engine_hashes: names[0])
                simulated.offload(RUN[:1])
                assert simulated.take_events() == []
                assert simulated.take_events() == [event]
    applied = index.applied(worker)
    assert num_placed > 40 and applied.num_removed > 20
    assert (applied.num_orphans, applied.num_unknown_removals, applied.num_mismatched) == (0, 0, 0)
