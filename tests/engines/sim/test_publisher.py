"""Event stream over real sockets: order, replays and their limits, and injected faults."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable

import pytest
import zmq
import zmq.asyncio

from engines.sim.faults import Chance, EventFaults, FaultPlan
from engines.sim.publisher import EventPublisher
from engines.sim.wire import END_OF_REPLAY, seq_bytes
from tests.support.patience import patience

Frames = list[bytes]
PROBE = b"probe"


class Sockets:
    """Sockets of one test, all closed after it."""

    def __init__(self) -> None:
        self._context = zmq.asyncio.Context()
        self._opened: list[zmq.asyncio.Socket] = []

    def connect(self, kind: int, endpoint: str | None) -> zmq.asyncio.Socket:
        opened = self._context.socket(kind)
        self._opened.append(opened)
        if kind == zmq.SUB:
            opened.subscribe(b"")
        opened.connect(endpoint or "")
        return opened

    def close(self) -> None:
        for opened in self._opened:
            opened.close(linger=0)
        self._context.term()


class Subscriber:
    """All messages after the probes that proved the subscription."""

    def __init__(self, sockets: Sockets, publisher: EventPublisher) -> None:
        self._publisher = publisher
        self._socket = sockets.connect(zmq.SUB, publisher.endpoint)

    async def join(self) -> "Subscriber":
        while True:
            self._publisher.publish(PROBE)
            if await self._socket.poll(20):
                return self

    async def payloads(self, count: int) -> list[bytes]:
        found: list[bytes] = []
        while len(found) < count:
            assert await self._socket.poll(5000), f"only {found}"
            payload = (await self._socket.recv_multipart())[2]
            found += [payload] if payload != PROBE else []
        return found

    async def is_silent(self) -> bool:
        """Check that no other message arrived before a last one of our own."""
        self._publisher.set_faults(None)
        self._publisher.publish(b"last")
        return await self.payloads(1) == [b"last"]


@pytest.fixture
async def sockets() -> AsyncIterator[Sockets]:
    sockets = Sockets()
    yield sockets
    sockets.close()


@pytest.fixture
async def open_publisher() -> AsyncIterator[Callable[..., EventPublisher]]:
    opened: list[EventPublisher] = []

    def open_one(buffer_size: int = 100, events_port: int = 0, replay_port: int | None = 0) -> EventPublisher:
        publisher = EventPublisher("127.0.0.1", "kv@here", buffer_size)
        publisher.open(events_port, replay_port)
        opened.append(publisher)
        return publisher

    yield open_one
    for publisher in opened:
        publisher.close()


async def replay(sockets: Sockets, publisher: EventPublisher, request: Frames) -> list[Frames]:
    dealer = sockets.connect(zmq.DEALER, publisher.replay_endpoint)
    await dealer.send_multipart(request)
    answers: list[Frames] = []
    while not answers or answers[-1][2] != END_OF_REPLAY:
        assert await dealer.poll(5000), f"only {answers}"
        answers.append(await dealer.recv_multipart())
    return answers


async def test_batches_arrive_in_order_with_topic_and_number(
    sockets: Sockets, open_publisher: Callable[..., EventPublisher]
) -> None:
    publisher = open_publisher()
    subscriber = await Subscriber(sockets, publisher).join()
    for number in range(50):
        publisher.publish(b"%d" % number)
    assert await subscriber.payloads(50) == [b"%d" % number for number in range(50)]
    assert publisher.next_seq > 50


async def test_a_replay_begins_at_the_requested_number(
    sockets: Sockets, open_publisher: Callable[..., EventPublisher]
) -> None:
    publisher = open_publisher()
    for number in range(5):
        publisher.publish(b"%d" % number)
    answers = await replay(sockets, publisher, [b"", seq_bytes(3)])
    assert answers == [
        [b"", b"kv@here", seq_bytes(3), b"3"],
        [b"", b"kv@here", seq_bytes(4), b"4"],
        [b"", b"", END_OF_REPLAY, b""],
    ]
    assert await replay(sockets, publisher, [b"", seq_bytes(99)]) == answers[2:], "beyond the end"


async def test_a_replay_reaches_back_as_far_as_the_buffer(
    sockets: Sockets, open_publisher: Callable[..., EventPublisher]
) -> None:
    publisher = open_publisher(buffer_size=3)
    for number in range(10):
        publisher.publish(b"%d" % number)
    answers = await replay(sockets, publisher, [b"", seq_bytes(0)])
    assert [answer[3] for answer in answers[:-1]] == [b"7", b"8", b"9"]


async def test_a_malformed_replay_request_is_ignored(
    sockets: Sockets, open_publisher: Callable[..., EventPublisher]
) -> None:
    publisher = open_publisher()
    publisher.publish(b"x")
    dealer = sockets.connect(zmq.DEALER, publisher.replay_endpoint)
    await dealer.send_multipart([seq_bytes(0)])
    await dealer.send_multipart([b"", seq_bytes(0)])
    assert [(await dealer.recv_multipart())[3] for _ in range(2)] == [b"x", b""], "one answer only"


async def test_many_replay_requests_at_once_are_all_answered(
    sockets: Sockets, open_publisher: Callable[..., EventPublisher]
) -> None:
    publisher = open_publisher()
    for number in range(20):
        publisher.publish(b"%d" % number)
    dealer = sockets.connect(zmq.DEALER, publisher.replay_endpoint)
    for _ in range(10):
        await dealer.send_multipart([b"", seq_bytes(0)])
    for _ in range(10 * 21):
        assert await dealer.poll(5000)
        await dealer.recv_multipart()


async def test_ports_are_free_again_after_closing() -> None:
    first = EventPublisher("127.0.0.1", "", 10)
    first.open(0, 0)
    for _ in range(20):
        first.close()
        again = EventPublisher("127.0.0.1", "", 10)
        again.open(first.events_port, first.replay_port)
        first = again
    first.close()


async def test_an_occupied_port_is_an_error(open_publisher: Callable[..., EventPublisher]) -> None:
    taken = open_publisher().events_port
    with pytest.raises(OSError, match="Address already in use"):
        open_publisher(events_port=taken)


async def test_without_replay_there_is_no_replay_endpoint(
    open_publisher: Callable[..., EventPublisher],
) -> None:
    publisher = open_publisher(replay_port=None)
    assert publisher.replay_endpoint is None
    publisher.publish(b"x")


async def test_endpoints_on_every_interface_are_reported_as_by_vllm() -> None:
    publisher = EventPublisher("0.0.0.0", "", 10)
    publisher.events_port = 5557
    assert publisher.endpoint == "tcp://*:5557"
    publisher.close()


@pytest.mark.parametrize(
    ("faults", "arrives"),
    [
        (FaultPlan(lose=Chance(next=2)), [b"2", b"3"]),
        (FaultPlan(duplicate=Chance(next=1)), [b"0", b"0", b"1", b"2", b"3"]),
        (FaultPlan(reorder=Chance(next=1)), [b"1", b"0", b"2", b"3"]),
        (FaultPlan(delay=Chance(next=1), delay_s=0.001), [b"0", b"1", b"2", b"3"]),
    ],
)
async def test_faults_drop_delay_and_repeat_messages(
    sockets: Sockets,
    open_publisher: Callable[..., EventPublisher],
    faults: FaultPlan,
    arrives: list[bytes],
) -> None:
    publisher = open_publisher()
    subscriber = await Subscriber(sockets, publisher).join()
    publisher.set_faults(EventFaults(faults, random.Random(1)))
    for number in range(4):
        publisher.publish(b"%d" % number)
    assert await subscriber.payloads(len(arrives)) == arrives
    assert await subscriber.is_silent()
    replayed = await replay(sockets, publisher, [b"", seq_bytes(0)])
    reported = [answer[3] for answer in replayed[:-1] if answer[3] not in (PROBE, b"last")]
    assert reported == [b"0", b"1", b"2", b"3"], "a replay has what was lost"


async def test_a_late_message_delays_later_ones(
    sockets: Sockets, open_publisher: Callable[..., EventPublisher]
) -> None:
    publisher = open_publisher()
    subscriber = await Subscriber(sockets, publisher).join()
    publisher.set_faults(EventFaults(FaultPlan(delay=Chance(next=2), delay_s=0.002), random.Random(1)))
    for number in range(4):
        publisher.publish(b"%d" % number)
    publisher.set_faults(None)
    publisher.publish(b"4")
    assert await subscriber.payloads(5) == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_delayed_replay_has_the_batches_of_its_request(
    sockets: Sockets, open_publisher: Callable[..., EventPublisher]
) -> None:
    publisher = open_publisher()
    holding = EventFaults(FaultPlan(hold_replays=True), random.Random(1))
    publisher.set_faults(holding)
    publisher.publish(b"before")
    dealers = [sockets.connect(zmq.DEALER, publisher.replay_endpoint) for _ in range(2)]
    for number, dealer in enumerate(dealers, 1):
        await dealer.send_multipart([b"", seq_bytes(0)])
        async with asyncio.timeout(patience(5)):
            while publisher.num_held_replays < number:  # noqa: ASYNC110
                await asyncio.sleep(0)
    publisher.publish(b"after")
    publisher.set_faults(holding)
    assert publisher.num_held_replays == 2, "a plan that holds them too"
    publisher.set_faults(None)
    assert publisher.num_held_replays == 0
    for dealer in dealers:
        assert (await dealer.recv_multipart())[3] == b"before"
        assert (await dealer.recv_multipart())[2] == END_OF_REPLAY
    answers = await replay(sockets, publisher, [b"", seq_bytes(0)])
    assert [answer[3] for answer in answers] == [b"before", b"after", b""], "and then as ever"
