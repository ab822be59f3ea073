"""ZeroMQ sockets for reading events: bounded message sizes, a few messages at a time."""

import asyncio
import re
import time
from collections.abc import Callable

import zmq

from gateway.ingest.time_slices import TimeSlices

MAX_MESSAGE_BYTES = 8 << 20
"""Largest message, twice a prompt of a million tokens in one event. Larger ones are rejected unread."""
MAX_FRAMES = 8
"""Frames of one message; engines send four at most."""
MAX_WIRE_BYTES = 64 << 20
"""Size at which libzmq closes the connection; smaller messages are received, so that their size can be
logged."""
MAX_QUEUED = 8
"""Messages of a subscription queued in our process: faster events wait at the publisher, in its own queue,
and in the host's buffers between the two."""
MAX_REPLAY_QUEUED = 10_000
"""Queued messages of a replay, which engines send in one go (vLLM's whole buffer is 10,000): their ROUTER
drops what is not received quickly."""
MAX_BATCHES_PER_TURN = 8
"""Few, since time slices are short, and each feed may have large batches."""
READ_S = 0.0005
"""Time after which the next reader runs, also where fewer messages were read."""

OnMessage = Callable[[list[bytes]], None]


class SocketReader:
    """Reader of a socket that calls `on_message` for each message, in turn with other readers.

    While `continue_work` returns True (the last messages are still being processed), further ones wait.
    `on_refused` gets the size of a message that is too large; `behind_s` is for how long messages have been
    waiting, `num_bytes` the bytes read, as ZMTP frames.
    """

    def __init__(
        self,
        socket: "zmq.Socket[bytes]",
        on_message: OnMessage,
        time_slices: TimeSlices,
        continue_work: Callable[[], bool] = lambda: False,
        on_refused: Callable[[int], None] = lambda num_bytes: None,
    ) -> None:
        self._socket = socket
        self._on_message = on_message
        self._time_slices = time_slices
        self._continue = continue_work
        self._on_refused = on_refused
        self._loop = asyncio.get_running_loop()
        self._fd = int(socket.getsockopt(zmq.FD))
        self.num_bytes = 0
        self._is_open = True
        self._is_scheduled = False
        self._behind_since: float | None = None
        self._loop.add_reader(self._fd, self.wake)
        self.wake()

    def wake(self) -> None:
        if self._is_open and not self._is_scheduled:
            self._is_scheduled = True
            self._time_slices.add(self._read)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._fd)

    @property
    def has_more(self) -> bool:
        """True if messages wait in the socket."""
        return self._is_open and bool(int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)

    @property
    def behind_s(self) -> float:
        """Seconds since the socket was last seen empty."""
        return 0.0 if self._behind_since is None else self._loop.time() - self._behind_since

    def poll(self) -> None:
        """Read waiting messages now, before acting on something that depends on their order."""
        self._read_some()

    def _read(self) -> None:
        self._is_scheduled = False
        self._read_some()

    def _read_some(self) -> None:
        end = time.perf_counter() + READ_S
        for number in range(MAX_BATCHES_PER_TURN):
            if number and time.perf_counter() > end:
                break
            if self._is_open and self._continue():
                break
            if not self.has_more:  # an attempt that finds nothing raises, at ten times the cost
                self._behind_since = None
                return
            self._receive()
        if self._behind_since is None:
            self._behind_since = self._loop.time()
        self.wake()

    def _receive(self) -> None:
        """Receive a message, checking a frame's size before its bytes are copied."""
        frames: list[bytes] = []
        num_bytes = 0
        while True:
            frame = self._socket.recv(zmq.NOBLOCK, copy=False)
            num_bytes += len(frame)
            self.num_bytes += len(frame) + (2 if len(frame) < 256 else 9)
            if num_bytes > MAX_MESSAGE_BYTES or len(frames) == MAX_FRAMES:
                return self._on_refused(num_bytes)
            frames.append(frame.bytes)
            if not frame.more:
                return self._on_message(frames)


_TCP = re.compile(r"tcp://\[?([^\[\]]*?)\]?:([0-9]+)[^:\]]*")
_HERE = re.compile(r"|\*|0\.0\.0\.0|::|localhost|127\..*|::1")


def resolve(endpoint: str, host: str) -> str:
    """Resolve a publisher's endpoint as reachable from here: wildcard and loopback hosts are the worker's
    own.

    An engine may be configured to publish at `tcp://127.0.0.1:5700*`: libzmq reads the leading digits of a
    port, and the `*` makes the engine bind. Unparsable endpoints are returned as they are.
    """
    parts = _TCP.fullmatch(endpoint)
    if parts is None:
        return endpoint
    name, port = parts.groups()
    if _HERE.fullmatch(name):
        name = host
    return f"tcp://[{name}]:{port}" if ":" in name else f"tcp://{name}:{port}"


def opened(
    context: "zmq.Context[zmq.Socket[bytes]]", kind: int, endpoint: str, max_queued: int = MAX_QUEUED
) -> "zmq.Socket[bytes]":
    """Open a socket to be connected once. Sending waits for the handshake: send only after it."""
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_WIRE_BYTES)
    # With IPV6 on, "localhost" is ::1 alone, where a publisher at "tcp://*" does not listen.
    socket.setsockopt(zmq.IPV6, int("[" in endpoint))
    socket.setsockopt(zmq.RCVHWM, max_queued)
    # A queue for each connection: where one is kept across a reconnection, a full queue that is read at that
    # moment aborts the process (libzmq's assertion _input_stopped, zeromq/libzmq#3937).
    socket.setsockopt(zmq.IMMEDIATE, 1)
    # The publisher of a vanished host sends no FIN: the kernel's probes notice within 15 s. libzmq's
    # heartbeats would end a connection that back pressure keeps unread.
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 5)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, 5)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, 2)
    return socket


def monitored(socket: "zmq.Socket[bytes]", events: int) -> "zmq.Socket[bytes]":
    """Open the monitor of a socket, which is closed if there is none. Raises ZMQError."""
    try:
        return socket.get_monitor_socket(events)
    except zmq.ZMQError:
        socket.close(linger=0)
        raise


def connected(context: "zmq.Context[zmq.Socket[bytes]]", kind: int, endpoint: str) -> "zmq.Socket[bytes]":
    """Open a socket for a replay. Raises ZMQError."""
    socket = opened(context, kind, endpoint, MAX_REPLAY_QUEUED)
    try:
        socket.connect(endpoint)
    except zmq.ZMQError:
        socket.close()
        raise
    return socket
