"""Index of a gateway that publishes its workers' blocks in Redis for all others to look up.

    own          the blocks of workers with streams that are applied here: exact at once; all that engine
                 hashes need (parents, removals, tiers, groups) is here
    publication  changes of `own`, on their way into the tree of each model (`publication.py`)
    trees        the published blocks of all gateways

Events take effect on `own` at once. `remote_overlap` asks for workers of other gateways, in one round trip;
`overlap` answers from `own` and from what was remembered of that for the prompt.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence

from gateway.core.blocks import BlockHash
from gateway.core.kv_events import EngineHash, KvEvent
from gateway.core.worker import WorkerId
from gateway.index.base import Applied, Losses
from gateway.index.memory import MemoryIndex
from gateway.index.redis_tree.publication import Publication, Trees
from gateway.index.redis_tree.tree import RadixTree

MAX_FETCHED = 1 << 14
"""Prompts, by their last block, with remembered lookups; the oldest are forgotten."""


class RadixIndex:
    """Redis index of one gateway. `tree_of` returns the tree of a model by its root; `on_news` is called when
    there is something to flush."""

    def __init__(
        self,
        tree_of: Callable[[BlockHash], RadixTree],
        losses: Losses | None = None,
        on_news: Callable[[], None] = lambda: None,
    ) -> None:
        self.trees = Trees(tree_of)
        self._roots: dict[WorkerId, BlockHash] = {}
        self.publication = Publication(self.trees, self._roots, on_news)
        self.own = MemoryIndex(losses, holdings=self.publication)
        self.publication.notify_again = self.own.republish
        self._fetched: OrderedDict[BlockHash, Mapping[WorkerId, int]] = OrderedDict()

    def __repr__(self) -> str:
        return f"RadixIndex({self.own}, {self.trees})"

    # all gateways ------------------------------------------------------------------------------

    async def remote_overlap(self, root: BlockHash, hashes: Sequence[BlockHash]) -> Mapping[WorkerId, int]:
        """Count leading blocks of other gateways' workers of a model. Raises what a pipeline raises."""
        found = await self.trees.of(root).overlap(hashes)
        return {worker: depth for worker, depth in found.items() if not self.publication.is_published(worker)}

    # ours --------------------------------------------------------------------------------------

    def add_worker(self, worker: WorkerId, root: BlockHash, block_size: int | None) -> None:
        self.drop_worker(worker)  # it may have been another model's
        self._roots[worker] = root
        self.trees.of(root)
        self.own.add_worker(worker, root, block_size)

    def drop_worker(self, worker: WorkerId) -> None:
        self.own.drop_worker(worker)
        self._roots.pop(worker, None)
        self.publication.drop_worker(worker)

    def reset_worker(self, worker: WorkerId) -> None:
        self.own.reset_worker(worker)

    def apply(self, worker: WorkerId, event: KvEvent) -> None:
        self.own.apply(worker, event)

    def applied(self, worker: WorkerId) -> Applied:
        return self.own.applied(worker)

    def num_kept(self, worker: WorkerId, *, on_gpu: bool) -> int:
        return self.own.num_kept(worker, on_gpu=on_gpu)

    def overlap(
        self, hashes: Sequence[BlockHash], most: int | None = None, *, drops_last: bool = False
    ) -> Mapping[WorkerId, int]:
        own = self.own.overlap(hashes, most, drops_last=drops_last)
        fetched = self._fetched.get(hashes[-1]) if hashes else None
        return {**fetched, **own} if fetched else own

    def remember(self, hashes: Sequence[BlockHash], found: Mapping[WorkerId, int]) -> None:
        """Let `overlap` answer for these hashes with what was found of other gateways' workers, too."""
        self._fetched.pop(hashes[-1], None)
        if found:
            self._fetched[hashes[-1]] = found
        if len(self._fetched) > MAX_FETCHED:
            self._fetched.popitem(last=False)

    def media(self, hashes: Sequence[BlockHash]) -> Mapping[WorkerId, Mapping[str, int]]:
        return self.own.media(hashes)

    def offloaded(
        self, hashes: Sequence[BlockHash], overlap: Mapping[WorkerId, int]
    ) -> Mapping[WorkerId, Mapping[tuple[str, ...], int]]:
        own = {worker: depth for worker, depth in overlap.items() if worker in self._roots}
        return self.own.offloaded(hashes, own)

    def holds(self, worker: WorkerId, hashes: Sequence[BlockHash]) -> bool:
        return self.own.holds(worker, hashes)

    def find(self, worker: WorkerId, name: EngineHash) -> BlockHash | None:
        return self.own.find(worker, name)

    def blocks(self, worker: WorkerId) -> Iterator[BlockHash]:
        return self.own.blocks(worker)

    def num_blocks(self, worker: WorkerId) -> int:
        return self.own.num_blocks(worker)

    def exclusive(self, first: int, num: int) -> tuple[Mapping[WorkerId, int], bool]:
        return {}, False

    def sweep(self) -> bool:
        return self.own.sweep()
