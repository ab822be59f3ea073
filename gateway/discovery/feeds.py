"""Factory of workers' event feeds, by event source: ZeroMQ, polling, an agent, or Redis."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import zmq

from gateway.core.block_limits import BlockLimits, block_limits
from gateway.core.engine import Engine, EventSource
from gateway.core.event_stream import StreamState
from gateway.core.worker import Worker, WorkerId
from gateway.discovery.endpoint import PlaceTaken
from gateway.http.address import Address
from gateway.http.cache_report import can_report
from gateway.index.assumed import AssumedIndex
from gateway.index.base import BlockSets
from gateway.ingest.blind_recovery import RecoveryObserver
from gateway.ingest.block_size import SizeEvidence
from gateway.ingest.endpoint_validation import place_of, reachable_endpoint
from gateway.ingest.ownership import OwnershipObserver
from gateway.ingest.poll import PollFeed
from gateway.ingest.subscription import Subscription
from gateway.ingest.time_slices import TimeSlices
from gateway.ingest.unread_bytes import Wires
from gateway.ingest.zmq import ZmqFeed, reach
from gateway.replication.agent_feeds import AgentFeeds
from gateway.runtime.process_limits import descriptors
from gateway.runtime.tasks import Tasks
from gateway.upstream.access import FleetAccess
from gateway.upstream.control_client import ControlSession

if TYPE_CHECKING:
    from gateway.replication.agent_feed import AgentFeed
    from gateway.replication.rank_store import RankStore
    from gateway.replication.replica_feed import ReplicaFeed
    from gateway.replication.session import ReplicationSession


class Feeds:
    """Opens the event feeds of workers. `engine_of` returns an adapter by its name; `headers` go with each
    poll; `subscribe` creates the subscription."""

    def __init__(
        self,
        *,
        engine_of: Callable[[str], Engine],
        index: BlockSets,
        assumed: AssumedIndex,
        headers: Mapping[str, str],
        tasks: Tasks,
        agents: AgentFeeds | None = None,
        subscribe: Callable[..., Subscription] = Subscription,
        recovery_observer: RecoveryObserver | None = None,
        shared: "ReplicationSession | None" = None,
        limits_of: Callable[[Worker], BlockLimits] = lambda worker: block_limits(worker.num_blocks),
        access: FleetAccess | None = None,
        owners: OwnershipObserver | None = None,
    ) -> None:
        """Create a factory. `limits_of` bounds a worker's blocks. `shared` is Redis: one gateway leads each
        worker without an agent. `access` check the endpoints that engines report; without them all are
        accepted. `owners` proves streams that may be another worker's."""
        self._access = access
        self._owners = owners
        self._places: dict[tuple[str, str], tuple[WorkerId, Subscription]] = {}
        self._shared = shared
        self._limits_of = limits_of
        self._engine_of = engine_of
        self._index = index
        self._assumed = assumed
        self._headers = headers
        self._tasks = tasks
        self._agents = agents
        self._make_subscription = subscribe
        self._recovery_observer = recovery_observer
        self._time_slices, self._wires = TimeSlices(), Wires()

    def open(
        self,
        worker: Worker,
        source: EventSource,
        session: ControlSession,
        on_state: Callable[[WorkerId, StreamState], None],
        start_time_s: float | None = None,
        on_block_size: Callable[[WorkerId, int], None] | None = None,
    ) -> (
        "tuple[ZmqFeed | PollFeed, Subscription] | tuple[AgentFeed, AgentFeed] | "
        "tuple[ReplicaFeed, ReplicaFeed]"
    ):
        """Start a worker's feed, from its agent where it has one, which must be beside the engine process
        that began at `start_time_s`. `on_block_size` is called with another size than the worker reports,
        where its own events show one. Raises ValueError for an unusable endpoint."""
        is_shared = self._shared is not None or (self._agents is not None and self._agents.has(worker))
        if is_shared and not worker.block_size:
            raise ValueError("its block size is not known, which an agent or Redis requires")
        if self._shared and not (self._agents and self._agents.has(worker)):
            return self._open_replica(self._shared, worker, source, session, on_state)
        if self._agents is None or not self._agents.has(worker):
            return self._open_events(worker, source, session, on_state, on_block_size=on_block_size)

        def open_events() -> tuple[ZmqFeed | PollFeed, Subscription]:
            if source.is_polled:
                raise ValueError("polled events can be consumed once; the worker's agent consumes them")
            return self._open_events(worker, source, session, on_state)

        feed = self._agents.open(worker, open_events, on_state, start_time_s, self._limits_of(worker))
        return feed, feed

    def _open_replica(
        self,
        shared: "ReplicationSession",
        worker: Worker,
        source: EventSource,
        session: ControlSession,
        on_state: Callable[[WorkerId, StreamState], None],
    ) -> "tuple[ReplicaFeed, ReplicaFeed]":
        def open_events(store: "RankStore | None") -> tuple[ZmqFeed | PollFeed, Subscription]:
            if store is not None:
                return self._open_events(worker, source, session, lambda worker, state: None, store)
            if source.is_polled:
                raise ValueError("polled events can be consumed once")
            return self._open_events(worker, source, session, on_state)

        feed = shared.open(worker, open_events, on_state, self._tasks, self._limits_of(worker))
        return feed, feed

    def _open_events(
        self,
        worker: Worker,
        source: EventSource,
        session: ControlSession,
        on_state: Callable[[WorkerId, StreamState], None],
        store: "RankStore | None" = None,
        on_block_size: Callable[[WorkerId, int], None] | None = None,
    ) -> tuple[ZmqFeed | PollFeed, Subscription]:
        place = (source.endpoint, "")
        if not source.is_polled:  # before anything is opened that would have to be closed
            place = place_of(self._reached(worker, source)[0]), source.topic
            self._check_place(worker, place)
        engine = self._engine_of(worker.engine)
        subscription = self._subscription(worker, source, engine, on_state, store, on_block_size)
        if worker.block_size:
            self._attach_recovery(worker, engine, subscription)
        feed = (
            self._poll(worker, source, session, subscription)
            if source.is_polled
            else self._subscribe(worker, source, engine, subscription)
        )
        subscription.on_close = partial(self._detach_recovery, subscription)
        feed.start()
        if not source.is_polled:
            self._occupy(worker.id, place, subscription, is_proven=source.is_reported)
        return feed, subscription

    def _subscription(
        self,
        worker: Worker,
        source: EventSource,
        engine: Engine,
        on_state: Callable[[WorkerId, StreamState], None],
        store: "RankStore | None",
        on_block_size: Callable[[WorkerId, int], None] | None,
    ) -> Subscription:
        def resized(size: int) -> None:
            assert on_block_size is not None
            on_block_size(worker.id, size)
            self._detach_recovery(subscription)
            self._attach_recovery(replace(worker, block_size=size), engine, subscription)

        index: BlockSets = self._index if store is None else store
        make: Callable[..., Subscription] = self._make_subscription if store is None else store.subscription
        subscription = make(
            worker.id,
            engine=engine,
            index=index,
            assumed=self._assumed,
            can_replay=source.replay_endpoint is not None,
            on_state=on_state,
            limits=self._limits_of(worker),
            size=SizeEvidence(worker.block_size, resized if on_block_size else None),
        )
        return subscription

    def _check_place(self, worker: Worker, place: tuple[str, str]) -> None:
        """Raise PlaceTaken where the events of another worker are read at a place, and doubt these too. A
        place that has turned out to be another worker's is free."""
        if (found := self._places.get(place)) is None or found[0] == worker.id or found[1].is_disowned:
            return
        (other, subscription), (endpoint, _) = found, place
        if self._owners is not None:
            self._owners.watch(
                other, subscription, endpoint, f"worker {worker.id} has its KV events at {endpoint} too"
            )
        raise PlaceTaken(
            f"{endpoint} is read for worker {other} already; each publishes at a port of its own "
            '([workers."URL"] events_port)'
        )

    def _occupy(
        self, worker: WorkerId, place: tuple[str, str], subscription: Subscription, *, is_proven: bool
    ) -> None:
        """Note where a worker's events are read, until they are read no more."""
        self._places[place] = worker, subscription
        if self._owners is not None and not is_proven:
            self._owners.watch(worker, subscription, place[0])

        def closed() -> None:
            self._detach_recovery(subscription)
            if self._places.get(place) == (worker, subscription):
                del self._places[place]
            if self._owners is not None:
                self._owners.drop(worker, subscription)

        subscription.on_close = closed

    def _detach_recovery(self, subscription: Subscription) -> None:
        if self._recovery_observer is not None and subscription.recovery is not None:
            self._recovery_observer.close(subscription.recovery)

    def _attach_recovery(self, worker: Worker, engine: Engine, subscription: Subscription) -> None:
        """Attach blind recovery, except with an agent (unaware of the announcements that we request) or with
        the tree in Redis, which needs engine hashes."""
        if (recovery_observer := self._recovery_observer) is None or (
            self._agents and self._agents.has(worker)
        ):
            return
        if self._shared and not self._shared.can_recover:
            return
        reports = can_report(engine.reports_from, worker.version)
        subscription.recovery = recovery_observer.open(
            worker, can_report=reports, target_of=subscription.recovery_target
        )

    async def reach(self, worker: Worker, source: EventSource, timeout_s: float) -> str | None:
        """Check that a worker's events and their replay, if it has one, are reachable from here; returns None
        or the obstacle."""
        try:
            endpoint, replay = self._reached(worker, source)
        except ValueError as exc:
            return str(exc)
        return await reach(self._zmq_context, self._engine_of(worker.engine), endpoint, replay, timeout_s)

    @cached_property
    def _zmq_context(self) -> "zmq.Context[zmq.Socket[bytes]]":
        """Sockets' context and thread, from the first stream on."""
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        context.set(zmq.MAX_SOCKETS, descriptors().num_event_sockets)
        return context

    def close(self) -> None:
        if "_zmq_context" in vars(self):
            self._zmq_context.destroy(linger=0)

    def _subscribe(
        self, worker: Worker, source: EventSource, engine: Engine, subscription: Subscription
    ) -> ZmqFeed:
        endpoint, replay = self._reached(worker, source)
        return ZmqFeed(
            subscription,
            engine,
            context=self._zmq_context,
            endpoint=endpoint,
            replay_endpoint=replay,
            topic=source.topic,
            time_slices=self._time_slices,
            wires=self._wires,
            refusal=self._access.reachable.refusal if self._access else lambda address: None,
        )

    def _reached(self, worker: Worker, source: EventSource) -> tuple[str, str | None]:
        """Return both endpoints as reachable from here. Raises ValueError for a rejected one."""
        host, replay = Address.of(worker.url).host, source.replay_endpoint
        return reachable_endpoint(source.endpoint, host, self._access), reachable_endpoint(
            replay, host, self._access
        ) if replay else None

    def _poll(
        self, worker: Worker, source: EventSource, session: ControlSession, subscription: Subscription
    ) -> PollFeed:
        assert worker.block_size, "a worker of unknown block size has no feed"
        return PollFeed(
            subscription,
            session=session,
            url=worker.url,
            path=source.endpoint,
            block_size=worker.block_size,
            headers=self._headers,
            tasks=self._tasks,
            time_slices=self._time_slices,
        )
