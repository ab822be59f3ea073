"""ZeroMQ sockets as events are read from them: bounded in every message, and each a little at a time."""

import asyncio
import re
import time
from collections.abc import Callable

import zmq

from gateway.ingest.time_slices import Turns

MAX_MESSAGE_BYTES = 8 << 20
"""Twice a prompt of a million tokens in one event. Larger ones are refused, unread."""
MAX_FRAMES = 8
"""Of one message; engines send four at most."""
MAX_WIRE_BYTES = 64 << 20
"""From here on libzmq closes the connection; below, we see how large a message was, and can say so."""
MAX_QUEUED = 8
"""Messages of a subscription that wait in our process: what is published faster than it is applied waits at
the publisher, in its own queue, and in the host's buffers between the two."""
MAX_REPLAY_QUEUED = 10_000
"""Of a replay, which engines send in one go (vLLM's whole buffer is 10,000): their ROUTER drops what is not
taken quickly."""
MAX_BATCHES_PER_TURN = 8
"""Few: the turns of all feeds are short, and each may have large batches."""
READ_S = 0.0005
"""After it the next reader is served, also where fewer messages were read."""

OnMessage = Callable[[list[bytes]], None]


class Reader:
    """Calls `on_message` for each message of a socket, in turn with other readers. While `go_on` says
    that more of the last messages is to be done, further ones wait. `on_refused` gets the size of a message
    that is too large to be read; `behind_s` is for how long messages have been waiting, `num_bytes` what was
    read, as ZMTP frames."""

    def __init__(
        self,
        socket: "zmq.Socket[bytes]",
        on_message: OnMessage,
        turns: Turns,
        go_on: Callable[[], bool] = lambda: False,
        on_refused: Callable[[int], None] = lambda num_bytes: None,
    ) -> None:
        self._socket = socket
        self._on_message = on_message
        self._turns = turns
        self._go_on = go_on
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
            self._turns.add(self._read)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._fd)

    @property
    def has_more(self) -> bool:
        """Messages wait in the socket."""
        return self._is_open and bool(int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)

    @property
    def behind_s(self) -> float:
        """Since the socket was last seen empty."""
        return 0.0 if self._behind_since is None else self._loop.time() - self._behind_since

    def poll(self) -> None:
        """Read what is there now, before something else that depends on its order is acted on."""
        self._take()

    def _read(self) -> None:
        self._is_scheduled = False
        self._take()

    def _take(self) -> None:
        end = time.perf_counter() + READ_S
        for number in range(MAX_BATCHES_PER_TURN):
            if number and time.perf_counter() > end:
                break
            if self._is_open and self._go_on():
                break
            if not self.has_more:  # an attempt that finds nothing raises, at ten times the cost
                self._behind_since = None
                return
            self._receive()
        if self._behind_since is None:
            self._behind_since = self._loop.time()
        self.wake()

    def _receive(self) -> None:
        """A frame's size is known before its bytes are copied."""
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
    """A publisher's endpoint as it is reached from here: wildcard and loopback hosts are the worker's own.

    An engine may be told to publish at `tcp://127.0.0.1:5700*`: libzmq reads the leading digits of a
    port, and the `*` makes the engine bind. What cannot be read is returned as it is.
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
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_WIRE_BYTES)
    # With IPV6 on, "localhost" is ::1 alone, where a publisher at "tcp://*" does not listen.
    socket.setsockopt(zmq.IPV6, int("[" in endpoint))
    socket.setsockopt(zmq.RCVHWM, max_queued)
    # A publisher whose host vanishes sends no FIN: heartbeats notice within seconds.
    socket.setsockopt(zmq.HEARTBEAT_IVL, 5000)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 15000)
    return socket


def connected(context: "zmq.Context[zmq.Socket[bytes]]", kind: int, endpoint: str) -> "zmq.Socket[bytes]":
    """For a replay. Raises ZMQError."""
    socket = opened(context, kind, endpoint, MAX_REPLAY_QUEUED)
    try:
        socket.connect(endpoint)
    except zmq.ZMQError:
        socket.close()
        raise
    return socket
