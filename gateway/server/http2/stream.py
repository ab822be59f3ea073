"""State of one stream: what waits to be sent, its windows, and which sides are closed."""

from typing import Final

COMPACT_AT: Final = 64
"""Sent parts that are kept before the list is cut: cutting it for each would cost its length each time."""


class Http2Stream:
    """A stream from its HEADERS to its end on both sides.

    `send_window`: bytes that the peer takes. `num_unreported`: received bytes for which it got no window
    again. `owner` is the layer's above.
    """

    __slots__ = (
        "id",
        "owner",
        "is_remote_closed",
        "is_closed",
        "has_head",
        "is_queued",
        "send_window",
        "receive_window",
        "num_unreported",
        "num_outgoing",
        "trailers",
        "num_expected",
        "_parts",
        "_index",
        "_offset",
    )

    def __init__(self, stream_id: int, send_window: int, receive_window: int) -> None:
        self.id = stream_id
        self.owner: object = None
        self.is_remote_closed = False
        self.is_closed = False
        self.has_head = False
        self.is_queued = False
        self.send_window = send_window
        self.receive_window = receive_window
        self.num_unreported = 0
        self.num_outgoing = 0
        self.trailers: bytes | None = None
        self.num_expected = -1  # content-length; -1: none
        self._parts: list[bytes] = []
        self._index = 0
        self._offset = 0

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "half-closed" if self.is_remote_closed else "open"
        return (
            f"Http2Stream({self.id}, {state}, {self.num_outgoing} bytes to send, window {self.send_window})"
        )

    def put(self, part: bytes) -> None:
        self._parts.append(part)
        self.num_outgoing += len(part)

    def take(self, size: int) -> bytes:
        """Take the next `size` bytes, or all that there are."""
        if size >= self.num_outgoing and self._index == 0 and self._offset == 0:
            parts, self._parts = self._parts, []
            self.num_outgoing = 0
            return parts[0] if len(parts) == 1 else b"".join(parts)
        return self._take_some(min(size, self.num_outgoing))

    def _take_some(self, size: int) -> bytes:
        taken: list[bytes] = []
        self.num_outgoing -= size
        while size > 0:
            part = self._parts[self._index]
            num_left = len(part) - self._offset
            if num_left <= size:
                taken.append(part[self._offset :] if self._offset else part)
                self._index += 1
                self._offset = 0
            else:
                taken.append(part[self._offset : self._offset + size])
                self._offset += size
            size -= min(num_left, size)
        if self._index >= COMPACT_AT or self.num_outgoing == 0:
            del self._parts[: self._index]
            self._index = 0
        return b"".join(taken)

    def drop(self) -> int:
        """Forget what waits to be sent; returns its size."""
        num_dropped, self.num_outgoing = self.num_outgoing, 0
        self._parts = []
        self._index = self._offset = 0
        return num_dropped
