from gateway.core.blocks import BlockHash
from gateway.core.worker import WorkerId
from gateway.index.holder_masks import HolderMasks


def test_freed_bits_are_reused() -> None:
    masks = HolderMasks()
    bits = [masks.allocate_bit(WorkerId(str(i))) for i in range(3)]
    assert bits == [1, 2, 4]
    masks.free_bit(2)
    assert masks.allocate_bit(WorkerId("new")) == 2


def test_walk_ends_where_no_worker_has_the_block() -> None:
    masks = HolderMasks()
    a, b = masks.allocate_bit(WorkerId("a")), masks.allocate_bit(WorkerId("b"))
    for block in (1, 2, 3):
        masks.add(BlockHash(block), a)
    masks.add(BlockHash(1), b)
    masks.add(BlockHash(3), b)
    assert not masks.add(BlockHash(1), b)
    run = [BlockHash(i) for i in (1, 2, 3, 4)]
    assert masks.walk(run) == {"a": 3, "b": 1}
    assert masks.walk(run[1:]) == {"a": 2}
    assert masks.walk([]) == {}
    masks.remove(BlockHash(1), a)
    masks.remove(BlockHash(1), b)
    assert masks.walk(run) == {}
    assert len(masks) == 2
