"""Real sockets on loopback: a publisher that the test drives, and the feed that reads it."""

import asyncio
import errno
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
import zmq

from gateway.core.event_stream import StreamState
from gateway.core.worker import WorkerId
from gateway.ingest import sockets
from gateway.ingest.pauses import Backoff
from gateway.ingest.sockets import MAX_BATCHES_PER_TURN, resolve
from gateway.ingest.subscription import Subscription
from gateway.ingest.time_slices import TimeSlices
from gateway.ingest.unread_bytes import Wires
from gateway.ingest.zmq import ZmqFeed, ZmqTimes, reach
from gateway.runtime.work_slices import SLICE_S
from tests.support.fakes import END, FakeEngine, Known, payload, seq_frame
from tests.support.patience import patience, stays, until
from tests.support.zmtp import EndlessPeer

W = WorkerId("w:1")
QUICK = ZmqTimes(replay_s=0.1, quiet_s=0.05, knock_s=0.1, settle_s=0.02, unanswered_s=0.2)


class Publisher:
    """Publisher like an engine's: it numbers its batches, keeps them, and replays them when asked."""

    def __init__(
        self, ports: tuple[int, int] = (0, 0), *, answers: bool = True, host: str = "127.0.0.1"
    ) -> None:
        self.context = zmq.Context()
        self.pub, self.router = self.context.socket(zmq.XPUB), self.context.socket(zmq.ROUTER)
        self.port, self.replay_port = (
            self._bind(s, p, host) for s, p in zip(self._sockets, ports, strict=True)
        )
        self.answers = answers
        self.limit: int | None = None  # messages after which answers are dropped
        self.kept: list[bytes] = []
        self.asked: list[int] = []
        self.has_subscriber = False
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(int(self.router.getsockopt(zmq.FD)), self.answer)

    @property
    def _sockets(self) -> tuple["zmq.Socket[bytes]", "zmq.Socket[bytes]"]:
        return self.pub, self.router

    def _bind(self, socket: "zmq.Socket[bytes]", port: int, host: str) -> int:
        socket.setsockopt(zmq.IPV6, int(":" in host))
        socket.setsockopt(zmq.SNDHWM, 0)  # or a burst is dropped that the peer is slow to read
        socket.bind(f"tcp://{host}:{port or '*'}")
        return int(socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])

    @property
    def endpoint(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    @property
    def replay_endpoint(self) -> str:
        return f"tcp://127.0.0.1:{self.replay_port}"

    def publish(self, body: bytes, *, is_lost: bool = False) -> None:
        seq = len(self.kept)
        self.kept.append(body)
        if not is_lost:
            self.pub.send_multipart([b"kv", seq_frame(seq), body])

    def is_subscribed(self) -> bool:
        """True once the first subscription is here: what was published before is lost to it."""
        self.has_subscriber = self.has_subscriber or bool(self.pub.poll(0))
        return self.has_subscriber

    def answer(self) -> None:
        while int(self.router.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            client, _, start = self.router.recv_multipart()
            self.asked.append(int.from_bytes(start, "big"))
            if self.answers:
                kept = list(enumerate(self.kept))[self.asked[-1] :]
                for seq, body in kept[: self.limit]:
                    self.router.send_multipart([client, b"", b"kv", seq_frame(seq), body])
                if self.limit is None or len(kept) <= self.limit:
                    self.router.send_multipart([client, b"", b"kv", END, b""])

    def close(self) -> tuple[int, int]:
        """Close the sockets as a process that dies; returns the ports, for the next one."""
        if not self.context.closed:
            self._loop.remove_reader(int(self.router.getsockopt(zmq.FD)))
            self.context.destroy(linger=0)
        return self.port, self.replay_port


class ZmqWorld:
    def __init__(self) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self.known = Known("w:1")
        self.publisher = Publisher()
        self.states: list[StreamState] = []
        self.time_slices = TimeSlices()
        self.wires = Wires()
        self.refused: str | None = None
        self._changed = asyncio.Event()

    def open(self, *, can_replay: bool = True, times: ZmqTimes = QUICK, topic: str = "kv") -> ZmqFeed:
        self.subscription = Subscription(
            W,
            engine=FakeEngine(),
            index=self.known.index,
            assumed=self.known.assumed,
            can_replay=can_replay,
            on_state=lambda worker, state: self.states.append(state),
        )
        self.feed = ZmqFeed(
            self.subscription,
            FakeEngine(),
            context=self.context,
            endpoint=self.publisher.endpoint,
            replay_endpoint=self.publisher.replay_endpoint if can_replay else None,
            topic=topic,
            times=times,
            time_slices=self.time_slices,
            wires=self.wires,
            refusal=lambda address: self.refused,
        )
        self.feed.start()
        return self.feed

    @property
    def num_blocks(self) -> int:
        return self.known.num_blocks("w:1")

    @property
    def state(self) -> StreamState | None:
        return self.states[-1] if self.states else None

    async def until(self, condition: Callable[[], bool]) -> None:
        """Poll until it is true; real sockets have no event to wait for."""
        await until(condition)

    async def exact(self, num_blocks: int) -> None:
        await self.until(lambda: self.state is StreamState.EXACT and self.num_blocks == num_blocks)

    def close(self) -> None:
        if hasattr(self, "feed"):
            self.feed.stop()
        self.publisher.close()
        self.context.destroy(linger=0)


@pytest.fixture
async def world() -> AsyncIterator[ZmqWorld]:
    world = ZmqWorld()
    yield world
    world.close()


def follow(world: ZmqWorld, first: int, last: int) -> None:
    """Publish batches of one block each, each the child of the one before."""
    for block in range(first, last + 1):
        world.publisher.publish(payload(block, parent=block - 1 if block > 1 else None, ts=block))


@pytest.mark.process
async def test_batches_published_before_and_after_the_start_are_read(world: ZmqWorld) -> None:
    follow(world, 1, 3)
    feed = world.open()
    assert (feed.is_connected, world.state) == (False, None)
    await world.exact(3)
    follow(world, 4, 5)
    await world.exact(5)
    assert feed.is_connected
    assert world.publisher.asked == [0]
    assert world.subscription.stream.counts.num_gaps == 0
    assert repr(feed).startswith(f"ZmqFeed({world.publisher.endpoint}, connected=True, Subscription(w:1, ")


@pytest.mark.process
async def test_a_feed_may_be_opened_before_there_is_a_publisher(world: ZmqWorld) -> None:
    ports = world.publisher.close()
    world.open()
    world.publisher = Publisher(ports)
    follow(world, 1, 2)
    await world.exact(2)


@pytest.mark.process
async def test_a_lost_batch_is_replayed(world: ZmqWorld) -> None:
    world.open()
    follow(world, 1, 2)
    await world.exact(2)
    world.publisher.publish(payload(3, parent=2, ts=3), is_lost=True)
    follow(world, 4, 4)
    await world.exact(4)
    assert world.subscription.stream.counts.num_gaps == 1
    assert world.publisher.asked == [0, 1]
    assert StreamState.BLIND not in world.states


@pytest.mark.process
async def test_a_long_replay_is_read_in_slices_to_its_end(world: ZmqWorld) -> None:
    num = 5 * MAX_BATCHES_PER_TURN + 7
    follow(world, 1, num)
    world.open()
    await world.exact(num)


@pytest.mark.process
async def test_a_replay_cut_short_by_the_publisher_is_continued(world: ZmqWorld) -> None:
    """A ROUTER drops messages for a slow reader, end mark included: vLLM's keeps 10,000 batches."""
    world.publisher.limit = 300
    follow(world, 1, 2000)
    world.open()
    await world.exact(2000)
    assert len(world.publisher.asked) >= 7
    assert StreamState.BLIND not in world.states


@pytest.mark.process
async def test_a_whole_buffer_is_replayed(world: ZmqWorld) -> None:
    follow(world, 1, 10_000)
    world.open()
    await world.exact(10_000)
    assert StreamState.BLIND not in world.states


@pytest.mark.process
async def test_a_long_burst_does_not_block_the_loop(world: ZmqWorld) -> None:
    world.time_slices = TimeSlices(clock=count(0, SLICE_S / 2).__next__)  # two reads per slice
    world.open()
    await world.exact(0)
    time_slices = 0
    num = 20 * MAX_BATCHES_PER_TURN
    follow(world, 1, num)
    async with asyncio.timeout(patience(10)):
        while world.num_blocks < num:
            before = world.num_blocks
            await asyncio.sleep(0)
            assert world.num_blocks - before <= 2 * MAX_BATCHES_PER_TURN
            time_slices += 1
    assert time_slices > 10


@pytest.mark.process
async def test_another_topic_is_ignored(world: ZmqWorld) -> None:
    world.open(topic="other")
    await world.exact(0)
    follow(world, 1, 1)
    world.publisher.pub.send_multipart([b"other", seq_frame(0), payload(9)])
    await world.exact(1)
    assert world.known.index.overlap([]) == {}
    assert world.subscription.stream.counts.num_batches == 1


@pytest.mark.process
async def test_a_restarted_publisher_has_an_empty_cache(world: ZmqWorld) -> None:
    world.open()
    follow(world, 1, 4)
    await world.exact(4)
    ports = world.publisher.close()
    await world.until(lambda: not world.feed.is_connected)
    assert (world.state, world.num_blocks) == (
        StreamState.CATCHING_UP,
        4,
    )  # it may be a short network failure
    world.publisher = Publisher(ports)
    await world.exact(0)
    world.publisher.publish(payload(7, 8, ts=100))
    await world.exact(2)
    assert world.subscription.stream.epoch == 1


@pytest.mark.process
async def test_batches_right_after_a_restart_are_not_lost(world: ZmqWorld) -> None:
    """A ZMQ socket resubscribes only when it is used: the feed uses it in time."""
    world.open()
    follow(world, 1, 4)
    await world.exact(4)
    for run in range(1, 4):
        world.publisher = Publisher(world.publisher.close())
        await world.until(lambda: world.state is StreamState.EXACT and world.num_blocks == 0)
        world.publisher.publish(payload(*range(10 * run, 10 * run + 5), ts=100 * run))
        await world.exact(5)
        assert world.subscription.stream.counts.num_gaps == 0


@pytest.mark.process
async def test_each_change_of_the_connection_wakes_the_feed(world: ZmqWorld) -> None:
    world.open()
    await world.exact(0)
    wakes: list[bool] = []
    world.feed._live.wake = lambda: wakes.append(world.feed.is_connected)  # type: ignore[method-assign]
    ports = world.publisher.close()
    await world.until(lambda: bool(wakes))
    num_wakes = len(wakes)
    world.publisher = Publisher(ports)
    await world.until(lambda: len(wakes) > num_wakes and world.feed.is_connected)


@pytest.mark.process
async def test_the_same_publisher_after_a_disconnection_keeps_its_blocks(world: ZmqWorld) -> None:
    world.open()
    follow(world, 1, 3)
    await world.exact(3)
    kept, ports = world.publisher.kept, world.publisher.close()
    await world.until(lambda: world.state is StreamState.CATCHING_UP)
    world.publisher = Publisher(ports)
    world.publisher.kept = kept
    await world.exact(3)
    assert world.subscription.stream.counts.num_resets == 0
    assert world.publisher.asked == [2]
    follow(world, 4, 4)
    await world.exact(4)


# failed replays --------------------------------------------------------------------------------


@pytest.mark.process
async def test_a_silent_replay_leaves_the_stream_blind_with_live_blocks(
    world: ZmqWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.publisher.answers = False
    follow(world, 1, 1)
    world.open()
    await world.until(lambda: world.feed.is_connected)
    await world.until(lambda: world.publisher.asked == [0])
    world.publisher.publish(payload(7, 8, ts=9))
    await world.until(lambda: world.state is StreamState.BLIND)
    assert world.publisher.asked == [0, 0, 0]
    assert f"no answer from {world.publisher.replay_endpoint}" in caplog.text
    await world.until(lambda: world.num_blocks == 2)
    await world.until(lambda: len(world.publisher.asked) > 5)  # replay requests
    assert (world.num_blocks, world.state) == (2, StreamState.BLIND)  # no block is dropped for them
    assert set(world.publisher.asked[3:]) == {1 << 62}


@pytest.mark.process
async def test_the_stream_is_exact_when_replays_are_answered_again(world: ZmqWorld) -> None:
    world.publisher.answers = False
    follow(world, 1, 3)
    world.open()
    await world.until(lambda: world.state is StreamState.BLIND)
    world.publisher.answers = True
    await world.exact(3)
    assert world.publisher.asked[-1] == 0
    num_asked = len(world.publisher.asked)
    await stays(
        lambda: len(world.publisher.asked) == num_asked, 3 * QUICK.knock_s, "exact: no further replay"
    )


@pytest.mark.process
async def test_without_a_replay_endpoint_the_stream_is_blind_until_a_known_start(world: ZmqWorld) -> None:
    world.open(can_replay=False)
    await world.until(lambda: world.state is StreamState.BLIND)
    await world.until(world.publisher.is_subscribed)
    follow(world, 1, 2)
    await world.exact(2)
    world.publisher.close()
    await world.until(lambda: world.state is StreamState.BLIND)
    assert (world.num_blocks, world.publisher.asked) == (0, [])


@pytest.mark.process
async def test_without_a_publisher_the_stream_catches_up_and_warns(
    world: ZmqWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.publisher.close()
    world.open()
    await world.until(lambda: bool(caplog.records))
    assert f"worker w:1: no KV-event publisher at {world.publisher.endpoint}" in caplog.text
    assert not world.feed.is_connected


# beyond the limit of a worker ------------------------------------------------------------------


@pytest.mark.process
async def test_a_message_too_large_is_not_read_and_the_stream_restarts_after_a_pause(
    world: ZmqWorld, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "MAX_MESSAGE_BYTES", 2_000)
    feed = world.open()
    feed._pauses = Backoff(first_s=0.1)
    follow(world, 1, 2)
    await world.exact(2)
    world.publisher.pub.send_multipart([b"kv", seq_frame(2), b"x" * 3_000])
    await world.until(lambda: world.state is StreamState.BLIND)
    assert (world.num_blocks, feed.is_connected, world.subscription.stream.counts.num_cuts) == (0, False, 1)
    assert "message of at least 3,010 bytes exceeds " in caplog.text
    await world.exact(2)
    follow(world, 3, 4)
    await world.exact(4)


def fail(monkeypatch: pytest.MonkeyPatch, kind: int) -> list[int]:
    """Let no socket of a kind be opened at first: as many fail as the list has items."""
    left, open_socket = [1, 2], sockets.opened

    def opened(context: "zmq.Context[zmq.Socket[bytes]]", asked: int, *more: Any) -> "zmq.Socket[bytes]":
        if asked == kind and left:
            left.pop()
            raise zmq.ZMQError(errno.EMFILE)
        return open_socket(context, asked, *more)

    monkeypatch.setattr("gateway.ingest.zmq.opened", opened)
    return left


@pytest.mark.process
async def test_without_a_socket_after_a_pause_there_is_another_pause(
    world: ZmqWorld, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = world.open()
    feed._pauses = Backoff(first_s=0.1)
    follow(world, 1, 2)
    await world.exact(2)
    left = fail(monkeypatch, zmq.SUB)
    world.subscription.cut("too much")
    await world.until(lambda: not left)
    assert "worker w:1: KV events cannot be read (Too many open files); retrying in 0.2 s" in caplog.text
    await world.exact(2)


@pytest.mark.process
async def test_without_a_socket_a_replay_is_taken_as_silent(
    world: ZmqWorld, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = fail(monkeypatch, zmq.DEALER)
    follow(world, 1, 2)
    world.open()
    await world.until(lambda: not left)
    assert "no socket for the replay of its KV events (Too many open files)" in caplog.text
    await world.exact(2)


@pytest.mark.process
async def test_a_worker_that_publishes_more_than_is_applied_is_paused(world: ZmqWorld) -> None:
    feed = world.open(times=ZmqTimes(replay_s=5.0, quiet_s=1.0, settle_s=0.02, behind_s=0.0))
    feed._pauses = Backoff(first_s=0.1)
    await world.exact(0)
    feed._replay = None
    follow(world, 1, 20 * MAX_BATCHES_PER_TURN)
    await world.until(lambda: StreamState.BLIND in world.states)
    counts = world.subscription.stream.counts
    assert counts.num_cuts == 1
    assert world.subscription.stream.blind_reason is not None
    assert "publishes faster than events are applied" in world.subscription.stream.blind_reason
    await world.exact(20 * MAX_BATCHES_PER_TURN)


@pytest.mark.process
async def test_a_replay_larger_than_the_queue_is_read_in_several(
    world: ZmqWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No batch is lost: each replay continues at the end of the one before it."""
    monkeypatch.setattr("gateway.ingest.zmq.MAX_REPLAY_QUEUED", 50)  # all others wait at the publisher
    world.wires = wires = Wires(max_bytes=20_000)
    for number in range(1, 600):
        parent = number - 1 if number > 1 else None
        large = payload(number, parent=parent, ts=number) + b" " * 27_000
        world.publisher.publish(large, is_lost=True)  # 16 MB: more than lies in the buffers of a connection
    world.open(times=replace(QUICK, replay_s=60.0, quiet_s=0.3))  # a busy machine may pause for long

    def is_whole() -> bool:
        wires._look()
        return world.state is StreamState.EXACT and world.num_blocks == 599

    await world.until(is_whole)
    starts = world.publisher.asked
    assert len(starts) > 1 and starts == sorted(starts)
    assert world.subscription.stream.counts.num_cuts == 0


@pytest.mark.process
async def test_an_endless_message_cuts_the_stream(world: ZmqWorld) -> None:
    peer = EndlessPeer(b"PUB", 64 << 20)
    await peer.start()
    world.wires = Wires(max_bytes=1 << 20)
    world.publisher.port = int(peer.endpoint.rpartition(":")[2])
    feed = world.open()
    await world.until(lambda: world.subscription.stream.counts.num_cuts > 0)
    assert "bytes of its messages wait unread" in (world.subscription.stream.blind_reason or "")
    assert not feed.is_connected
    feed.stop()
    await peer.close()


@pytest.mark.process
async def test_an_address_that_a_name_resolves_to_later_is_checked(world: ZmqWorld) -> None:
    feed = world.open()
    feed._pauses = Backoff(first_s=0.1)
    await world.exact(0)
    world.refused = "no address for a worker"
    follow(world, 1, 2)
    ports = world.publisher.close()
    world.publisher = Publisher(ports)
    await world.until(lambda: world.subscription.stream.counts.num_cuts > 0)
    assert "connected to 127.0.0.1: no address" in (world.subscription.stream.blind_reason or "")
    world.refused = None
    follow(world, 1, 4)
    await world.exact(4)


# opening and closing ---------------------------------------------------------------------------


@pytest.mark.process
@pytest.mark.parametrize("bad", ["tcp://*:*", "tcp://w", "nonsense", "http://w:1"])
async def test_an_unusable_endpoint_is_a_value_error(world: ZmqWorld, bad: str) -> None:
    for endpoint, replay in ((bad, None), (world.publisher.endpoint, bad)):
        subscription = Subscription(
            W,
            engine=FakeEngine(),
            index=world.known.index,
            assumed=world.known.assumed,
            can_replay=True,
            on_state=lambda worker, state: None,
        )
        feed = ZmqFeed(
            subscription, FakeEngine(), context=world.context, endpoint=endpoint, replay_endpoint=replay
        )
        with pytest.raises(ValueError, match="KV events at"):
            feed.start()
        feed.stop()


@pytest.mark.process
async def test_stopping_during_a_replay_leaves_no_task_or_socket(world: ZmqWorld) -> None:
    world.publisher.answers = False
    feed = world.open()
    await world.until(lambda: bool(world.publisher.asked))
    feed.stop()
    feed.stop()
    world.publisher.answers = True
    states, asked = list(world.states), list(world.publisher.asked)
    follow(world, 1, 3)
    await stays(
        lambda: (world.states, world.publisher.asked, world.num_blocks) == (states, asked, 0),
        3 * QUICK.replay_s,
    )


# reach -----------------------------------------------------------------------------------------


async def reached(
    world: ZmqWorld, endpoint: str, replay_endpoint: str | None, timeout_s: float = patience(20)
) -> str | None:
    return await reach(world.context, FakeEngine(), endpoint, replay_endpoint, timeout_s)


@pytest.mark.process
async def test_a_publisher_with_both_endpoints_is_reached(world: ZmqWorld) -> None:
    assert await reached(world, world.publisher.endpoint, world.publisher.replay_endpoint) is None
    assert world.publisher.asked == [1 << 62]


@pytest.mark.process
async def test_a_publisher_without_a_replay_must_be_there_too(world: ZmqWorld) -> None:
    assert await reached(world, world.publisher.endpoint, None) is None
    assert world.publisher.asked == []
    assert await reached(world, "tcp://127.0.0.1:9", None, 0.3) == (
        "no KV-event publisher answers at tcp://127.0.0.1:9; it must bind (an endpoint with '*')"
    )


@pytest.mark.process
async def test_an_unreached_endpoint_is_named(world: ZmqWorld) -> None:
    publisher = world.publisher
    assert await reached(world, "tcp://127.0.0.1:9", publisher.replay_endpoint, 0.3) == (
        "no KV-event publisher answers at tcp://127.0.0.1:9; it must bind (an endpoint with '*')"
    )
    publisher.answers = False
    assert await reached(world, publisher.endpoint, publisher.replay_endpoint, patience(1)) == (
        f"no replay answers at {publisher.replay_endpoint}"
    )
    reason = await reached(world, "tcp://*:*", publisher.replay_endpoint)
    assert (
        reason is not None
        and reason.startswith("unusable endpoints tcp://*:*")
        and "Invalid argument" in reason
    )


@pytest.fixture
def has_ipv6() -> Iterator[None]:
    import socket

    try:
        with socket.socket(socket.AF_INET6) as listening:
            listening.bind(("::1", 0))
    except OSError:
        pytest.skip("no IPv6 loopback here")
    yield


@pytest.mark.process
async def test_ipv6_is_reached_by_its_literal(world: ZmqWorld, has_ipv6: None) -> None:
    publisher = Publisher(host="[::1]")
    endpoints = [resolve(f"tcp://*:{port}", "::1") for port in (publisher.port, publisher.replay_port)]
    assert await reached(world, endpoints[0], endpoints[1]) is None
    publisher.close()


@pytest.mark.process
async def test_localhost_reaches_a_publisher_that_listens_on_ipv4_alone(world: ZmqWorld) -> None:
    publisher = world.publisher
    endpoints = [resolve(f"tcp://*:{port}", "localhost") for port in (publisher.port, publisher.replay_port)]
    assert await reached(world, endpoints[0], endpoints[1]) is None
