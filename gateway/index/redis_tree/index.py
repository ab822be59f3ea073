"""Index of a gateway that publishes its workers' blocks in Redis for all others to look up.

    own      the blocks of workers with streams that are applied here: exact at once; all that engine
             hashes need (parents, removals, tiers, groups) is here
    writers  changes of `own`, on their way into the tree of each model
    trees    the published blocks of all gateways

Events take effect on `own` at once. `flush` carries the blocks of *published* workers over to Redis, under
the fence of the worker's lease; unpublished workers stay local. `remote_overlap` asks for workers of other
gateways, in one round trip; `overlap` answers from `own` and from what was remembered of that for the prompt.
"""

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

from gateway.core.blocks import BlockHash
from gateway.core.event_stream import StreamState
from gateway.core.kv_events import EngineHash, KvEvent
from gateway.core.worker import WorkerId
from gateway.index.base import Applied, Losses
from gateway.index.memory import MemoryIndex
from gateway.index.redis_tree.tree import RadixTree, SlotsLost
from gateway.index.redis_tree.writer import Writer
from gateway.runtime.rate_limited_log import RateLimitedLog

log = logging.getLogger("kvgate.redis")

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
        self.own = MemoryIndex(losses, holdings=self)
        self.trees: dict[BlockHash, RadixTree] = {}
        self.writers: dict[BlockHash, Writer] = {}
        self._tree_of = tree_of
        self._on_news = on_news
        self._log = RateLimitedLog(log)
        self._is_accepting = True
        self._fetched: OrderedDict[BlockHash, Mapping[WorkerId, int]] = OrderedDict()
        self._roots: dict[WorkerId, BlockHash] = {}
        self._published: dict[WorkerId, int] = {}
        self._states: dict[WorkerId, StreamState] = {}
        self._unpublished_states: set[WorkerId] = (
            set()
        )  # workers with a stream state that the tree does not have yet
        self._holdings: dict[int, tuple[WorkerId, bool]] = {}
        self._writer_of: dict[int, Writer] = {}

    def __repr__(self) -> str:
        return f"RadixIndex({self.own}, {list(self.trees.values())})"

    @property
    def num_queued(self) -> int:
        """Number of block changes that are not in a tree yet."""
        return sum(writer.num_queued for writer in self.writers.values())

    # all gateways ------------------------------------------------------------------------------

    async def remote_overlap(self, root: BlockHash, hashes: Sequence[BlockHash]) -> Mapping[WorkerId, int]:
        """Count leading blocks of other gateways' workers of a model. Raises what a pipeline raises."""
        found = await self.tree(root).overlap(hashes)
        return {worker: depth for worker, depth in found.items() if worker not in self._published}

    async def flush(self) -> None:
        """Write everything applied until now to the trees. Must not run twice at a time. Raises what a
        pipeline raises."""
        for root in list(self.writers):
            await self._safely(root, self.tree(root).write)
        for worker in list(self._unpublished_states):
            self._unpublished_states.discard(worker)
            if fence := self._published.get(worker):
                state = self._states.get(worker, StreamState.CATCHING_UP)
                await self.tree(self._roots[worker]).publish_state(worker, fence, state)

    async def keep(self) -> None:
        """Prolong the slots of our workers; to be called several times per `KEEP_MS`."""
        for root in list(self.writers):
            await self._safely(root, self.tree(root).keep)
            for worker in self.writers[root].rejected:
                self._republish_rejected(worker)

    def _republish_rejected(self, worker: WorkerId) -> None:
        """Publish a rejected worker again, which may be ours: a server that takes over may give out lower
        fences, and an earlier leader with a higher one may have written in it before learning of its end."""
        fence, state = self._published[worker], self._states[worker]
        self.withdraw(worker)
        self.publish(worker, fence, state)

    async def _safely(self, root: BlockHash, work: Callable[[Writer], Awaitable[None]]) -> None:
        try:
            await work(self.writers[root])
        except SlotsLost as exc:
            self._log.warning("%s: publishing the blocks of our workers again", exc)
            self.republish(root)
            await self.tree(root).write(self.writers[root])

    def republish(self, root: BlockHash) -> None:
        """Publish all blocks of a model again, since the server's copy is unknown."""
        fresh = self._restart_writer(root)
        for holding in fresh.holdings:
            self.own.republish(holding)

    def pause(self) -> None:
        """Stop queueing changes while Redis is away; `resume` publishes everything again."""
        self._is_accepting = False
        for root in self.writers:
            self._restart_writer(root)

    def resume(self) -> None:
        self._is_accepting = True
        for root in self.writers:
            self.republish(root)

    def _restart_writer(self, root: BlockHash) -> Writer:
        fresh = self.writers[root] = self.writers[root].restarted()
        for holding in fresh.holdings:
            self._writer_of[holding] = fresh
            self._unpublished_states.add(self._holdings[holding][0])
        return fresh

    async def sweep_trees(self) -> bool:
        """Sweep a bounded part of the edges of closed slots, ours and others'; False if none is left."""
        swept = [await tree.sweep() for tree in list(self.trees.values())]
        return any(swept)

    # publication -------------------------------------------------------------------------------

    def publish(self, worker: WorkerId, fence: int, state: StreamState) -> None:
        """Publish a worker's blocks and stream state, unless another gateway does so under a newer fence."""
        if self._states.get(worker) is not state:
            self._states[worker] = state
            self._unpublished_states.add(worker)
            self._on_news()
        if self._published.get(worker) == fence:
            return
        self.withdraw(worker)
        self._published[worker], self._states[worker] = fence, state
        self._unpublished_states.add(worker)
        for holding, (owner, is_hidden) in self._holdings.items():
            if owner == worker:
                self._begin(holding, worker, is_hidden)
                if self._is_accepting:
                    self.own.republish(holding)

    def is_published(self, worker: WorkerId) -> bool:
        return worker in self._published

    def withdraw(self, worker: WorkerId) -> None:
        """Stop publishing a worker, which another gateway publishes."""
        if self._published.pop(worker, None) is not None:
            self._states.pop(worker, None)
            for holding, (owner, _) in self._holdings.items():
                if owner == worker:
                    self._writer_of.pop(holding).end(holding)

    # ours --------------------------------------------------------------------------------------

    def add_worker(self, worker: WorkerId, root: BlockHash, block_size: int | None) -> None:
        self.drop_worker(worker)  # it may have been another model's
        self._roots[worker] = root
        self.tree(root)
        self.own.add_worker(worker, root, block_size)

    def drop_worker(self, worker: WorkerId) -> None:
        self.own.drop_worker(worker)
        self._roots.pop(worker, None)
        self._published.pop(worker, None)
        self._states.pop(worker, None)

    def reset_worker(self, worker: WorkerId) -> None:
        self.own.reset_worker(worker)

    def apply(self, worker: WorkerId, event: KvEvent) -> None:
        self.own.apply(worker, event)

    def applied(self, worker: WorkerId) -> Applied:
        return self.own.applied(worker)

    def num_kept(self, worker: WorkerId, *, on_gpu: bool) -> int:
        return self.own.num_kept(worker, on_gpu=on_gpu)

    def overlap(self, hashes: Sequence[BlockHash], most: int | None = None) -> Mapping[WorkerId, int]:
        own = self.own.overlap(hashes, most)
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

    def sweep(self) -> bool:
        return self.own.sweep()

    # the Holdings observer of `own` ------------------------------------------------------------

    def begin(self, holding: int, worker: WorkerId, *, is_hidden: bool) -> None:
        self._holdings[holding] = worker, is_hidden
        if worker in self._published:
            self._begin(holding, worker, is_hidden)

    def end(self, holding: int) -> None:
        del self._holdings[holding]
        if writer := self._writer_of.pop(holding, None):
            writer.end(holding)
            self._on_news()

    def hold(self, holding: int, blocks: Sequence[BlockHash], before: BlockHash | None) -> None:
        if self._is_accepting and (writer := self._writer_of.get(holding)):
            writer.hold(holding, blocks, before)
            self._on_news()

    def release(self, holding: int, block: BlockHash) -> None:
        if self._is_accepting and (writer := self._writer_of.get(holding)):
            writer.release(holding, block)
            self._on_news()

    def _begin(self, holding: int, worker: WorkerId, is_hidden: bool) -> None:
        writer = self._writer_of[holding] = self.writers.setdefault(self._roots[worker], Writer())
        writer.begin(holding, worker, self._published[worker], is_hidden=is_hidden)
        self._on_news()

    def tree(self, root: BlockHash) -> RadixTree:
        """Return the tree of a model, made on first use."""
        if (tree := self.trees.get(root)) is None:
            tree = self.trees[root] = self._tree_of(root)
        return tree
