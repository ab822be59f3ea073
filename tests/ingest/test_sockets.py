"""Endpoints resolved to addresses, and messages read within bounds; test_zmq.py has whole feeds."""

from collections.abc import Iterator

import pytest
import zmq

from gateway.ingest import sockets
from gateway.ingest.sockets import MAX_FRAMES, SocketReader, connected, monitored, opened, resolve
from gateway.ingest.time_slices import TimeSlices
from tests.support.patience import until


@pytest.mark.parametrize(
    ("endpoint", "host", "reached"),
    [
        ("tcp://*:5557", "10.0.0.1", "tcp://10.0.0.1:5557"),
        ("tcp://0.0.0.0:5557", "10.0.0.1", "tcp://10.0.0.1:5557"),
        ("tcp://[::]:5557", "10.0.0.1", "tcp://10.0.0.1:5557"),
        ("tcp://:::5557", "10.0.0.1", "tcp://10.0.0.1:5557"),
        ("tcp://[*]:5557", "10.0.0.1", "tcp://10.0.0.1:5557"),
        ("tcp://*:5557", "fe80::1", "tcp://[fe80::1]:5557"),
        ("tcp://*:5557", "worker.example", "tcp://worker.example:5557"),
        # libzmq reads the leading digits of a port, and vLLM binds because of the "*"
        ("tcp://127.0.0.1:5700*", "127.0.0.1", "tcp://127.0.0.1:5700"),
        ("tcp://*:5557*", "10.0.0.1", "tcp://10.0.0.1:5557"),
        # the worker's loopback is not ours
        ("tcp://127.0.0.1:5700", "10.0.0.1", "tcp://10.0.0.1:5700"),
        ("tcp://localhost:5700", "10.0.0.1", "tcp://10.0.0.1:5700"),
        ("tcp://[::1]:5700", "10.0.0.1", "tcp://10.0.0.1:5700"),
        # a specific address is kept
        ("tcp://10.0.0.9:5557", "10.0.0.1", "tcp://10.0.0.9:5557"),
        ("tcp://events.example:5557", "10.0.0.1", "tcp://events.example:5557"),
        ("tcp://[fd00::9]:5557", "10.0.0.1", "tcp://[fd00::9]:5557"),
        # an unreadable endpoint fails when it is used
        ("ipc://kv", "10.0.0.1", "ipc://kv"),
        ("tcp://*:*", "10.0.0.1", "tcp://*:*"),
        ("tcp://*", "10.0.0.1", "tcp://*"),
        ("tcp://[::", "10.0.0.1", "tcp://[::"),
        ("", "10.0.0.1", ""),
    ],
)
def test_endpoints_are_resolved_from_the_worker(endpoint: str, host: str, reached: str) -> None:
    assert resolve(endpoint, host) == reached


class Pair:
    """Socket of a reader, and its peer."""

    def __init__(self) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.sender = self.context.socket(zmq.PUSH)
        port = self.sender.bind_to_random_port("tcp://127.0.0.1")
        self.socket = opened(self.context, zmq.PULL, f"tcp://127.0.0.1:{port}")
        self.socket.connect(f"tcp://127.0.0.1:{port}")


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.context.destroy(linger=0)


@pytest.mark.process
async def test_messages_wait_while_the_last_one_is_processed(pair: Pair) -> None:
    read: list[list[bytes]] = []
    left = iter([False, True, True, True, False])
    reader = SocketReader(pair.socket, read.append, TimeSlices(), continue_work=lambda: next(left, False))
    for number in range(3):
        pair.sender.send(b"%d" % number)
    await until(lambda: len(read) >= 3)
    assert (read, next(left, None)) == ([[b"0"], [b"1"], [b"2"]], None)
    reader.poll()
    assert (reader.has_more, reader.behind_s) == (False, 0.0)
    reader.close()


@pytest.mark.process
@pytest.mark.parametrize("frames", [[b"x" * 2_001], [b"x"] * (MAX_FRAMES + 1), [b"x" * 1_500, b"x" * 600]])
async def test_a_message_beyond_the_bounds_is_rejected(
    pair: Pair, frames: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "MAX_MESSAGE_BYTES", 2_000)
    read: list[list[bytes]] = []
    refused: list[int] = []
    reader = SocketReader(
        pair.socket, read.append, TimeSlices(), on_refused=lambda size: _close(refused, size, reader)
    )
    pair.sender.send_multipart(frames)
    await until(lambda: refused)
    assert (refused, read) == ([sum(map(len, frames))], [])


def _close(refused: list[int], size: int, reader: SocketReader) -> None:
    refused.append(size)
    reader.close()


@pytest.mark.process
def test_an_unusable_endpoint_leaves_no_socket(pair: Pair) -> None:
    with pytest.raises(zmq.ZMQError):
        connected(pair.context, zmq.DEALER, "nonsense")


def test_a_socket_without_a_monitor_is_closed() -> None:
    """The limit is on sockets of the context, and a monitor has two ends."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 2)
    socket = opened(context, zmq.SUB, "tcp://127.0.0.1:9")
    with pytest.raises(zmq.ZMQError):
        monitored(socket, zmq.EVENT_ALL)
    assert socket.closed
    context.destroy(linger=0)
