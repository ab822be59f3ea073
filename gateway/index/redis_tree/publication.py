"""Publication of an index's blocks in Redis: an observer of its `Holdings`, and the writers of its trees.

    begin, hold, release, end ─► writer of the worker's model ─ flush ─► tree

`flush` carries the blocks of *published* workers over to Redis, under the fence of the worker's lease;
unpublished workers stay local.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from gateway.core.blocks import BlockHash
from gateway.core.event_stream import StreamState
from gateway.core.worker import WorkerId
from gateway.index.redis_tree.tree import RadixTree, SlotsLost
from gateway.index.redis_tree.writer import Writer
from gateway.runtime.rate_limited_log import RateLimitedLog

log = logging.getLogger("kvgate.redis")


class Trees:
    """The published blocks of all gateways, a tree for each model; `tree_of` makes one by its root."""

    def __init__(self, tree_of: Callable[[BlockHash], RadixTree]) -> None:
        self.by_root: dict[BlockHash, RadixTree] = {}
        self._tree_of = tree_of

    def __repr__(self) -> str:
        return f"Trees({list(self.by_root.values())})"

    def of(self, root: BlockHash) -> RadixTree:
        """Return the tree of a model, made on first use."""
        if (tree := self.by_root.get(root)) is None:
            tree = self.by_root[root] = self._tree_of(root)
        return tree

    async def sweep(self) -> bool:
        """Sweep a bounded part of the edges of closed slots, ours and others'; False if none is left."""
        swept = [await tree.sweep() for tree in list(self.by_root.values())]
        return any(swept)


class Publication:
    """Observer of the blocks that an index's workers hold. `roots` has the model of each worker; `on_news` is
    called when there is something to flush."""

    def __init__(
        self, trees: Trees, roots: Mapping[WorkerId, BlockHash], on_news: Callable[[], None] = lambda: None
    ) -> None:
        self.writers: dict[BlockHash, Writer] = {}
        self.notify_again: Callable[[int], None] = lambda holding: None
        """Notifies this observer of all blocks of a holding again (`MemoryIndex.republish`)."""
        self._trees = trees
        self._roots = roots
        self._on_news = on_news
        self._log = RateLimitedLog(log)
        self._is_accepting = True
        self._published: dict[WorkerId, int] = {}
        self._states: dict[WorkerId, StreamState] = {}
        self._unpublished_states: set[WorkerId] = set()
        """Workers with a stream state that the tree does not have yet."""
        self._holdings: dict[int, tuple[WorkerId, bool]] = {}
        self._writer_of: dict[int, Writer] = {}

    def __repr__(self) -> str:
        return f"Publication({len(self._published)} workers, {self.num_queued} changes queued)"

    @property
    def num_queued(self) -> int:
        """Number of block changes that are not in a tree yet."""
        return sum(writer.num_queued for writer in self.writers.values())

    # the trees ---------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Write everything applied until now to the trees. Must not run twice at a time. Raises what a
        pipeline raises."""
        for root in list(self.writers):
            await self._safely(root, self._trees.of(root).write)
        for worker in list(self._unpublished_states):
            self._unpublished_states.discard(worker)
            if fence := self._published.get(worker):
                state = self._states.get(worker, StreamState.CATCHING_UP)
                await self._trees.of(self._roots[worker]).publish_state(worker, fence, state)

    async def keep(self) -> None:
        """Prolong the slots of our workers; to be called several times per `KEEP_MS`."""
        for root in list(self.writers):
            await self._safely(root, self._trees.of(root).keep)
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
            self._log.warning("%s: publishing the blocks of this gateway's workers again", exc)
            self.republish(root)
            await self._trees.of(root).write(self.writers[root])

    def republish(self, root: BlockHash) -> None:
        """Publish all blocks of a model again, since the server's copy is unknown."""
        fresh = self._restart_writer(root)
        for holding in fresh.holdings:
            self.notify_again(holding)

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

    # workers -----------------------------------------------------------------------------------

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
                    self.notify_again(holding)

    def is_published(self, worker: WorkerId) -> bool:
        return worker in self._published

    def withdraw(self, worker: WorkerId) -> None:
        """Stop publishing a worker, which another gateway publishes."""
        if self._published.pop(worker, None) is not None:
            self._states.pop(worker, None)
            for holding, (owner, _) in self._holdings.items():
                if owner == worker:
                    self._writer_of.pop(holding).end(holding)

    def drop_worker(self, worker: WorkerId) -> None:
        """Forget a worker, which the index has dropped: its holdings have ended."""
        self._published.pop(worker, None)
        self._states.pop(worker, None)

    # the Holdings observer ---------------------------------------------------------------------

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
