"""Transports of event sources."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import zmq

from gateway.core.blocks import hash_blocks, root_hash, tokens_of
from gateway.core.engine import EventSource
from gateway.core.event_stream import StreamState
from gateway.core.worker import Worker, WorkerId
from gateway.discovery.endpoint import PlaceTaken
from gateway.discovery.feeds import Feeds
from gateway.ingest.blind_recovery import RecoveryObserver
from gateway.ingest.ownership import UNPROVEN, OwnershipObserver
from gateway.ingest.poll import PollFeed
from gateway.ingest.subscription import Subscription
from gateway.ingest.zmq import ZmqFeed
from gateway.replication.agent_feed import AgentFeed
from gateway.replication.agent_feeds import AgentFeeds
from gateway.replication.agent_targets import Agents
from gateway.replication.rank_store import RankStore
from gateway.replication.replica_feed import OpenEngine
from gateway.runtime.process_limits import descriptors
from gateway.runtime.tasks import Tasks
from gateway.upstream.access import FleetAccess
from tests.support.fakes import BLOCK_SIZE, FakeEngine, Known, payload, seq_frame, session, worker
from tests.support.patience import patience, until

W = worker("127.0.0.1:9")
ROOT = root_hash("root")
RUN = hash_blocks(tokens_of(range(2 * BLOCK_SIZE)), BLOCK_SIZE, ROOT)


class Opened:
    """Feeds into an index that knows W; `recovery_observer` is for its BLIND streams."""

    def __init__(self) -> None:
        self.tasks, self.known = Tasks(), Known(W.id)
        self.recovery_observer = RecoveryObserver(self.known.index, keep_s=60.0)
        self._made: list[Feeds] = []

    def feeds(self, **more: Any) -> Feeds:
        known = self.known
        made = Feeds(
            engine_of=lambda name: FakeEngine(),
            index=known.index,
            assumed=known.assumed,
            headers={},
            tasks=self.tasks,
            **more,
        )
        self._made.append(made)
        return made

    async def close(self) -> None:
        await self.tasks.stop()
        for made in self._made:
            made.close()


@pytest.fixture
async def opened() -> AsyncIterator[Opened]:
    opened = Opened()
    yield opened
    await opened.close()


@pytest.fixture
def feeds(opened: Opened) -> Feeds:
    return opened.feeds()


def ignore(worker: WorkerId, state: StreamState) -> None: ...


async def test_an_address_is_subscribed_to_with_replay_if_it_has_one(feeds: Feeds) -> None:
    async with session() as open_session:
        for replay in ("tcp://*:8", None):
            feed, subscription = feeds.open(W, EventSource(0, "tcp://*:7", replay), open_session, ignore)
            assert isinstance(feed, ZmqFeed)
            assert feed.endpoint == "tcp://127.0.0.1:7"
            assert feed.replay_endpoint == (replay and "tcp://127.0.0.1:8")
            assert subscription.stream.can_replay is (replay is not None)
            feed.stop()


async def test_a_path_is_polled_at_the_address_of_the_worker(feeds: Feeds) -> None:
    async with session() as open_session:
        feed, subscription = feeds.open(W, EventSource(0, "/events"), open_session, ignore)
        assert isinstance(feed, PollFeed)
        assert (feed.endpoint, feed.replay_endpoint) == ("http://127.0.0.1:9/events", None)
        assert not subscription.stream.can_replay
        feed.stop()


async def test_each_subscription_is_recovered_until_it_ends(opened: Opened) -> None:
    recovery_observer = opened.recovery_observer
    made = opened.feeds(recovery_observer=recovery_observer)
    async with session() as open_session:
        for path in ("tcp://*:7", "/events"):
            feed, subscription = made.open(W, EventSource(0, path), open_session, ignore)
            assert isinstance(feed, ZmqFeed | PollFeed)
            assert subscription.recovery is recovery_observer.get(W.id) is not None
            feed.stop()
            assert recovery_observer.get(W.id) is None


@pytest.mark.parametrize("can_recover", [True, False])
async def test_a_published_worker_is_recovered_in_its_rank_store_instead_of_our_index(
    opened: Opened, can_recover: bool
) -> None:
    """With the tree in Redis there is no recovery."""
    known, recovery_observer, store = opened.known, opened.recovery_observer, RankStore(lambda: 1000)
    store.add_worker(W.id, ROOT, BLOCK_SIZE)
    shared = []

    class Sharing:
        def __init__(self) -> None:
            self.can_recover = can_recover

        def open(self, worker: Worker, open_engine: OpenEngine, *others: Any) -> Any:
            shared.append(open_engine(store))

    made = opened.feeds(recovery_observer=recovery_observer, shared=Sharing())
    async with session() as open_session:
        made.open(W, EventSource(0, "tcp://*:7"), open_session, ignore)
        ((feed, subscription),) = shared
        assert subscription.recovery is recovery_observer.get(W.id)
        assert (subscription.recovery is not None) is can_recover
        if can_recover:
            subscription.recovery.proofs.prove(RUN, 60.0)
            assert (store.ranks[W.id].inventory.num_blocks, known.num_blocks(W.id)) == (len(RUN), 0)
        feed.stop()
        assert recovery_observer.get(W.id) is None


async def test_a_forbidden_event_address_is_rejected(opened: Opened) -> None:
    """Nothing is opened before the address is checked."""
    feeds = opened.feeds(access=FleetAccess(), recovery_observer=opened.recovery_observer)
    async with session() as open_session:
        for source in (
            EventSource(0, "tcp://169.254.169.254:80"),
            EventSource(0, "tcp://*:1", "tcp://100.100.100.200:80"),
            EventSource(0, "ipc:///run/docker.sock"),
        ):
            with pytest.raises(ValueError, match="metadata service|--worker-networks"):
                feeds.open(W, source, open_session, ignore)
            assert opened.recovery_observer.get(W.id) is None
        refusal = await feeds.reach(W, EventSource(0, "tcp://*:1", "tcp://100.100.100.200:80"), 1.0)
        assert refusal and "metadata service" in refusal


async def test_a_malformed_address_is_rejected(feeds: Feeds) -> None:
    async with session() as open_session:
        with pytest.raises(ValueError, match="KV events at "):
            feeds.open(W, EventSource(0, "nonsense"), open_session, ignore)


async def test_an_unreachable_publisher_has_a_reason(feeds: Feeds) -> None:
    for replay in ("tcp://*:9", None):
        async with asyncio.timeout(patience(5)):
            assert await feeds.reach(W, EventSource(0, "tcp://*:9", replay), 0.05) == (
                "no KV-event publisher answers at tcp://127.0.0.1:9; it must bind (an endpoint with '*')"
            )


OTHER = worker("localhost:8")


async def test_one_publisher_is_read_for_one_worker(opened: Opened) -> None:
    """Both workers are named, and the first is doubted, until its feed ends."""
    owners = OwnershipObserver(opened.known.index)
    feeds = opened.feeds(owners=owners)
    async with session() as open_session:
        feed, subscription = feeds.open(W, EventSource(0, "tcp://*:7"), open_session, ignore)
        assert isinstance(subscription, Subscription)
        assert subscription.stream.owner_doubt is None
        with pytest.raises(ValueError, match="tcp://127.0.0.1:7 is read for worker 127.0.0.1:9 already"):
            feeds.open(OTHER, EventSource(0, "tcp://*:7"), open_session, ignore)
        reason = f"worker {OTHER.id} has its KV events at tcp://127.0.0.1:7 too"
        assert subscription.stream.owner_doubt == reason
        topic = EventSource(0, "tcp://*:7", topic="b")
        opened.known.index.add_worker(OTHER.id, ROOT, BLOCK_SIZE)
        for source in (topic, EventSource(0, "tcp://*:6")):
            feeds.open(OTHER, source, open_session, ignore)[0].stop()
        feed.stop()
        assert repr(owners) == "OwnershipObserver(0 streams to be proven)"
        feed, _ = feeds.open(OTHER, EventSource(0, "tcp://*:7"), open_session, ignore)
        feed.stop()


async def test_a_place_that_is_another_workers_is_free(opened: Opened) -> None:
    owners = OwnershipObserver(opened.known.index)
    feeds = opened.feeds(owners=owners)
    opened.known.index.add_worker(OTHER.id, ROOT, BLOCK_SIZE)
    source = EventSource(0, "tcp://*:7", is_reported=False)
    async with session() as open_session:
        first, subscription = feeds.open(W, source, open_session, ignore)
        assert isinstance(subscription, Subscription)
        with pytest.raises(PlaceTaken):
            feeds.open(OTHER, source, open_session, ignore)
        subscription.disown("none of its prompts appeared")
        second, _ = feeds.open(OTHER, source, open_session, ignore)
        first.stop()
        with pytest.raises(PlaceTaken, match=f"read for worker {OTHER.id}"):
            feeds.open(W, source, open_session, ignore)
        second.stop()


@pytest.mark.parametrize("is_reported", [True, False])
async def test_a_place_that_is_not_reported_has_to_be_proven(opened: Opened, is_reported: bool) -> None:
    owners = OwnershipObserver(opened.known.index)
    feeds = opened.feeds(owners=owners, recovery_observer=opened.recovery_observer)
    source = EventSource(0, "tcp://*:7", "tcp://*:8", is_reported=is_reported)
    async with session() as open_session:
        feed, subscription = feeds.open(W, source, open_session, ignore)
        assert isinstance(subscription, Subscription)
        assert subscription.stream.owner_doubt == (None if is_reported else UNPROVEN)
        feed.stop()
        assert repr(owners) == "OwnershipObserver(0 streams to be proven)"
        assert opened.recovery_observer.get(W.id) is None


async def test_a_worker_of_unknown_block_size_is_followed_by_its_own_events_alone(opened: Opened) -> None:
    unknown = replace(W, block_size=None)
    opened.known.index.add_worker(W.id, ROOT, None)
    sizes: list[int] = []

    def shown(name: WorkerId, size: int) -> None:
        sizes.append(size)
        opened.known.index.add_worker(name, ROOT, size)

    feeds = opened.feeds(recovery_observer=opened.recovery_observer)
    source = EventSource(0, "tcp://*:7")
    async with session() as open_session:
        feed, subscription = feeds.open(unknown, source, open_session, ignore, None, shown)
        assert isinstance(subscription, Subscription) and subscription.recovery is None
        subscription.live([b"", seq_frame(0), payload(1, 2)])
        assert (sizes, opened.known.num_blocks(W.id)) == ([BLOCK_SIZE], 2)
        assert subscription.recovery is opened.recovery_observer.get(W.id) is not None
        feed.stop()
        assert opened.recovery_observer.get(W.id) is None
        agents = AgentFeeds(
            Agents(port=9), index=opened.known.index, assumed=opened.known.assumed, tasks=opened.tasks
        )
        with pytest.raises(ValueError, match="its block size is not known"):
            opened.feeds(agents=agents).open(unknown, source, open_session, ignore, None, shown)


@pytest.mark.process
@pytest.mark.parametrize("endpoint", ["tcp://*:7", "/events"])
async def test_a_worker_with_an_agent_is_fed_by_it_and_its_polled_events_are_left_to_the_agent(
    opened: Opened, endpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    """No server listens: a publisher is tried, and no polled event is consumed that the agent would miss."""
    known, recovery_observer = opened.known, opened.recovery_observer
    agents = AgentFeeds(Agents(port=9), index=known.index, assumed=known.assumed, tasks=opened.tasks)
    made = opened.feeds(agents=agents, recovery_observer=recovery_observer)
    async with session() as open_session:
        source = EventSource(0, endpoint, "tcp://*:8")
        feed, subscription = made.open(W, source, open_session, ignore, 12.5)
        assert isinstance(feed, AgentFeed) and feed is subscription
        assert feed.endpoint == "grpc://127.0.0.1:9"
        await until(lambda: feed.has_fallen_back)
        refused = "polled events can be consumed once; the worker's agent consumes them" in caplog.text
        assert refused is (endpoint == "/events")
        assert feed.endpoint == ("grpc://127.0.0.1:9" if refused else "tcp://127.0.0.1:7")
        assert not list(
            recovery_observer.items()
        )  # an agent does not know the announcements that its engine is asked for
        feed.stop()


def test_the_sockets_of_events_grow_with_the_files_of_the_process(feeds: Feeds) -> None:
    assert feeds._zmq_context.get(zmq.MAX_SOCKETS) == descriptors().num_event_sockets
