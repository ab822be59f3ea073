"""The index of a gateway that keeps its part of the truth in Redis, for all others to look up.

    own      the blocks of workers whose streams are applied here: exact at once, and all that engine hashes
             (parents, removals, tiers, groups) need is with it
    writers  what `own` tells of its holdings, on its way into the tree of each model
    trees    what everybody holds

Events take effect on `own` as they come. What is `published`, under the fence of the worker's lease, `flush`
carries over; of a worker that is not, nothing is told. `overlap` answers by what is here, `others` for
workers of other gateways, in one round trip: a decision takes both.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

from gateway.core.blocks import BlockHash
from gateway.core.event_stream import StreamState
from gateway.core.kv_events import EngineHash, KvEvent
from gateway.core.worker import WorkerId
from gateway.index.base import Applied, Losses
from gateway.index.memory import MemoryIndex
from gateway.index.redis_tree.tree import Forgotten, RadixTree
from gateway.index.redis_tree.writer import Writer
from gateway.runtime.rate_limited_log import RateLimitedLog

log = logging.getLogger("kvgate.redis")


class RadixIndex:
    """`tree_of` gives the tree of a model by its root; `on_news` is told that there is something to flush."""

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
        self._is_told = True
        self._roots: dict[WorkerId, BlockHash] = {}
        self._published: dict[WorkerId, int] = {}
        self._states: dict[WorkerId, StreamState] = {}
        self._untold: set[WorkerId] = set()  # whose state the tree does not know
        self._holdings: dict[int, tuple[WorkerId, bool]] = {}
        self._writer_of: dict[int, Writer] = {}

    def __repr__(self) -> str:
        return f"RadixIndex({self.own}, {list(self.trees.values())})"

    @property
    def num_queued(self) -> int:
        """Changes of blocks that are not in a tree yet."""
        return sum(writer.num_queued for writer in self.writers.values())

    # everybody's -------------------------------------------------------------------------------

    async def others(self, root: BlockHash, hashes: Sequence[BlockHash]) -> Mapping[WorkerId, int]:
        """As `overlap`, of a model's workers that are not ours. Raises what a lane raises."""
        told = await self.tree(root).overlap(hashes)
        return {worker: depth for worker, depth in told.items() if worker not in self._published}

    async def flush(self) -> None:
        """What was applied until now is in the trees. Not twice at a time. Raises what a lane raises."""
        for root in list(self.writers):
            await self._safely(root, self.tree(root).write)
        for worker in list(self._untold):
            self._untold.discard(worker)
            if fence := self._published.get(worker):
                state = self._states.get(worker, StreamState.CATCHING_UP)
                await self.tree(self._roots[worker]).tell_state(worker, fence, state)

    async def keep(self) -> None:
        """What is ours goes on for a while: to be called several times in that while."""
        for root in list(self.writers):
            await self._safely(root, self.tree(root).keep)
            for worker in self.writers[root].refusals:
                self._try_again(worker)

    def _try_again(self, worker: WorkerId) -> None:
        """It may be ours all the same: a server that takes another's place may give out lower fences, and he
        who had the higher one, which it never heard of, has written in it before it could tell him."""
        fence, state = self._published[worker], self._states[worker]
        self.withdraw(worker)
        self.publish(worker, fence, state)

    async def _safely(self, root: BlockHash, work: Callable[[Writer], Awaitable[None]]) -> None:
        try:
            await work(self.writers[root])
        except Forgotten as exc:
            self._log.warning("%s: what our workers hold is told again", exc)
            self.tell_again(root)
            await self.tree(root).write(self.writers[root])

    def tell_again(self, root: BlockHash) -> None:
        """From the beginning: what the server has of ours is unknown."""
        fresh = self._begin_anew(root)
        for holding in fresh.holdings:
            self.own.tell(holding)

    def pause(self) -> None:
        """The server is away: nothing is queued for it, since all will be told again."""
        self._is_told = False
        for root in self.writers:
            self._begin_anew(root)

    def resume(self) -> None:
        self._is_told = True
        for root in self.writers:
            self.tell_again(root)

    def _begin_anew(self, root: BlockHash) -> Writer:
        fresh = self.writers[root] = self.writers[root].anew()
        for holding in fresh.holdings:
            self._writer_of[holding] = fresh
            self._untold.add(self._holdings[holding][0])
        return fresh

    async def sweep_trees(self) -> bool:
        """A bounded part of what forgotten workers left, ours and others'; False if none is left."""
        swept = [await tree.sweep() for tree in list(self.trees.values())]
        return any(swept)

    # whose is whose ----------------------------------------------------------------------------

    def publish(self, worker: WorkerId, fence: int, state: StreamState) -> None:
        """What `own` has of a worker is what all are to know, as long as nobody does so under a newer fence;
        and what its stream is."""
        if self._states.get(worker) is not state:
            self._states[worker] = state
            self._untold.add(worker)
            self._on_news()
        if self._published.get(worker) == fence:
            return
        self.withdraw(worker)
        self._published[worker], self._states[worker] = fence, state
        self._untold.add(worker)
        for holding, (whose, is_hidden) in self._holdings.items():
            if whose == worker:
                self._begin(holding, worker, is_hidden)
                if self._is_told:
                    self.own.tell(holding)

    def is_published(self, worker: WorkerId) -> bool:
        return worker in self._published

    def withdraw(self, worker: WorkerId) -> None:
        """It is another's to tell of."""
        if self._published.pop(worker, None) is not None:
            self._states.pop(worker, None)
            for holding, (whose, _) in self._holdings.items():
                if whose == worker:
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
        return self.own.overlap(hashes, most)

    def media(self, hashes: Sequence[BlockHash]) -> Mapping[WorkerId, Mapping[str, int]]:
        return self.own.media(hashes)

    def spilled(
        self, hashes: Sequence[BlockHash], held: Mapping[WorkerId, int]
    ) -> Mapping[WorkerId, Mapping[tuple[str, ...], int]]:
        return self.own.spilled(hashes, held)

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

    # what `own` tells --------------------------------------------------------------------------

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
        if self._is_told and (writer := self._writer_of.get(holding)):
            writer.hold(holding, blocks, before)
            self._on_news()

    def release(self, holding: int, block: BlockHash) -> None:
        if self._is_told and (writer := self._writer_of.get(holding)):
            writer.release(holding, block)
            self._on_news()

    def _begin(self, holding: int, worker: WorkerId, is_hidden: bool) -> None:
        writer = self._writer_of[holding] = self.writers.setdefault(self._roots[worker], Writer())
        writer.begin(holding, worker, self._published[worker], is_hidden=is_hidden)
        self._on_news()

    def tree(self, root: BlockHash) -> RadixTree:
        """Of a model."""
        if (tree := self.trees.get(root)) is None:
            tree = self.trees[root] = self._tree_of(root)
        return tree
