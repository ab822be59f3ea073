"""State of one stream: what waits to be sent, its windows, and which sides are closed."""

from typing import Final

COMPACT_AT: Final = 64
"""Sent parts that are kept before the list is cut: cutting it for each would cost its length each time."""


class Http2Stream:
    """A stream from its HEADERS to its end on both sides.

    `send_window`: bytes that the peer takes. `num_unreported`: received bytes for which it got no window
    again; with `is_withheld` it gets none before some output is sent. `data_tail` ends the head of each DATA
    frame. `owner` is the layer's above.
    """

    __slots__ = (
        "id",
        "owner",
        "is_remote_closed",
        "is_closed",
        "has_head",
        "is_queued",
        "is_withheld",
        "send_window",
        "receive_window",
        "num_unreported",
        "num_outgoing",
        "trailers",
        "num_expected",
        "data_tail",
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
        self.is_withheld = False
        self.send_window = send_window
        self.receive_window = receive_window
        self.num_unreported = 0
        self.num_outgoing = 0
        self.trailers: bytes | None = None
        self.num_expected = -1  # content-length; -1: none
        self.data_tail = stream_id.to_bytes(6, "big")  # kind and flags are zeros
        self._parts: list[bytes] = []
        self._index = 0
        self._offset = 0

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "half-closed" if self.is_remote_closed else "open"
        return (
            f"Http2Stream({self.id}, {state}, {self.num_outgoing} bytes to send, window {self.send_window})"
        )

    def put(self, head: bytes, body: bytes) -> None:
        self._parts.append(head)
        self._parts.append(body)
        self.num_outgoing += len(head) + len(body)

    def take(self, size: int, out: list[bytes]) -> None:
        """Move the next `size` bytes, of those that there are, to `out`."""
        if size == self.num_outgoing and self._index == 0 and self._offset == 0:
            out += self._parts
            self._parts.clear()
            self.num_outgoing = 0
        else:
            self._take_some(size, out)

    def _take_some(self, size: int, out: list[bytes]) -> None:
        self.num_outgoing -= size
        while size > 0:
            part = self._parts[self._index]
            num_left = len(part) - self._offset
            if num_left <= size:
                out.append(part[self._offset :] if self._offset else part)
                self._index += 1
                self._offset = 0
            else:
                out.append(part[self._offset : self._offset + size])
                self._offset += size
            size -= min(num_left, size)
        if self._index >= COMPACT_AT or self.num_outgoing == 0:
            del self._parts[: self._index]
            self._index = 0

    def drop(self) -> int:
        """Forget what waits to be sent; returns its size."""
        num_dropped, self.num_outgoing = self.num_outgoing, 0
        self._parts = []
        self._index = self._offset = 0
        return num_dropped
