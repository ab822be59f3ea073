"""Feed over an agent: real sockets, with an agent and an engine that the test plays."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc.aio
import pytest

from gateway.agent.service import KvEvents, serve
from gateway.core.block_limits import BlockLimits
from gateway.core.event_stream import Position, StreamState
from gateway.core.kv_events import BlocksRemoved
from gateway.core.worker import ServedModel as Model
from gateway.core.worker import Worker, WorkerId
from gateway.ingest.pauses import Backoff
from gateway.ingest.subscription import Subscription
from gateway.ingest.time_slices import TimeSlices
from gateway.replication import agent_targets
from gateway.replication.agent_feed import AgentFeed, AgentTimes, reach
from gateway.replication.agent_targets import Agents
from gateway.replication.messages import AgentHello, AgentStatus
from gateway.runtime.tasks import Tasks
from tests.index.contract import ROOT
from tests.support.fakes import END, FakeEngine, Known, payload, seq_frame
from tests.support.patience import stays, until
from tests.support.stories.agent_serving import EXACT, Served

pytestmark = pytest.mark.process

W = WorkerId("w:1")
WORKER = Worker(W, "http://w:1", (Model("m", "m"),), block_size=4)
QUICK = AgentTimes(hello_s=5, pause_s=0.01, retry_s=0.02, patience_s=0.2, forget_s=0.2, sample_every_s=1)


class PlayedEngine:
    """Engine's own events, as far as a feed sees them; the test plays it."""

    endpoint, replay_endpoint = "tcp://w:5557", "tcp://w:6557"

    def __init__(self, world: "AgentFeedWorld", *, can_replay: bool) -> None:
        self.is_connected = self.is_stopped = False
        self.asked: list[int] = []
        self.subscription = Subscription(
            W,
            engine=FakeEngine(),
            index=world.known.index,
            assumed=world.known.assumed,
            can_replay=can_replay,
            on_state=world.on_state,
        )
        self.subscription.ask_replay = self.asked.append

    def stop(self) -> None:
        self.is_stopped = True

    def connect(self, *bodies: tuple[int, bytes]) -> None:
        """Connect to the engine, which replays these batches."""
        self.is_connected = True
        self.subscription.connected()
        for seq, body in bodies:
            self.subscription.replayed([b"", b"kv", seq_frame(seq), body])
        self.subscription.replayed([b"", END, b""])


class AgentFeedWorld:
    def __init__(self) -> None:
        self.known = Known()
        self.known.index.add_worker(W, ROOT, 4)
        self.known.assumed.add_worker(W, keep_s=1.0, max_blocks=10)
        self.agent = Served()
        self.server: grpc.aio.Server | None = None
        self.engines: list[PlayedEngine] = []
        self.can_replay = self.can_open = True
        self.states: list[StreamState] = []
        self.refused: str | None = None
        self.limits: BlockLimits | None = None
        self.host = "127.0.0.1"
        self.tasks = Tasks()

    def on_state(self, worker: WorkerId, state: StreamState) -> None:
        self.states.append(state)

    async def serve(self) -> None:
        self.server, self.agent.port = await serve(KvEvents(self.agent.find), f"127.0.0.1:{self.agent.port}")

    async def kill(self) -> None:
        assert self.server
        await self.server.stop(0)

    def open(self) -> AgentFeed:
        def open_engine() -> tuple[PlayedEngine, Subscription]:
            if not self.can_open:
                raise ValueError("tcp://*: Invalid argument")
            self.engines.append(PlayedEngine(self, can_replay=self.can_replay))
            return self.engines[-1], self.engines[-1].subscription

        self.feed = AgentFeed(
            WORKER,
            agent=f"{self.host}:{self.agent.port}",
            agents=Agents(),
            index=self.known.index,
            assumed=self.known.assumed,
            refusal=lambda hello: self.refused,
            open_engine=open_engine,
            on_state=self.on_state,
            time_slices=TimeSlices(),
            times=QUICK,
            limits=self.limits,
        )
        self.feed.start(self.tasks)
        return self.feed

    @property
    def num_blocks(self) -> int:
        return self.known.index.num_blocks(W)

    async def until(self, is_true: Callable[[], Any]) -> None:
        await until(is_true)

    async def exact(self, num_blocks: int) -> None:
        exact = StreamState.EXACT
        await self.until(lambda: self.num_blocks == num_blocks and self.states[-1:] == [exact])

    async def on_its_own(self) -> PlayedEngine:
        """Reader of the engine's own events, once it is used."""
        await self.until(lambda: self.engines and not self.engines[-1].is_stopped)
        return self.engines[-1]

    async def close(self) -> None:
        if hasattr(self, "feed"):
            self.feed.stop()
        await self.tasks.stop()
        if self.server:
            await self.server.stop(0)


@pytest.fixture
async def world() -> AsyncIterator[AgentFeedWorld]:
    world = AgentFeedWorld()
    yield world
    await world.close()


async def followed(world: AgentFeedWorld, num_blocks: int = 3) -> AgentFeedWorld:
    await world.serve()
    world.agent.store(num_blocks)
    world.open()
    await world.exact(num_blocks)
    return world


async def test_a_snapshot_makes_the_worker_exact(world: AgentFeedWorld) -> None:
    await followed(world)
    assert world.states == [StreamState.CATCHING_UP, StreamState.EXACT] or world.states == [StreamState.EXACT]
    feed = world.feed
    assert (feed.endpoint, feed.replay_endpoint) == (f"grpc://127.0.0.1:{world.agent.port}", None)
    assert feed.is_connected and world.engines == []
    assert repr(feed).startswith(
        f"AgentFeed(w:1, grpc://127.0.0.1:{world.agent.port}, connected=True, Follow"
    )
    world.agent.store(2)
    await world.exact(5)
    assert feed.stream.counts.num_batches == 2


async def test_without_an_agent_the_engines_own_events_are_read(
    world: AgentFeedWorld, caplog: pytest.LogCaptureFixture
) -> None:
    await world.serve()
    await world.kill()
    world.open()
    engine = await world.on_its_own()
    assert (world.feed.endpoint, world.feed.replay_endpoint) == ("tcp://w:5557", "tcp://w:6557")
    assert not world.feed.is_connected
    engine.connect((0, payload(1, 2)))
    await world.exact(2)
    assert engine.asked == [0]
    assert "rejected: unavailable: " in caplog.text


async def test_without_its_agent_the_feed_continues_at_the_engine_from_the_same_batch(
    world: AgentFeedWorld,
) -> None:
    await followed(world)
    digest = FakeEngine().decode([b"", seq_frame(2), payload(9)]).digest
    world.agent.rank.journal.append([], Position(3, digest, 1.0))
    world.agent.rank.wake()
    await world.until(lambda: world.feed.stream.counts.num_batches == 1)
    await world.kill()
    engine = await world.on_its_own()
    assert (world.num_blocks, world.states[-1]) == (3, StreamState.CATCHING_UP)
    engine.connect((2, payload(9)), (3, payload(7, ts=2.0)))
    await world.exact(4)
    assert engine.asked == [2]
    assert world.feed.stream.counts.num_resets == 1  # the snapshot's reset


async def test_another_engine_under_the_same_numbers_is_noticed(world: AgentFeedWorld) -> None:
    await followed(world)
    await world.kill()
    engine = await world.on_its_own()
    engine.connect((2, payload(9)))
    assert engine.asked == [2, 0]
    assert world.num_blocks == 0


async def test_an_engine_without_replays_proves_no_position(world: AgentFeedWorld) -> None:
    world.can_replay = False
    await followed(world)
    await world.kill()
    engine = await world.on_its_own()
    engine.is_connected = True
    await world.until(lambda: world.num_blocks == 0)
    assert world.feed.stream.state is StreamState.BLIND


@pytest.mark.parametrize("can_open", [True, False])
async def test_blocks_without_a_source_of_events_are_dropped_after_a_while(
    world: AgentFeedWorld, can_open: bool
) -> None:
    world.can_open = can_open
    await followed(world)
    await world.kill()
    await world.until(lambda: world.states[-1] is StreamState.CATCHING_UP)
    assert world.num_blocks == 3
    await world.until(lambda: world.states[-1] is StreamState.BLIND)
    assert world.num_blocks == 0


async def test_a_broken_connection_resumes_at_its_position(world: AgentFeedWorld) -> None:
    await followed(world)
    world.agent.rank.is_gone = True  # this ends the stream; the same rank answers again
    world.agent.rank.wake()
    world.agent.rank.is_gone = False
    world.agent.store(1)
    await world.exact(4)
    assert world.engines == []
    assert world.feed.stream.counts.num_resets == 1
    assert world.agent.rank.journal.num_snapshots == 1


async def test_a_returned_agent_is_followed_once_it_has_more_than_the_engine(world: AgentFeedWorld) -> None:
    await followed(world)
    await world.kill()
    engine = await world.on_its_own()
    engine.connect((50, payload(9)))  # the buffer does not reach back
    assert engine.subscription.stream.state is StreamState.BLIND
    world.agent.status = AgentStatus(StreamState.BLIND, "a gap")
    await world.serve()
    await world.until(lambda: world.agent.num_described > 2)
    assert not engine.is_stopped  # the agent knows no more than the engine
    world.agent.status = EXACT
    await world.exact(3)
    assert engine.is_stopped


async def test_an_exact_engine_stays_the_source(world: AgentFeedWorld) -> None:
    await world.serve()
    await world.kill()
    world.open()
    engine = await world.on_its_own()
    engine.connect((0, payload(1, 2)))
    await world.exact(2)
    await world.serve()
    await stays(lambda: (world.agent.num_described, engine.is_stopped) == (0, False), 5 * QUICK.retry_s)


async def test_an_agent_of_another_engine_is_not_followed(
    world: AgentFeedWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.refused = "it is beside another engine"
    await world.serve()
    world.agent.store(3)
    world.open()
    engine = await world.on_its_own()
    await world.until(lambda: world.agent.num_described > 2)
    assert (world.num_blocks, engine.is_stopped) == (0, False)
    assert caplog.text.count("rejected: it is beside another engine") == 1
    world.refused = None
    await world.exact(3)


async def test_each_connection_to_an_agent_is_judged_by_the_address_of_its_name(
    world: AgentFeedWorld, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of a worker may be rebound once the worker has joined."""
    addresses = ["127.0.0.1"]

    async def resolve(host: str, port: int) -> list[str]:
        assert host == world.host
        return addresses

    monkeypatch.setattr(agent_targets, "_addresses", resolve)
    world.host = "worker.test"
    await followed(world)
    addresses[0] = "169.254.169.254"
    world.agent.rank.is_gone = True  # this ends the stream
    world.agent.rank.wake()
    await world.on_its_own()
    assert "rejected: worker.test: 169.254.169.254 is not an address for a worker" in caplog.text
    why = await reach(Agents(), f"worker.test:{world.agent.port}", 0, 5)
    assert isinstance(why, str) and why.endswith("metadata service, which hands out credentials")
    addresses[0], world.agent.rank.is_gone = "127.0.0.1", False
    await world.until(lambda: world.engines[-1].is_stopped)
    await world.exact(3)


async def test_an_agent_that_does_not_catch_up_is_replaced_by_the_engine(world: AgentFeedWorld) -> None:
    await followed(world)
    world.agent.rank.journal.status = AgentStatus(StreamState.CATCHING_UP)
    world.agent.rank.wake()
    await world.on_its_own()
    assert world.num_blocks == 3


async def test_blocks_that_cannot_be_placed_trigger_a_new_snapshot(
    world: AgentFeedWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """Agent and index disagree: the index is rebuilt, with a log line."""
    caplog.set_level("INFO")
    await followed(world)
    journal, inventory = world.agent.rank.journal, world.agent.inventory
    event = inventory.apply(FakeEngine().decode([b"", seq_frame(0), payload(50)]).events[0])[0]
    journal.append([event], Position(4, 7, 1.0))
    orphan = type(event)([1], [2], 77, 78)  # type: ignore[call-arg, arg-type]
    journal.append([orphan], Position(5, 7, 1.0))
    world.agent.rank.wake()
    await world.until(lambda: world.feed.stream.counts.num_resets == 2)
    await world.exact(4)
    assert "unknown parent blocks" in caplog.text


async def test_an_index_that_drifted_from_its_agent_is_resynced(
    world: AgentFeedWorld, caplog: pytest.LogCaptureFixture
) -> None:
    await followed(world, num_blocks=5)
    counts = world.feed.stream.counts
    await world.until(lambda: counts.num_samples)
    world.agent.store(3)
    await world.exact(8)
    assert counts.num_drifts == 0 and world.feed.is_connected
    world.known.index.apply(W, BlocksRemoved([7]))
    await world.until(lambda: counts.num_drifts == 1)
    await world.exact(8)
    assert "the agent holds 8 blocks and the index 7" in caplog.text
    seen = counts.num_samples
    await world.until(lambda: counts.num_samples > seen)
    assert counts.num_drifts == 1


async def test_a_stopped_feed_changes_nothing(world: AgentFeedWorld) -> None:
    await followed(world)
    world.agent.store(50)
    world.feed.stop()
    world.known.index.drop_worker(W)
    await world.tasks.stop()
    states = list(world.states)
    await stays(lambda: world.states == states, 0.05)


async def test_an_agent_can_be_reached_once(world: AgentFeedWorld) -> None:
    await world.serve()
    hello = await reach(Agents(), f"127.0.0.1:{world.agent.port}", 0, 5)
    assert isinstance(hello, AgentHello) and hello.status == EXACT
    why = await reach(Agents(), f"127.0.0.1:{world.agent.port}", 1, 5)
    assert isinstance(why, str) and why.startswith("unavailable: rank 1 is unknown")


async def test_a_full_index_is_logged(world: AgentFeedWorld, caplog: pytest.LogCaptureFixture) -> None:
    await followed(world)

    def full(worker: WorkerId, event: object) -> None:
        raise OverflowError("the index is full")

    world.known.index.apply = full  # type: ignore[method-assign]
    world.agent.store(1)
    await world.until(lambda: "task agent of w:1 died" in caplog.text)


async def test_an_agent_that_reports_too_many_blocks_is_paused(
    world: AgentFeedWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.limits = BlockLimits(on_gpu=100, offloaded=100, declared=9)
    world.can_open = False
    await world.serve()
    world.agent.store(3)
    feed = world.open()
    feed._pauses = Backoff(first_s=0.2)
    await world.exact(3)
    world.agent.store(300)
    await world.until(lambda: world.states[-1] is StreamState.BLIND)
    assert (world.num_blocks, feed.stream.counts.num_cuts) == (0, 1)
    assert "paused for 0.2 s, stream is BLIND: it stores" in caplog.text
    await world.until(lambda: feed.stream.counts.num_cuts == 2)  # read again, and still too many
