"""Feed of a worker's KV events through the tree in Redis (`index: redis`): the leader reads and publishes
them.

    asks for the lease ──another has it──► waits: follows nothing; each decision looks up the worker's
           │ ours                          blocks in the tree, which also has its stream state
           ▼
    leads: takes over and continues as `ReplicaFeed` does ─► our index ─► the tree, once complete

Lease, log and snapshot are those of `index: replicated`: a new leader needs the engine hashes, and the tree
has none. But only a new leader ever reads them. Without Redis a waiting gateway knows only the blocks that it
assumes from its own requests: reading all events in each gateway would be `replicated`. A gateway that loses
the lease drops the worker's blocks.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from gateway.core.event_stream import StreamState
from gateway.core.worker import Worker
from gateway.index.redis_tree.service import RadixService
from gateway.redis.client import LOST
from gateway.replication.messages import AgentStatus
from gateway.replication.redis_link import RedisLink
from gateway.replication.redis_log import Lease
from gateway.replication.replica_feed import ReplicaFeed
from gateway.runtime.tasks import Tasks


class TreeFeed(ReplicaFeed):
    """Feed of one worker through the tree in Redis."""

    def __init__(self, service: RadixService, worker: Worker, *, shared: RedisLink, **options: Any) -> None:
        super().__init__(worker, shared=shared, **options)
        self._service = service
        self._model = worker.served[0].name
        self._was_led = self._is_leading = False

    @property
    def is_connected(self) -> bool:
        return self._feed.is_connected if self._feed else self._service.is_open

    def start(self, tasks: Tasks) -> None:
        self._service.watch(self._root, self._worker, self._model, self._on_owner)
        super().start(tasks)

    def stop(self) -> None:
        self._service.unwatch(self._root, self._worker)
        super().stop()

    @property
    def _knows_others(self) -> bool:
        """True if another gateway led the worker before: it may have the only complete state."""
        return self._was_led

    def _on_owner(self, state: StreamState | None) -> None:
        """Adopt the stream state that the tree has for the worker."""
        if not self._is_leading:
            self._follower.status = AgentStatus(state or StreamState.CATCHING_UP)
        self._report()

    async def _follow(self, seconds: float) -> None:
        self._was_led = True
        await asyncio.sleep(seconds)

    async def _lead(self, lease: Lease) -> None:
        self._is_leading = True
        self._follower.lost()
        try:
            await super()._lead(lease)
        except LOST:
            self._stop_leading()
            raise
        self._stop_leading()

    def _stop_leading(self) -> None:
        self._is_leading = False
        self._service.index.publication.withdraw(self._worker)
        self._forget()
        self._applier.reset()
        self._report()

    def _read_directly(self) -> None:
        """Do nothing: see the module docstring."""

    def _report(self) -> None:
        state = self._follower.state
        if self.leader and (state is not StreamState.CATCHING_UP or self._is_published):
            self._service.index.publication.publish(self._worker, self.leader.fence, state)
        super()._report()

    @property
    def _is_published(self) -> bool:
        return self._service.index.publication.is_published(self._worker)


def feeds_of(service: RadixService) -> Callable[..., ReplicaFeed]:
    """The `make_feed` of `ReplicationSession`."""
    return partial(TreeFeed, service)
