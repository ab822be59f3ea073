"""Sending side of a connection: control frames first, then streams in turns, as far as windows allow.

send, end ─► the stream's own queue ─► ready ─► a frame in each turn ─► `take`
                                        ▲ └─► no window: parked until WINDOW_UPDATE or SETTINGS
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from gateway.server.http2 import frames
from gateway.server.http2.frames import DEFAULT_FRAME_BYTES, END_HEADERS, END_STREAM, HEADERS
from gateway.server.http2.stream import Http2Stream

DEFAULT_WINDOW: Final = 65535
TAKE_BYTES: Final = 262144
"""Bytes written at once: about as much as a socket takes."""


class SendQueue:
    """Frames to be sent. `on_sent` is called for a stream with everything sent, its end too, and `on_room`
    for one that has sent some of its output, if window `is_withheld` from it or from the connection."""

    __slots__ = (
        "window",
        "initial_window",
        "max_frame_bytes",
        "num_waiting",
        "num_control",
        "num_frames",
        "is_withheld",
        "_control",
        "_ready",
        "_head",
        "_on_sent",
        "_on_room",
    )

    def __init__(
        self, head: bytes, on_sent: Callable[[Http2Stream], None], on_room: Callable[[Http2Stream], None]
    ) -> None:
        """Start an empty queue; `head` is the header block before a stream's first data."""
        self.window = DEFAULT_WINDOW
        self.initial_window = DEFAULT_WINDOW
        self.max_frame_bytes = DEFAULT_FRAME_BYTES
        self.num_waiting = 0
        self.num_control = 0
        self.num_frames = 0
        self.is_withheld = False
        self._control: list[bytes] = []
        self._ready: deque[Http2Stream] = deque()
        self._head = head
        self._on_sent = on_sent
        self._on_room = on_room

    def __repr__(self) -> str:
        return f"SendQueue({self.num_waiting} bytes, {len(self._ready)} streams, window {self.window})"

    def control(self, frame: bytes) -> None:
        self._control.append(frame)
        self.num_control += len(frame)

    def send(self, stream: Http2Stream, head: bytes, body: bytes) -> None:
        """Send two parts, which are not joined before they are written."""
        self.num_waiting += len(head) + len(body)
        stream.put(head, body)
        self.wake(stream)

    def end(self, stream: Http2Stream, trailers: bytes) -> None:
        stream.trailers = trailers
        self.wake(stream)

    def wake(self, stream: Http2Stream) -> None:
        """Put a stream with something to send into the turns."""
        if not stream.is_queued and not stream.is_closed:
            stream.is_queued = True
            self._ready.append(stream)

    def drop(self, stream: Http2Stream) -> None:
        """Forget what a stream wanted to send; its turn finds it closed."""
        self.num_waiting -= stream.drop()
        stream.trailers = None

    def close(self) -> None:
        """Forget everything, the callbacks too, which refer to this."""
        self._control, self.num_control = [], 0
        self._ready.clear()
        self.num_waiting = 0
        self._on_sent = self._on_room = _ignore

    def take(self) -> bytes:
        """Return bytes to be written now, about TAKE_BYTES at most besides control frames."""
        ready = self._ready
        if not ready and not self._control:
            return b""
        out, self._control = self._control, []
        self.num_control = 0
        num_bytes = waiting_for_window = 0
        while ready and num_bytes < TAKE_BYTES and waiting_for_window < len(ready):
            stream = ready.popleft()
            if stream.num_outgoing and stream.send_window > 0 and self.window <= 0:
                ready.append(stream)
                waiting_for_window += 1
                continue
            stream.is_queued = False
            num_bytes += self._turn(stream, out)
        if self._control:  # answers to what was sent
            out += self._control
            self._control, self.num_control = [], 0
        return b"".join(out)

    def _turn(self, stream: Http2Stream, out: list[bytes]) -> int:
        """Send one frame of a stream, and its end if that is due; returns the frame's size."""
        if stream.is_closed:
            return 0
        size = 0
        if stream.num_outgoing:
            size = self._frame_size(stream)
            if size <= 0:
                return 0  # parked
            if not stream.has_head:
                stream.has_head = True
                out.append(frames.frame(HEADERS, END_HEADERS, stream.id, self._head))
            out.append(size.to_bytes(3, "big"))
            out.append(stream.data_tail)
            stream.take(size, out)
            self.window -= size
            stream.send_window -= size
            self.num_waiting -= size
            self.num_frames += 1
        if stream.num_outgoing:
            self.wake(stream)
        elif stream.trailers is not None:
            out.append(frames.frame(HEADERS, END_HEADERS | END_STREAM, stream.id, stream.trailers))
            self._on_sent(stream)
            return size
        if stream.is_withheld or self.is_withheld:
            self._on_room(stream)
        return size

    def _frame_size(self, stream: Http2Stream) -> int:
        """Return how much of a stream's output its next frame may have; not over 0 without window."""
        size = min(stream.num_outgoing, self.max_frame_bytes)
        return min(size, min(stream.send_window, self.window))


def _ignore(stream: Http2Stream) -> None: ...
