"""KV events over ZeroMQ: a SUB socket for live batches, a DEALER for replays, without a task.

libzmq's file descriptor is edge-triggered: after each wake-up (and each send) a socket is read until it is
empty, a few messages at a time and in turn with those of all other workers (time_slices.py), so that a replay
of thousands of batches does not block the loop.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import zmq
from zmq.utils.monitor import parse_monitor_message

from gateway.core.engine import Engine
from gateway.core.event_stream import StreamState
from gateway.core.kv_events import DecodeError, ReplayUnavailable
from gateway.ingest.pauses import Backoff
from gateway.ingest.sockets import (
    MAX_MESSAGE_BYTES,
    MAX_REPLAY_QUEUED,
    OnMessage,
    SocketReader,
    connected,
    monitored,
    opened,
)
from gateway.ingest.subscription import Subscription
from gateway.ingest.time_slices import TimeSlices
from gateway.ingest.unread_bytes import EVENTS, Wires

MAX_REPLAY_TRIES = 3

log = logging.getLogger("kvgate.ingest")


@dataclass(frozen=True, slots=True)
class ZmqTimes:
    """Time limits of ZeroMQ feeds, in seconds.

    replay_s      a replay that brings nothing for this long has failed
    quiet_s       one that has begun and brings no more: engines send it in one go, but their ROUTER
                  drops what is not received quickly, the end mark too
    knock_s       between two checks whether replays are answered by now, after all tries failed
    settle_s      between the handshake and the first replay: the subscription must have reached the
                  publisher, or a batch published in between would be in neither
    unanswered_s  without a publisher before a warning
    behind_s      of waiting messages on a followed stream, after which the worker publishes more than may be
                  applied
    """

    replay_s: float = 5.0
    quiet_s: float = 1.0
    knock_s: float = 30.0
    settle_s: float = 0.05
    unanswered_s: float = 5.0
    behind_s: float = 10.0


_TIMES = ZmqTimes()


class ZmqFeed:
    """Feed of one subscription from a publisher's endpoint, and its replay endpoint if it has one."""

    def __init__(
        self,
        subscription: Subscription,
        engine: Engine,
        *,
        context: "zmq.Context[zmq.Socket[bytes]]",
        endpoint: str,
        replay_endpoint: str | None,
        topic: str = "",
        times: ZmqTimes = _TIMES,
        time_slices: TimeSlices | None = None,
        wires: Wires | None = None,
        refusal: Callable[[str], str | None] = lambda address: None,
    ) -> None:
        """Create a feed; `time_slices` and `wires` are shared with the other feeds of the loop. `refusal`
        judges the address of each connection: a name may resolve to another one than before."""
        self._subscription = subscription
        self._time_slices, self._wires = time_slices or TimeSlices(), wires or Wires()
        self._refusal = refusal
        self._engine = engine
        self._context = context
        self._times = times
        self.endpoint = endpoint
        self.replay_endpoint = replay_endpoint
        self.is_connected = self._was_connected = False
        self._topic = topic
        self._loop = asyncio.get_running_loop()
        self._readers: list[SocketReader] = []
        self._sockets: list[zmq.Socket[bytes]] = []
        self._replay: _Replay | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._knock_timer: asyncio.TimerHandle | None = None
        self._silence_timer: asyncio.TimerHandle | None = None
        self._pauses = Backoff()
        subscription.ask_replay = self._ask_replay
        subscription.on_cut = self._pause

    def __repr__(self) -> str:
        return f"ZmqFeed({self.endpoint}, connected={self.is_connected}, {self._subscription})"

    def start(self) -> None:
        """Connect the sockets. Raises ValueError for an unusable endpoint."""
        try:
            if self.replay_endpoint:  # fail here, not in mid-stream
                connected(self._context, zmq.DEALER, self.replay_endpoint).close(linger=0)
            self._subscribe()
        except zmq.ZMQError as exc:
            self.stop()
            raise ValueError(f"KV events at {self.endpoint}, {self.replay_endpoint}: {exc.strerror}") from exc
        self._later(self._times.unanswered_s, self._warn_if_unanswered)

    def _subscribe(self) -> None:
        sub = opened(self._context, zmq.SUB, self.endpoint)
        sub.setsockopt(zmq.SUBSCRIBE, self._topic.encode())
        sub.setsockopt(zmq.RECONNECT_IVL, 100)
        sub.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
        monitor = monitored(sub, EVENTS | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_CLOSED)
        self._sockets = [monitor, sub]
        self._monitor = SocketReader(monitor, self._on_monitor, self._time_slices)
        take, continue_work = self._on_live, self._subscription.continue_work
        self._live = SocketReader(sub, take, self._time_slices, continue_work, self._on_refused)
        self._subscription.behind = self._live.wake
        self._wire = self._wires.open(self._live, self._on_excess)
        self._readers = [self._monitor, self._live]
        sub.connect(self.endpoint)

    def stop(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._close()
        self._subscription.close()

    def _close(self) -> None:
        self._end_replay()
        for reader in self._readers:
            reader.close()
        if self._sockets:
            self._wires.close(self._wire)
            self._sockets[1].disable_monitor()
        for socket in self._sockets:
            socket.close(linger=0)
        self._readers, self._sockets = [], []

    def _pause(self) -> float:
        """Stop reading for a while and drop queued messages; returns the pause in seconds."""
        self._close()
        self.is_connected = False
        pause_s = self._pauses.next(self._loop.time())
        self._later(pause_s, self._subscribe_again)
        return pause_s

    def _subscribe_again(self) -> None:
        """Subscribe after a pause, or pause again where there is no socket."""
        try:
            self._subscribe()
        except zmq.ZMQError as exc:
            pause_s = self._pause()
            text = "worker %s: KV events cannot be read (%s); retrying in %g s"
            log.warning(text, self._subscription.worker, exc.strerror, pause_s)

    def _on_monitor(self, frames: list[bytes]) -> None:
        # After a reconnection libzmq sends the subscription again only when the socket is next used.
        self._live.wake()
        message = parse_monitor_message(frames)
        event, peer = message["event"], self._wire.saw(message["event"], message["value"])
        if peer and (refusal := self._refusal(peer)):
            self._subscription.cut(f"connected to {peer}: {refusal}")
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.is_connected = self._was_connected = True
            self._later(self._times.settle_s, self._settled)
        elif event == zmq.EVENT_DISCONNECTED:
            self.is_connected = False
            if self._replay:
                self._replay.close()  # its silence would prove nothing
            self._subscription.disconnected()

    def _on_live(self, frames: list[bytes]) -> None:
        self._monitor.poll()  # a reconnection before this batch must be handled before it
        self._subscription.live(frames)
        if self._live.behind_s > self._times.behind_s:
            self._check_backlog()

    def _on_refused(self, num_bytes: int) -> None:
        self._subscription.cut(f"message of at least {num_bytes:,} bytes exceeds {MAX_MESSAGE_BYTES:,}")

    def _on_excess(self, num_bytes: int) -> None:
        self._subscription.cut(f"{num_bytes:,} bytes of its messages wait unread")

    def _check_backlog(self) -> None:
        """Pause a worker that publishes faster than events are applied, but not during a replay, which is
        behind by nature."""
        behind_s = self._live.behind_s
        if self._replay:
            behind_s = min(behind_s, self._replay.quiet_for_s)
        if self._subscription.stream.state is not StreamState.CATCHING_UP and behind_s > self._times.behind_s:
            reason = "publishes faster than events are applied"
            self._subscription.cut(f"{reason}: events have been waiting for {behind_s:.0f} s")

    def _settled(self) -> None:
        if self.is_connected:
            self._subscription.connected()

    def _warn_if_unanswered(self) -> None:
        if not self._was_connected:
            log.warning(
                "worker %s: no KV-event publisher at %s, cache unknown; the publisher must bind "
                "(an endpoint with '*', as tcp://*:5557) and the port be reachable from here",
                self._subscription.worker,
                self.endpoint,
            )

    def _later(self, seconds: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        self._timers = [timer for timer in self._timers if timer.when() > self._loop.time()]
        self._timers.append(self._loop.call_later(seconds, call))
        return self._timers[-1]

    # replays -----------------------------------------------------------------------------------

    def _ask_replay(self, start_seq: int) -> None:
        self._try_replay(start_seq, MAX_REPLAY_TRIES)

    def _try_replay(self, start_seq: int, tries_left: int) -> None:
        """Request a replay, trying again if it brings nothing in time; after the last try it has failed."""

        def on_silence() -> None:
            if not self._subscription.replay_stalled():
                self._try_replay(start_seq, tries_left - 1)

        if tries_left:
            self._open_replay(start_seq, self._subscription.replayed, on_silence)
        else:
            self._subscription.replay_failed(f"no answer from {self.replay_endpoint}")
            self._knock_later()

    def _knock_later(self) -> None:
        if self._knock_timer:
            self._knock_timer.cancel()
        self._knock_timer = self._later(self._times.knock_s, self._knock)

    def _knock(self) -> None:
        """Check that replays are answered again, before giving up the current blocks for one."""
        if self._subscription.stream.state is StreamState.BLIND:
            self._open_replay(_FAR_SEQ, self._on_answer, self._knock_later)

    def _on_answer(self, frames: list[bytes]) -> bool:
        try:
            self._engine.decode_replay(frames)
        except ReplayUnavailable:
            return False
        except DecodeError:
            pass  # reported in the replay that follows
        self._subscription.resync()
        return True

    def _open_replay(
        self, start_seq: int, on_message: Callable[[list[bytes]], bool], on_silence: Callable[[], None]
    ) -> None:
        self._end_replay()
        if self.replay_endpoint:
            try:
                socket = opened(self._context, zmq.DEALER, self.replay_endpoint, MAX_REPLAY_QUEUED)
                monitor = monitored(socket, EVENTS | zmq.EVENT_HANDSHAKE_SUCCEEDED)
            except zmq.ZMQError as exc:
                text = "worker %s: no socket for the replay of its KV events (%s); handled as no answer"
                log.warning(text, self._subscription.worker, exc.strerror)
                self._silence_timer = self._later(self._times.replay_s, on_silence)
                return
            socket.connect(self.replay_endpoint)
            reader = partial(
                SocketReader,
                socket,
                time_slices=self._time_slices,
                continue_work=self._subscription.continue_work,
                on_refused=self._on_refused,
            )
            request = self._engine.replay_request(start_seq)
            self._replay = _Replay(socket, request, reader, on_message, on_silence, self._times)
            self._replay.watch(monitor, self._time_slices, self._wires, self._refusal)

    def _end_replay(self) -> None:
        if self._replay:
            self._replay.close()
        if self._silence_timer:
            self._silence_timer.cancel()


class _Replay:
    """Replay under way: `request` is sent after the handshake; it ends when `on_message` returns True, with
    silence, or when it is replaced.

    Where too many bytes wait unread, its connection is ended; what was received is read, and the silence that
    follows has the rest requested again."""

    def __init__(
        self,
        socket: "zmq.Socket[bytes]",
        request: list[bytes],
        reader: Callable[[OnMessage], SocketReader],
        on_message: Callable[[list[bytes]], bool],
        on_silence: Callable[[], None],
        times: ZmqTimes,
    ) -> None:
        self._socket = socket
        self._request: list[bytes] | None = request
        self._take = on_message
        self._on_silence = on_silence
        self._quiet_s = times.quiet_s
        self._timeout_s = times.replay_s
        self._loop = asyncio.get_running_loop()
        self._last_message = self._loop.time()
        self._reader = reader(self._on_message)
        self._timer = self._loop.call_later(self._timeout_s, self._on_timer)

    @property
    def quiet_for_s(self) -> float:
        """Seconds since its last message."""
        return self._loop.time() - self._last_message

    def watch(
        self,
        monitor: "zmq.Socket[bytes]",
        time_slices: TimeSlices,
        wires: Wires,
        refusal: Callable[[str], str | None],
    ) -> None:
        wire = wires.open(self._reader, lambda num_bytes: wire.end())

        def on_event(frames: list[bytes]) -> None:
            message = parse_monitor_message(frames)
            peer = wire.saw(message["event"], message["value"])
            if peer and refusal(peer):
                self._reader.close()
                wire.end()
            elif message["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED and self._request:
                self._socket.send_multipart(self._request)
                self._request = None

        self._monitor, self._monitor_socket = SocketReader(monitor, on_event, time_slices), monitor
        self._wires, self._wire = wires, wire

    def close(self) -> None:
        self._timer.cancel()
        self._reader.close()
        self._monitor.close()
        self._wires.close(self._wire)
        if not self._socket.closed:
            self._socket.disable_monitor()
            self._monitor_socket.close(linger=0)
            self._socket.close(linger=0)

    def _on_message(self, frames: list[bytes]) -> None:
        self._last_message = self._loop.time()
        if self._timeout_s != self._quiet_s:
            self._timeout_s = self._quiet_s
            self._timer.cancel()
            self._timer = self._loop.call_later(self._timeout_s, self._on_timer)
        if self._take(frames):
            self.close()

    def _on_timer(self) -> None:
        if self._reader.has_more:  # the delay is ours
            self._last_message = self._loop.time()
        left = self._last_message + self._timeout_s - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._on_timer)
        else:
            self.close()
            self._on_silence()


async def reach(
    context: "zmq.Context[zmq.Socket[bytes]]",
    engine: Engine,
    endpoint: str,
    replay_endpoint: str | None,
    timeout_s: float,
) -> str | None:
    """Check that a publisher and its replay endpoint, if any, answer: returns None, or which does not."""
    sub = opened(context, zmq.SUB, endpoint)
    dealer = opened(context, zmq.DEALER, replay_endpoint or endpoint)
    monitors = [each.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED) for each in (sub, dealer)]
    try:
        sub.connect(endpoint)
        if not await _first_message(monitors[0], timeout_s):
            return f"no KV-event publisher answers at {endpoint}; it must bind (an endpoint with '*')"
        if replay_endpoint is None:
            return None
        dealer.connect(replay_endpoint)
        if not await _first_message(monitors[1], timeout_s):
            return f"no replay answers at {replay_endpoint}"
        dealer.send_multipart(engine.replay_request(_FAR_SEQ))
        if not await _first_message(dealer, timeout_s):
            return f"no replay answers at {replay_endpoint}"
    except zmq.ZMQError as exc:
        return f"unusable endpoints {endpoint} and {replay_endpoint}: {exc.strerror}"
    finally:
        for each in (sub, dealer):
            each.disable_monitor()
        for each in (*monitors, sub, dealer):
            each.close(linger=0)
    return None


_FAR_SEQ = 1 << 62
"""Number that no batch has: a replay from here is answered by its end mark alone."""


async def _first_message(socket: "zmq.Socket[bytes]", timeout_s: float) -> bool:
    loop = asyncio.get_running_loop()
    first: asyncio.Future[None] = loop.create_future()
    reader = SocketReader(
        socket, lambda frames: None if first.done() else first.set_result(None), TimeSlices()
    )
    try:
        async with asyncio.timeout(timeout_s):
            await first
    except TimeoutError:
        return False
    finally:
        reader.close()
    return True
