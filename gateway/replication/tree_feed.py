"""KV events by way of the tree in Redis (`index: redis`): who has a worker's lease reads them, and tells it.

    asks for the lease ──another has it──► waits: nothing is followed, each decision asks for what the worker
           │ ours                          holds; what its stream is the tree says
           ▼
    holds: inherits and goes on as `ReplicaFeed` does ─► our index ─► the tree, once all is known

The lease, the log and its snapshot are those of `index: replicated`: engine hashes, without which nobody can
go on behind who held the worker before, are in no tree. But only who takes over ever reads them. Who waits
knows nothing of the worker without Redis but what it sends there itself: reading all events in each gateway
would be `replicated`. Who no longer holds forgets the worker's blocks.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from gateway.core.event_stream import StreamState
from gateway.core.worker import Worker
from gateway.index.redis_tree.service import RadixService
from gateway.redis.client import LOST
from gateway.replication.messages import Status
from gateway.replication.redis_log import Lease
from gateway.replication.replica_feed import ReplicaFeed
from gateway.replication.session import Shared
from gateway.runtime.tasks import Tasks


class TreeFeed(ReplicaFeed):
    """Of one worker."""

    def __init__(self, service: RadixService, worker: Worker, *, shared: Shared, **options: Any) -> None:
        super().__init__(worker, shared=shared, **options)
        self._service = service
        self._model = worker.served[0].name
        self._was_held = self._is_taking = False

    @property
    def is_connected(self) -> bool:
        return self._feed.is_connected if self._feed else self._service.is_open

    def start(self, tasks: Tasks) -> None:
        self._service.watch(self._root, self._worker, self._model, self._owned)
        super().start(tasks)

    def stop(self) -> None:
        self._service.unwatch(self._root, self._worker)
        super().stop()

    @property
    def _knows_others(self) -> bool:
        """Who held it may be there, and knows what nobody else does."""
        return self._was_held

    def _owned(self, state: StreamState | None) -> None:
        """What the tree says of the worker's stream."""
        if not self._is_taking:
            self._follower.status = Status(state or StreamState.CATCHING_UP)
        self._tell()

    async def _follow(self, seconds: float) -> None:
        self._was_held = True
        await asyncio.sleep(seconds)

    async def _hold(self, lease: Lease) -> None:
        self._is_taking = True
        self._follower.lost()
        try:
            await super()._hold(lease)
        except LOST:
            self._give_up()
            raise
        self._give_up()

    def _give_up(self) -> None:
        self._is_taking = False
        self._service.index.withdraw(self._worker)
        self._forget()
        self._applying.reset()
        self._tell()

    def _go_alone(self) -> None:
        """Nothing: see above."""

    def _tell(self) -> None:
        state = self._follower.state
        if self.holding and (state is not StreamState.CATCHING_UP or self._is_published):
            self._service.index.publish(self._worker, self.holding.fence, state)
        super()._tell()

    @property
    def _is_published(self) -> bool:
        return self._service.index.is_published(self._worker)


def feeds_of(service: RadixService) -> Callable[..., ReplicaFeed]:
    """The `make_feed` of `Shared`."""
    return partial(TreeFeed, service)
