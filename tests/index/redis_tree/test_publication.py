"""Publication of an index's holdings, without a server; `test_tree.py` has it with one."""

from typing import cast

import pytest

from gateway.core.blocks import BlockHash, hash_blocks, root_hash, tokens_of
from gateway.core.event_stream import StreamState
from gateway.core.kv_events import BlocksRemoved, BlocksStored
from gateway.core.worker import WorkerId
from gateway.index.memory import MemoryIndex
from gateway.index.redis_tree.publication import Publication, Trees
from gateway.index.redis_tree.tree import RadixTree, SlotsLost
from gateway.index.redis_tree.writer import Writer

A, B = WorkerId("a:1"), WorkerId("b:1")
ROOT = root_hash("m")
NAMES = hash_blocks(tokens_of([7] * 4), 1, ROOT)


class Tree:
    """A tree that has the number of changes of each write, and can lose its slots once."""

    def __init__(self) -> None:
        self.written: list[int] = []
        self.states: list[tuple[WorkerId, int, StreamState]] = []
        self.loses_slots = False

    async def write(self, writer: Writer) -> None:
        if self.loses_slots:
            self.loses_slots = False
            raise SlotsLost("slots lost")
        self.written.append(writer.num_queued)

    async def publish_state(self, worker: WorkerId, fence: int, state: StreamState) -> None:
        self.states.append((worker, fence, state))


class PublicationWorld:
    """An index of two workers, of which A is published."""

    def __init__(self) -> None:
        self.tree, self.num_news = Tree(), 0
        trees, roots = Trees(lambda root: cast(RadixTree, self.tree)), {A: ROOT, B: ROOT}
        self.publication = Publication(trees, roots, self._on_news)
        self.index = MemoryIndex(holdings=self.publication)
        self.publication.notify_again = self.index.republish
        for worker in (A, B):
            self.index.add_worker(worker, ROOT, 1)
            self.index.apply(worker, BlocksStored(NAMES, None, tokens_of([7] * 4), 1))
        self.publication.publish(A, 3, StreamState.EXACT)

    def _on_news(self) -> None:
        self.num_news += 1


@pytest.fixture
def world() -> PublicationWorld:
    return PublicationWorld()


async def test_blocks_that_are_there_already_are_published(world: PublicationWorld) -> None:
    assert world.num_news and world.publication.num_queued == len(NAMES)
    await world.publication.flush()
    assert world.tree.written == [len(NAMES)]
    assert world.tree.states == [(A, 3, StreamState.EXACT)]
    assert repr(world.publication) == "Publication(1 workers, 4 changes queued)"


async def test_changes_of_published_workers_are_queued(world: PublicationWorld) -> None:
    for worker in (A, B):
        world.index.apply(worker, BlocksRemoved([NAMES[3]]))
    assert world.publication.num_queued == len(NAMES) + 1
    world.publication.withdraw(A)
    assert not world.publication.is_published(A)
    world.index.apply(A, BlocksRemoved([NAMES[2]]))
    assert world.publication.num_queued == len(NAMES) + 1


async def test_a_pause_drops_changes_and_a_resumption_publishes_all_blocks(world: PublicationWorld) -> None:
    world.publication.pause()
    world.index.apply(A, BlocksRemoved([NAMES[3]]))
    assert world.publication.num_queued == 0
    world.publication.resume()
    assert world.publication.num_queued == len(NAMES) - 1


async def test_lost_slots_publish_all_blocks_again(
    world: PublicationWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.tree.loses_slots = True
    await world.publication.flush()
    assert world.tree.written == [len(NAMES)]
    assert "publishing the blocks of this gateway's workers again" in caplog.text


def test_each_model_has_one_tree() -> None:
    made: list[BlockHash] = []

    def make(root: BlockHash) -> RadixTree:
        made.append(root)
        return cast(RadixTree, Tree())

    trees = Trees(make)
    assert trees.of(ROOT) is trees.of(ROOT)
    assert made == [ROOT] and list(trees.by_root) == [ROOT]
