"""Replication of one gateway through Redis: the feed of each worker."""

from collections.abc import Callable
from functools import partial

from gateway.core.block_limits import BlockLimits
from gateway.core.event_stream import StreamState
from gateway.core.worker import Worker, WorkerId
from gateway.index.assumed import AssumedIndex
from gateway.index.base import Index
from gateway.ingest.time_slices import TimeSlices
from gateway.redis.options import RedisOptions
from gateway.replication.redis_link import RedisLink, ReplicaTimes
from gateway.replication.replica_feed import OpenEngine, ReplicaFeed
from gateway.runtime.tasks import Tasks


class ReplicationSession(RedisLink):
    """Replication through Redis: `index` in each gateway, one leader per worker."""

    def __init__(
        self,
        options: RedisOptions,
        *,
        index: Index,
        assumed: AssumedIndex,
        times: ReplicaTimes = ReplicaTimes(),  # noqa: B008
        make_feed: Callable[..., ReplicaFeed] = ReplicaFeed,
        can_recover: bool = True,
    ) -> None:
        """Session with one Redis. `make_feed` makes a worker's feed; with `can_recover`, blocks that a
        request proves can be published."""
        super().__init__(options, times)
        self.feeds: dict[WorkerId, ReplicaFeed] = {}
        self.can_recover = can_recover
        self._make_feed = make_feed
        self._index = index
        self._assumed = assumed
        self._time_slices = TimeSlices()

    def __repr__(self) -> str:
        return f"ReplicationSession({self.where}, {len(self.feeds)} workers, {self.tail})"

    def open(
        self,
        worker: Worker,
        open_engine: OpenEngine,
        on_state: Callable[[WorkerId, StreamState], None],
        tasks: Tasks,
        limits: BlockLimits,
    ) -> ReplicaFeed:
        feed = self.feeds[worker.id] = self._make_feed(
            worker,
            shared=self,
            index=self._index,
            assumed=self._assumed,
            open_engine=open_engine,
            on_state=on_state,
            time_slices=self._time_slices,
            limits=limits,
            on_stop=partial(self._stopped, worker.id),
        )
        feed.start(tasks)
        return feed

    def _stopped(self, worker: WorkerId, feed: ReplicaFeed) -> None:
        if self.feeds.get(worker) is feed:
            self.error_reporter.recovered(worker)
            del self.feeds[worker]
