"""Real sockets on loopback; peers with endless messages, or with more than is read."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest
import zmq
from zmq.utils.monitor import parse_monitor_message

from gateway.ingest.sockets import SocketReader, opened
from gateway.ingest.time_slices import TimeSlices
from gateway.ingest.unread_bytes import EVENTS, Wires
from tests.support.patience import until
from tests.support.zmtp import EndlessPeer

pytestmark = pytest.mark.process
MOST = 1 << 30
"""Bytes that are sent in all where nothing is cut; what waits is in this process's memory."""


class Held(TimeSlices):
    """Time slices that never come: nothing is read."""

    def add(self, call: Callable[[], None]) -> None:
        pass


class Connection:
    """Socket that is connected to a peer and not read; `excess` is the reported excess."""

    def __init__(self, wires: Wires, context: "zmq.Context[zmq.Socket[bytes]]", endpoint: str) -> None:
        self.wires = wires
        self.socket = opened(context, zmq.DEALER, endpoint)
        monitor = self.socket.get_monitor_socket(EVENTS)
        self.reader = SocketReader(self.socket, lambda frames: None, Held())
        self.excess: list[int] = []
        self.peers: list[str] = []
        self.wire = wires.open(self.reader, self._on_excess)
        self.monitor = SocketReader(monitor, self._on_event, TimeSlices())
        self.socket.connect(endpoint)

    def _on_event(self, frames: list[bytes]) -> None:
        message = parse_monitor_message(frames)
        if peer := self.wire.saw(message["event"], message["value"]):
            self.peers.append(peer)

    def _on_excess(self, num_bytes: int) -> None:
        self.excess.append(num_bytes)
        self.wire.end()

    def close(self) -> None:
        self.monitor.close()
        self.reader.close()
        self.wires.close(self.wire)
        self.socket.disable_monitor()


@contextlib.asynccontextmanager
async def connected(wires: Wires, num: int) -> AsyncIterator[tuple[list[EndlessPeer], list[Connection]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    peers = [EndlessPeer(b"ROUTER", MOST) for _ in range(num)]
    for peer in peers:
        await peer.start()
    connections = [Connection(wires, context, peer.endpoint) for peer in peers]
    try:
        yield peers, connections
    finally:
        for connection in connections:
            connection.close()
        for peer in peers:
            await peer.close()
        context.destroy(linger=0)


async def test_an_endless_message_is_cut() -> None:
    """At most one whole message waits at a high-water mark; its parts are not counted there."""
    wires = Wires(max_bytes=8 << 20)
    async with connected(wires, 1) as ((peer,), (connection,)):
        await until(lambda: bool(connection.excess))
        assert connection.excess[0] > 8 << 20
        assert set(connection.peers) == {"127.0.0.1"}
        await until(lambda: peer.num_cut >= 2)  # while it sends, and again when it is connected again
        assert not connection.reader.has_more


async def test_all_connections_together_are_bounded_and_the_largest_is_cut_first() -> None:
    wires = Wires(max_bytes=1 << 40, max_all_bytes=16 << 20)
    async with connected(wires, 3) as (_, connections):
        await until(lambda: any(each.excess for each in connections))
        await until(
            lambda: sum(each.wire.num_waiting for each in connections if each.wire.is_open) <= 16 << 20
        )
        assert repr(wires) == "Wires(3 connections)"


async def test_read_bytes_are_no_longer_counted() -> None:
    """Frames of 255 bytes and of 256 have heads of another size."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router = context.socket(zmq.ROUTER)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    wires = Wires()
    connection = Connection(wires, context, f"tcp://127.0.0.1:{port}")
    try:
        connection.socket.send(b"hello")
        (name, _) = await asyncio.to_thread(router.recv_multipart)
        before = connection.wire.num_waiting
        for _ in range(100):
            router.send_multipart([name, b"a" * 255, b"b" * 256])
        await until(lambda: connection.wire.num_waiting - before == 100 * (255 + 2 + 256 + 9))

        def is_read() -> bool:
            connection.reader.poll()
            return connection.wire.num_waiting == before

        await until(is_read)
        assert before < 200, "a greeting and a handshake"
    finally:
        connection.close()
        context.destroy(linger=0)
