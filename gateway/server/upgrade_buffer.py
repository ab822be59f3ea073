"""What a client sends behind the last request of its connection, where that asked to leave HTTP.

offered ──► bytes wait, a few ──► agreed: they and all that follow go to the new protocol
                             └──► refused: they are dropped with the connection
"""

from collections.abc import Callable
from typing import Protocol

MAX_WAITING_BYTES = 64 << 10
"""A client may send before its offer is answered; beyond this it is read no further until then."""


class Reading(Protocol):
    """The connection, as far as it is read."""

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class Beyond:
    def __init__(self, connection: Reading, early: bytes) -> None:
        """`early` is what came in the same read as the offer."""
        self._connection = connection
        self._waiting = bytearray()
        self._receive: Callable[[bytes], None] | None = None
        self.take(early)

    def __repr__(self) -> str:
        return f"Beyond({'agreed' if self._receive else f'{len(self._waiting)} bytes wait'})"

    def take(self, data: bytes) -> None:
        if self._receive:
            return self._receive(data)
        self._waiting += data
        if len(self._waiting) > MAX_WAITING_BYTES:
            self._connection.pause_reading()
        return None

    def agreed(self, receive: Callable[[bytes], None]) -> None:
        """From now on `receive` gets what comes, and first what has waited."""
        self._receive = receive
        waiting, self._waiting = bytes(self._waiting), bytearray()
        self._connection.resume_reading()
        if waiting:
            receive(waiting)
