"""Prospects: what a worker lacks of the hot prefixes, and who holds them."""

import pytest

from gateway.core.blocks import hash_blocks, root_hash, tokens_of
from gateway.core.kv_events import BlocksStored
from gateway.core.worker import WorkerId
from gateway.index.assumed import AssumedIndex
from gateway.index.memory import MemoryIndex
from gateway.warming.choice import Prospect
from gateway.warming.hot_prefixes import HotPrefixes, PrefixSpace
from gateway.warming.prospects import prospects_of

A, B, C = WorkerId("a"), WorkerId("b"), WorkerId("c")
SPACE = PrefixSpace("m", None, None, 4)
SHARED = list(range(16))
LONGER = [*SHARED, *range(50, 58)]


class Prospects:
    """Two prefixes, one behind the other, and three workers."""

    def __init__(self) -> None:
        self.index, self.assumed = MemoryIndex(), AssumedIndex()
        self.prefixes = HotPrefixes(1 << 20, 60.0)
        for worker in (A, B, C):
            self.index.add_worker(worker, root_hash("m"), 4)
            self.assumed.add_worker(worker, keep_s=60.0, max_blocks=1000)
        for ids in (LONGER, LONGER, SHARED, SHARED):
            tokens = tokens_of(ids)
            self.prefixes.note(SPACE, hash_blocks(tokens, 4, root_hash("m")), tokens, 0.0)

    def store(self, worker: WorkerId, ids: list[int]) -> None:
        names = list(range(len(ids) // 4))
        self.index.apply(worker, BlocksStored(names, None, tokens_of(ids), 4))

    def of(self, worker: WorkerId, **busy: float | None) -> list[Prospect]:
        hot = self.prefixes.hot(lambda space: True, 0.0)
        return prospects_of(worker, hot, self.index, self.assumed, lambda name: busy.get(name, 1.0), 0.0)

    def rates(self) -> list[float]:
        return [branch.per_minute(0.0) for branch in self.prefixes.hot(lambda space: True, 0.0)]


def test_an_empty_worker_lacks_all_of_them() -> None:
    world = Prospects()
    shared, longer = world.rates()
    assert world.of(A) == [Prospect(-1, 16, shared), Prospect(0, 8, longer)]


def test_what_it_holds_by_events_or_by_its_requests_is_not_lacking() -> None:
    world = Prospects()
    world.store(A, SHARED[:8])
    assert [each.num_new for each in world.of(A)] == [8, 8]
    world.assumed.pin(A, hash_blocks(tokens_of(LONGER), 4, root_hash("m"))[:5], 2)
    assert [each.num_new for each in world.of(A)] == [0, 4]


def test_holders_of_all_of_a_prefix_count_if_they_take_requests() -> None:
    world = Prospects()
    shared, longer = world.rates()
    world.store(B, LONGER)
    world.store(C, SHARED)
    assert [each.per_minute for each in world.of(A)] == pytest.approx([shared / 3, longer / 2])
    assert [each.per_minute for each in world.of(A, c=None)] == pytest.approx([shared / 2, longer / 2])
    assert [each.per_minute for each in world.of(A, c=0.0)] == pytest.approx([shared / 30, longer / 2])
