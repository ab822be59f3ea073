import pytest

from gateway.core.blocks import BlockHash
from gateway.index.holder import Holder

BLOCK = 5 << 8 | 3


@pytest.fixture
def holder() -> Holder:
    return Holder(1, BlockHash(0), 16)


def test_holder_with_gpu_blocks_only_keeps_no_offload_masks(holder: Holder) -> None:
    assert holder.in_medium("GPU", BLOCK, 0b11) == 0b11
    assert holder.in_medium("CPU", BLOCK, 0b11) == 0
    holder.enter("GPU", BLOCK, 0b111, 0b011)
    assert holder.leave("GPU", BLOCK)
    assert (holder.offload, holder.off_gpu) == ({}, {})


def test_block_leaves_with_its_last_medium(holder: Holder) -> None:
    holder.enter("CPU", BLOCK, 0b11, 0b01)  # the first of the two blocks lies on the GPU
    assert holder.in_medium("GPU", BLOCK, 0b11) == 0b01
    assert holder.in_medium("CPU", BLOCK, 0b11) == 0b11
    assert not holder.leave("GPU", BLOCK)
    holder.enter("DISK", BLOCK, 0b01, 0b11)
    assert not holder.leave("CPU", BLOCK)
    assert holder.leave("DISK", BLOCK)
    assert holder.leave("CPU", BLOCK + 1)
    assert holder.off_gpu == {}


def test_block_back_on_the_gpu_stays_when_it_leaves_the_other_media(holder: Holder) -> None:
    holder.enter("CPU", BLOCK, 0b1, 0)
    holder.enter("GPU", BLOCK, 0b1, 0b1)
    assert not holder.leave("CPU", BLOCK)
    assert holder.in_medium("GPU", BLOCK, 0b1) == 0b1
    assert holder.leave("GPU", BLOCK)


def test_clear_gpu_keeps_the_other_media(holder: Holder) -> None:
    for place in (("GPU", 0), ("GPU", 2), ("CPU", 0)):
        holder.at(place).add([7], BLOCK)
        holder.copies[place, 7] = 2
        holder.aliases[place[0], BLOCK] = 2
    holder.enter("CPU", BLOCK, 0b101, 0b001)
    holder.num_blocks = 9
    assert [len(names) for names in holder.clear_gpu()] == [1, 1]
    assert holder.num_blocks == 2
    assert holder.off_gpu == {5: 0b101 << 3}
    assert holder.copies == {(("CPU", 0), 7): 2}
    assert holder.aliases == {("CPU", BLOCK): 2}
    assert holder.find(7) == BLOCK
