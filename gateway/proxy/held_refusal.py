"""Refusal of a worker, held back until its body says whether the worker is saturated or failed.

head 429, 529, 503, 500 ─► body, up to 16 KiB ─► the exchange: another worker, or
                                       the answer goes on to its reader, and to the client
"""

import time
from collections.abc import Callable
from typing import Final

from gateway.core.outcome import SERVER_ERROR
from gateway.http.messages import ResponseHead
from gateway.http.refusal import Refusal, refusal_of
from gateway.upstream.connection import ResponseSink

MAX_BYTES: Final = 16 << 10
"""Engines' errors have some hundred bytes."""


class HeldRefusal:
    """A refusal on its way; takes the place of the connection's reader, which has seen the head."""

    __slots__ = ("head", "refusal", "_reader", "_on_read", "_on_lost", "_data", "_has_ended", "_is_passing")

    def __init__(
        self,
        head: ResponseHead,
        reader: ResponseSink,
        on_read: "Callable[[HeldRefusal], None]",
        on_lost: Callable[[str], None],
    ) -> None:
        """Read a refusal's body, or enough of it, then set `refusal` and call `on_read`; call `on_lost` if
        the connection is lost before that."""
        self.head = head
        self.refusal: Refusal | None = None
        self._reader = reader
        self._on_read = on_read
        self._on_lost = on_lost
        self._data = b""
        self._has_ended = self._is_passing = False

    def __repr__(self) -> str:
        return f"HeldRefusal({self.head.status}, {len(self._data)} bytes, {self.refusal})"

    @property
    def has_ended(self) -> bool:
        """True if the connection is free again."""
        return self._has_ended

    def upstream_head(self, head: ResponseHead) -> None:
        raise AssertionError("a refusal has one head, which came before")

    def upstream_data(self, data: bytes) -> None:
        if self.refusal is not None:
            return self._reader.upstream_data(data)
        self._data += data
        if len(self._data) > MAX_BYTES:
            self._judge()
        return None

    def upstream_ended(self, data: bytes) -> None:
        if self.refusal is not None:
            return self._reader.upstream_ended(data)
        self._data += data
        self._has_ended = True
        return self._judge()

    def upstream_lost(self, reason: str) -> None:
        if self.refusal is None:
            if self.head.status != SERVER_ERROR:
                return self._on_lost(reason)
            self._judge()  # a partial error is cut, unless it says that the worker is saturated
            if not self._is_passing:
                return None
        return self._reader.upstream_lost(reason)

    def go_on(self) -> None:
        """Hand what was held back to the reader, after the head."""
        self._is_passing = True
        if self._has_ended:
            self._reader.upstream_ended(self._data)
        else:
            self._reader.upstream_data(self._data)

    def _judge(self) -> None:
        self.refusal = refusal_of(self.head, self._data, time.time())
        self._on_read(self)
