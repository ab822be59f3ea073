"""Event stream of one rank over ZeroMQ: a PUB socket, and a ROUTER that replays.

As in vLLM's ZmqEventPublisher, without its thread: the buffer is bounded, a request that is not exactly
`[client, b"", seq]` is ignored, a reply ends with sequence number −1, a start beyond the end gets only that,
and the ROUTER's default high-water mark drops messages that a slow client does not take.
"""

import asyncio
from collections import deque

import zmq

from engines.sim.faults import Delivery, EventFaults
from engines.sim.wire import END_OF_REPLAY, seq_bytes

HIGH_WATER_MARK = 100_000  # vLLM's default `hwm` of the PUB socket
LINGER_MS = 0


class EventPublisher:
    """Publisher of KV events. Open it in the loop that publishes. Its own context lets closing free the
    ports."""

    def __init__(
        self, host: str, topic: str, buffer_size: int, event_faults: EventFaults | None = None
    ) -> None:
        self._host = host
        self._topic = topic.encode()
        self._buffer: deque[tuple[bytes, bytes]] = deque(maxlen=buffer_size)
        self._faults: EventFaults | None = None
        self._late: deque[Delivery] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._held_replays: list[list[tuple[bytes, ...]]] = []
        self._context = zmq.Context()
        self._pub: zmq.Socket[bytes] | None = None
        self._router: zmq.Socket[bytes] | None = None
        self.next_seq = 0
        self.events_port = 0
        self.replay_port: int | None = None

    def __repr__(self) -> str:
        return f"EventPublisher(port={self.events_port}, replay={self.replay_port}, next_seq={self.next_seq})"

    @property
    def endpoint(self) -> str:
        """Endpoint as vLLM reports it: every interface is "*", which is no address to connect to."""
        return f"tcp://{self._shown_host}:{self.events_port}"

    @property
    def replay_endpoint(self) -> str | None:
        return f"tcp://{self._shown_host}:{self.replay_port}" if self.replay_port is not None else None

    @property
    def _shown_host(self) -> str:
        return "*" if self._host == "0.0.0.0" else self._host

    @property
    def num_held_replays(self) -> int:
        """Number of replies that wait for the next plan."""
        return len(self._held_replays)

    def open(self, events_port: int, replay_port: int | None) -> None:
        """Bind; port 0 takes a free one, `replay_port` None means no replay. Raises OSError for a taken
        port."""
        try:
            self._open(events_port, replay_port)
        except zmq.ZMQError as exc:
            self.close()
            raise OSError(exc.errno, f"{exc.strerror}: KV events on {self._host}") from exc

    def _open(self, events_port: int, replay_port: int | None) -> None:
        self._pub = self._context.socket(zmq.PUB)
        self._pub.set_hwm(HIGH_WATER_MARK)
        self.events_port = self._bind(self._pub, events_port)
        if replay_port is not None:
            router = self._context.socket(zmq.ROUTER)
            self.replay_port = self._bind(router, replay_port)
            asyncio.get_running_loop().add_reader(router.fileno(), self._answer_replays)
            self._router = router

    def close(self) -> None:
        """Close the sockets; returns when the ports are free again."""
        if self._timer is not None:
            self._timer.cancel()
        if self._router is not None:
            asyncio.get_running_loop().remove_reader(self._router.fileno())
        self._context.destroy(linger=LINGER_MS)
        self._pub = self._router = None

    def publish(self, payload: bytes) -> None:
        """Number the batch, send it, keep it for replay."""
        seq = seq_bytes(self.next_seq)
        self.next_seq += 1
        frames = (self._topic, seq, payload)
        for delivery in self._faults.deliver(frames) if self._faults else (Delivery(frames),):
            self._send_in_turn(delivery)
        self._buffer.append((seq, payload))
        if self._router is not None:
            self._answer_replays()

    def set_faults(self, event_faults: EventFaults | None) -> None:
        for delivery in self._faults.release() if self._faults else ():
            self._send_in_turn(delivery)
        self._faults = event_faults
        held, self._held_replays = self._held_replays, []
        for answer in held:
            self._answer(answer)
        if held and self._router is not None:
            self._answer_replays()

    def _bind(self, socket: "zmq.Socket[bytes]", port: int) -> int:
        socket.bind(f"tcp://{self._host}:{port or '*'}")
        return int(socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])

    # sending --------------------------------------------------------------------------------------

    def _send_in_turn(self, delivery: Delivery) -> None:
        if self._timer is None and delivery.delay_s == 0:
            self._send(delivery)
        else:
            self._late.append(delivery)
            self._schedule()

    def _schedule(self) -> None:
        if self._timer is None and self._late:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._late[0].delay_s, self._send_late)

    def _send_late(self) -> None:
        """Send the late message that is due, and those behind it up to the next late one."""
        self._timer = None
        self._send(self._late.popleft())
        while self._late and self._late[0].delay_s == 0:
            self._send(self._late.popleft())
        self._schedule()

    def _send(self, delivery: Delivery) -> None:
        assert self._pub is not None
        self._pub.send_multipart(delivery.frames)

    # replay ---------------------------------------------------------------------------------------

    def _answer_replays(self) -> None:
        """Answer all replay requests. ZeroMQ's descriptor signals edges only: take all that is there, and
        look again after sending."""
        router = self._router
        while router is not None and int(router.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            frames = router.recv_multipart()
            if len(frames) == 3:
                self._replay(frames[0], int.from_bytes(frames[2], "big"))

    def _replay(self, client: bytes, start: int) -> None:
        batches = [batch for batch in self._buffer if int.from_bytes(batch[0], "big") >= start]
        answer = [(client, b"", self._topic, *batch) for batch in batches]
        self._answer([*answer, (client, b"", b"", END_OF_REPLAY, b"")])

    def _answer(self, answer: list[tuple[bytes, ...]]) -> None:
        if self._faults and self._faults.holds_replays:
            self._held_replays.append(answer)
            return
        if self._router is not None:
            for frames in answer:
                self._router.send_multipart(frames)
