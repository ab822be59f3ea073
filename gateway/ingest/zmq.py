"""KV events over ZeroMQ: a SUB socket for live batches, a DEALER for replays, without a task.

libzmq's file descriptor is edge-triggered: after each wake-up (and each send) a socket is read
until it has nothing left, a bounded number at a time, so that a replay of thousands of batches
does not hold the loop.
"""

import asyncio
import logging
from collections.abc import Callable
from urllib.parse import urlsplit

import zmq
from zmq.utils.monitor import parse_monitor_message

from gateway.core.engine import Engine
from gateway.ingest.subscription import Subscription

MAX_MESSAGE_BYTES = 64 << 20
MAX_BATCHES_PER_TURN = 64
REPLAY_TIMEOUT_S = 5.0
"""A replay that brings nothing for this long has failed."""
MAX_REPLAY_TRIES = 3
RESYNC_S = 30.0
"""After a replay that nobody answered, the next try to know everything."""
SETTLE_S = 0.05
"""Between the handshake and the first replay: the subscription must have reached the publisher, or
a batch published in between would be in neither."""
UNANSWERED_S = 5.0

log = logging.getLogger("kvgate.ingest")

OnMessage = Callable[[list[bytes]], None]


class _Reader:
    """Calls `on_message` for each message of a socket; fair to the rest of the loop."""

    def __init__(self, socket: "zmq.Socket[bytes]", on_message: OnMessage) -> None:
        self._socket = socket
        self._on_message = on_message
        self._loop = asyncio.get_running_loop()
        self._fd = int(socket.getsockopt(zmq.FD))
        self._is_open = True
        self._is_scheduled = False
        self._loop.add_reader(self._fd, self.wake)
        self.wake()

    def wake(self) -> None:
        if self._is_open and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._read)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._fd)

    def poll(self) -> None:
        """Read what is there now, before something else that depends on its order is acted on."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._read()

    def _read(self) -> None:
        self._is_scheduled = False
        for _ in range(MAX_BATCHES_PER_TURN):
            if not self._is_open:
                return
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._on_message(frames)
        self.wake()


class ZmqFeed:
    """Feeds one subscription from a publisher's endpoint, and its replay endpoint if it has one."""

    def __init__(
        self,
        subscription: Subscription,
        engine: Engine,
        *,
        context: "zmq.Context[zmq.Socket[bytes]]",
        endpoint: str,
        replay_endpoint: str | None,
        topic: str = "",
    ) -> None:
        self._subscription = subscription
        self._engine = engine
        self._context = context
        self.endpoint = endpoint
        self.replay_endpoint = replay_endpoint
        self.is_connected = False
        self._topic = topic
        self._loop = asyncio.get_running_loop()
        self._readers: list[_Reader] = []
        self._sockets: list[zmq.Socket[bytes]] = []
        self._replay: _Replay | None = None
        self._timers: list[asyncio.TimerHandle] = []
        subscription.ask_replay = self._ask_replay

    def __repr__(self) -> str:
        return f"ZmqFeed({self.endpoint}, connected={self.is_connected}, {self._subscription})"

    def start(self) -> None:
        """Raises zmq.ZMQError for an endpoint that cannot be used."""
        sub = _open(self._context, zmq.SUB)
        sub.setsockopt(zmq.SUBSCRIBE, self._topic.encode())
        sub.setsockopt(zmq.RCVHWM, 100_000)
        sub.setsockopt(zmq.RECONNECT_IVL, 100)
        sub.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
        monitor = sub.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED
        )
        self._sockets = [monitor, sub]
        self._monitor = _Reader(monitor, self._on_monitor)
        self._readers = [self._monitor, _Reader(sub, self._on_live)]
        sub.connect(self.endpoint)
        self._later(UNANSWERED_S, self._warn_if_unanswered)

    def stop(self) -> None:
        if self._replay:
            self._replay.close()
        for timer in self._timers:
            timer.cancel()
        for reader in self._readers:
            reader.close()
        if self._sockets:
            self._sockets[1].disable_monitor()
        for socket in self._sockets:
            socket.close(linger=0)
        self._readers, self._sockets = [], []

    def _on_monitor(self, frames: list[bytes]) -> None:
        event = parse_monitor_message(frames)["event"]
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.is_connected = True
            self._later(SETTLE_S, self._settled)
        elif event == zmq.EVENT_DISCONNECTED:
            self.is_connected = False
            self._subscription.disconnected()

    def _on_live(self, frames: list[bytes]) -> None:
        self._monitor.poll()  # a reconnection before this batch must be known before it
        self._subscription.live(frames)

    def _settled(self) -> None:
        if self.is_connected:
            self._subscription.connected()

    def _warn_if_unanswered(self) -> None:
        if not self.is_connected:
            log.warning(
                "worker %s: nothing answers at %s, so its cache is not known; the publisher must bind "
                "(an endpoint with '*', as tcp://*:5557) and the port be reachable from here",
                self._subscription.worker,
                self.endpoint,
            )

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        self._timers = [timer for timer in self._timers if timer.when() > self._loop.time()]
        self._timers.append(self._loop.call_later(seconds, call))

    def _ask_replay(self, start_seq: int) -> None:
        if self._replay:
            self._replay.close()
        if self.replay_endpoint:
            self._replay = _Replay(self, start_seq, tries_left=MAX_REPLAY_TRIES)

    def replayed(self, frames: list[bytes]) -> bool:
        return self._subscription.replayed(frames)

    def retry(self, start_seq: int, tries_left: int) -> None:
        """A replay brought nothing in time: once more, then it has failed."""
        if tries_left:
            self._replay = _Replay(self, start_seq, tries_left=tries_left)
        else:
            self._replay = None
            self._subscription.replay_failed(f"no answer from {self.replay_endpoint}")
            self._later(RESYNC_S, self._subscription.resync)

    def open_replay(self, start_seq: int) -> "zmq.Socket[bytes]":
        assert self.replay_endpoint is not None
        socket = _open(self._context, zmq.DEALER)
        socket.connect(self.replay_endpoint)
        socket.send_multipart(self._engine.replay_request(start_seq))
        return socket


class _Replay:
    """One replay under way. It ends with the end marker, with its time, or when it is replaced."""

    def __init__(self, feed: ZmqFeed, start_seq: int, *, tries_left: int) -> None:
        self._feed = feed
        self._start_seq = start_seq
        self._tries_left = tries_left
        self._loop = asyncio.get_running_loop()
        self._last_message = self._loop.time()
        self._socket = feed.open_replay(start_seq)
        self._reader = _Reader(self._socket, self._on_message)
        self._timer = self._loop.call_later(REPLAY_TIMEOUT_S, self._on_timer)

    def close(self) -> None:
        self._timer.cancel()
        self._reader.close()
        self._socket.close(linger=0)

    def _on_message(self, frames: list[bytes]) -> None:
        self._last_message = self._loop.time()
        if self._feed.replayed(frames):
            self.close()

    def _on_timer(self) -> None:
        left = self._last_message + REPLAY_TIMEOUT_S - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._on_timer)
        else:
            self.close()
            self._feed.retry(self._start_seq, self._tries_left - 1)


def resolve(endpoint: str, host: str) -> str:
    """A publisher's endpoint as it is reached from here: wildcard hosts are the worker's own."""
    parts = urlsplit(endpoint)
    if parts.scheme != "tcp" or not parts.netloc:
        return endpoint
    name, _, port = parts.netloc.rpartition(":")
    if name in ("*", "0.0.0.0", "[::]", "::", "[*]"):
        name = f"[{host}]" if ":" in host else host
    return f"tcp://{name}:{port}"


def _open(context: "zmq.Context[zmq.Socket[bytes]]", kind: int) -> "zmq.Socket[bytes]":
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
    socket.setsockopt(zmq.IPV6, 1)
    # A publisher whose host vanishes sends no FIN: heartbeats notice within seconds.
    socket.setsockopt(zmq.HEARTBEAT_IVL, 5000)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 15000)
    return socket


async def reach(
    context: "zmq.Context[zmq.Socket[bytes]]",
    engine: Engine,
    endpoint: str,
    replay_endpoint: str,
    timeout_s: float,
) -> str | None:
    """Whether a publisher and its replay answer: None, or which does not."""
    sub = _open(context, zmq.SUB)
    monitor = sub.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
    sub.connect(endpoint)
    dealer = _open(context, zmq.DEALER)
    dealer.connect(replay_endpoint)
    dealer.send_multipart(engine.replay_request(_FAR_SEQ))
    try:
        if not await _first_message(monitor, timeout_s):
            return f"no KV-event publisher answers at {endpoint}; it must bind, with '*' in its endpoint"
        if not await _first_message(dealer, timeout_s):
            return f"no replay answers at {replay_endpoint}"
    finally:
        sub.disable_monitor()
        for socket in (monitor, sub, dealer):
            socket.close(linger=0)
    return None


_FAR_SEQ = 1 << 62
"""No batch has this number: a replay from here is answered by its end alone."""


async def _first_message(socket: "zmq.Socket[bytes]", timeout_s: float) -> bool:
    loop = asyncio.get_running_loop()
    first: asyncio.Future[None] = loop.create_future()
    reader = _Reader(socket, lambda frames: None if first.done() else first.set_result(None))
    try:
        async with asyncio.timeout(timeout_s):
            await first
    except TimeoutError:
        return False
    finally:
        reader.close()
    return True
