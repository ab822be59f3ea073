"""An index in a real Redis server, for synchronous test suites.

from tests.support.redis_index import radix, redis_server   # fixtures
index = radix.index()                                  # an empty tree
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence

import pytest

from gateway.core.blocks import BlockHash, root_hash
from gateway.core.event_stream import StreamState
from gateway.core.worker import WorkerId
from gateway.index.redis_tree.index import RadixIndex
from gateway.index.redis_tree.pipeline import open_pipeline
from gateway.index.redis_tree.tree import MOST_EDGES, Pipelines, RadixTree
from tests.support.redis_servers import Server, redis_server

__all__ = ["Radix", "TreeIndex", "radix", "redis_server"]

ROOT = root_hash("m")


class Radix:
    """A Redis server with a loop and connections for the indexes of a module, each under its own prefix."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._runner = asyncio.Runner()
        self.pipelines = Pipelines(
            *(self.run(open_pipeline({"path": str(server.socket)}, 5)) for _ in range(2))
        )
        self._num = 0

    def run(self, work):  # type: ignore[no-untyped-def]
        return self._runner.run(work)

    def index(self, most_edges: int = MOST_EDGES) -> "TreeIndex":
        self._num += 1
        return TreeIndex(self, f"t{self._num}", most_edges)

    def close(self) -> None:
        self.pipelines.asks.close()
        self.pipelines.writes.close()
        self.run(asyncio.sleep(0))
        self._runner.close()


class TreeIndex(RadixIndex):
    """An index that asserts in each lookup that the tree agrees with its own part."""

    def __init__(self, radix: Radix, prefix: str, most_edges: int = MOST_EDGES) -> None:
        super().__init__(lambda root: RadixTree(radix.pipelines, prefix, root))
        self.radix, self.prefix, self.most_edges = radix, prefix, most_edges
        self.fence = 1

    def add_worker(self, worker: WorkerId, root: BlockHash, block_size: int | None) -> None:
        super().add_worker(worker, root, block_size)
        self.publication.publish(worker, self.fence, StreamState.EXACT)

    def tree_overlap(self, hashes: Sequence[BlockHash]) -> dict[WorkerId, int]:
        """The overlap according to the tree alone."""
        self.radix.run(self.publication.flush())
        found: dict[WorkerId, int] = self.radix.run(self.trees.of(ROOT).overlap(hashes, self.most_edges))
        return found

    def overlap(
        self, hashes: Sequence[BlockHash], most: int | None = None, *, drops_last: bool = False
    ) -> Mapping[WorkerId, int]:
        found, own = self.tree_overlap(hashes), super().overlap(hashes, most, drops_last=drops_last)
        bounded = self.own._bounded  # by KV groups, which only the leader knows
        assert {worker for worker in found if worker not in bounded} == own.keys() - bounded.keys()
        return {
            worker: own[worker] if worker in bounded else found[worker] for worker in found if worker in own
        }

    def sweep(self) -> bool:
        self.radix.run(self.publication.flush())
        swept: bool = self.radix.run(self.trees.sweep())
        return super().sweep() or swept


@pytest.fixture(scope="module")
def radix(redis_server: Server) -> Iterator[Radix]:
    radix = Radix(redis_server)
    try:
        yield radix
    finally:
        radix.close()
