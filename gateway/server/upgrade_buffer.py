"""Upgrade buffer: bytes that a client sends behind an upgrade request, until it is answered.

offered ──► bytes wait, a few ──► agreed: they and all that follow go to the new protocol
                             └──► rejected: they are dropped with the connection
"""

from collections.abc import Callable
from typing import Final, Protocol

MAX_WAITING_BYTES: Final = 64 << 10
"""Bytes that a client may send before its upgrade request is answered; beyond, reading pauses."""


class PausableConnection(Protocol):
    """Connection, as far as reading is concerned."""

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class UpgradeBuffer:
    def __init__(self, connection: PausableConnection, early: bytes) -> None:
        """Create a buffer; `early` came in the same read as the upgrade request."""
        self._connection = connection
        self._waiting = bytearray()
        self._receive: Callable[[bytes], None] | None = None
        self.take(early)

    def __repr__(self) -> str:
        return f"UpgradeBuffer({'agreed' if self._receive else f'{len(self._waiting)} bytes wait'})"

    def take(self, data: bytes) -> None:
        if self._receive:
            return self._receive(data)
        self._waiting += data
        if len(self._waiting) > MAX_WAITING_BYTES:
            self._connection.pause_reading()
        return None

    def agreed(self, receive: Callable[[bytes], None]) -> None:
        """Hand the buffered bytes, and all that follow, to `receive`."""
        self._receive = receive
        waiting, self._waiting = bytes(self._waiting), bytearray()
        self._connection.resume_reading()
        if waiting:
            receive(waiting)
