"""A worker's KV events while it is tested, in an index of their own."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from gateway.core.blocks import BlockHash, hash_blocks, root_hash, tokens_of
from gateway.core.engine import Engine, EventSource
from gateway.core.event_stream import StreamState
from gateway.core.worker import Worker, WorkerId
from gateway.discovery.feeds import Feeds
from gateway.index.assumed import AssumedIndex
from gateway.index.memory import MemoryIndex
from gateway.runtime.tasks import Tasks
from gateway.upstream.control_client import ControlSession

POLL_S = 0.02


class Followed:
    """Index that follows the events of an endpoint's ranks."""

    def __init__(self, index: MemoryIndex, states: Mapping[WorkerId, StreamState]) -> None:
        self._index = index
        self._states = states

    def state(self, worker: Worker) -> StreamState | None:
        return self._states.get(worker.id)

    def overlap(self, worker: Worker, prompt: Sequence[int]) -> int:
        """Leading blocks of a prompt that the worker holds."""
        return self._index.overlap(hashes_of(worker, prompt)).get(worker.id, 0)

    def blocks(self, worker: Worker) -> set[BlockHash]:
        return set(self._index.blocks(worker.id))

    def num_stored(self, worker: Worker) -> int:
        """Blocks that events have reported as stored, under whatever hash."""
        applied = self._index.applied(worker.id)
        num_misplaced = applied.num_orphans + applied.num_mismatched + sum(applied.unplaced.values())
        return applied.num_stored + num_misplaced

    async def is_exact_within(self, worker: Worker, seconds: float) -> bool:
        return await self._until(lambda: self.state(worker) is StreamState.EXACT, seconds)

    async def holds_within(self, worker: Worker, prompt: Sequence[int], num: int, seconds: float) -> bool:
        """True once the first `num` blocks of a prompt are held."""
        return await self._until(lambda: self.overlap(worker, prompt) >= num, seconds)

    async def is_settled(self, seconds: float = 0.5) -> None:
        """Wait until no event has come for so long."""
        loop = asyncio.get_running_loop()
        seen, since = -1, loop.time()
        while loop.time() - since < seconds:
            num = sum(self._index.applied(worker).num_stored for worker in self._states)
            if num != seen:
                seen, since = num, loop.time()
            await asyncio.sleep(POLL_S)

    async def _until(self, is_so: Callable[[], bool], seconds: float) -> bool:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while not is_so():
            if loop.time() > end:
                return False
            await asyncio.sleep(POLL_S)
        return True


def hashes_of(worker: Worker, prompt: Sequence[int]) -> list[BlockHash]:
    """Hashes of a prompt's full blocks, as the gateway makes them for a base model."""
    assert worker.block_size, "a worker of unknown block size publishes nothing"
    base = next((served for served in worker.served if not served.adapter), worker.served[0])
    return hash_blocks(tokens_of(prompt), worker.block_size, root_hash(base.root))


@asynccontextmanager
async def following(
    workers: Sequence[Worker],
    source_of: Callable[[Worker], EventSource | None],
    engine_of: Callable[[str], Engine],
    session: ControlSession,
    headers: Mapping[str, str],
) -> AsyncIterator[Followed]:
    """Follow the events of an endpoint's ranks for the length of the block. Raises ValueError for an unusable
    endpoint."""
    index, states, tasks = MemoryIndex(), dict[WorkerId, StreamState](), Tasks()
    feeds = Feeds(engine_of=engine_of, index=index, assumed=AssumedIndex(), headers=headers, tasks=tasks)
    opened = []
    try:
        for worker in workers:
            if (source := source_of(worker)) is None or not worker.block_size:
                continue
            states[worker.id] = StreamState.CATCHING_UP
            index.add_worker(worker.id, root_hash(worker.served[0].root), worker.block_size)
            feed, _ = feeds.open(worker, source, session, states.__setitem__)
            opened.append(feed)
        yield Followed(index, states)
    finally:
        for feed in opened:
            feed.stop()
        await tasks.stop()
        feeds.close()
