"""Limits of a connection, and its budget for frames that cause work and bring nothing."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Http2Limits:
    """Limits that a server announces, or holds against a peer."""

    max_streams: int = 1024
    """A proxy keeps a stream for each request in flight, and opens another connection beyond."""
    max_frame_bytes: int = 65536
    """A piece of a body, up to 62,000 bytes, fits into one frame."""
    max_header_bytes: int = 32768
    """A stream's headers, encoded and decoded."""
    max_continuations: int = 16
    stream_window: int = 1 << 20
    connection_window: int = 16 << 20
    max_message_bytes: int = 70 << 20
    """Envoy sends a buffered body in one message: the largest body of a client, and some headers."""
    max_partial_bytes: int = 256 << 20
    """Messages of one connection that have arrived in part; those of all count as bodies, too
    (`server/body_budget.py`)."""
    message_timeout_s: float = 60.0
    min_message_rate: float = 500.0
    """Bytes per second by which an incomplete message grows at least, in each `message_timeout_s`."""
    slow_stream_bytes: int = 256 << 10
    """Output that waits in a stream: beyond it the peer gets no more of that stream's window."""
    slow_connection_bytes: int = 256 << 20
    """Output that waits in a connection: beyond it the peer gets no more of the connection's window."""
    max_control_bytes: int = 1 << 20
    """Answers to PING and SETTINGS that wait for a peer that does not read."""


IDLE_BURST: Final = 10_000.0
IDLE_PER_S: Final = 1_000.0
"""A Go client sends a PING with each read, to learn the bandwidth."""

RESET_BURST: Final = 2_048.0
RESETS_PER_S: Final = 100.0
"""Resets before an answer has begun: a proxy that stops resets all its streams at once; one that goes on is
an attack (rapid reset)."""


class Budget:
    """Token bucket of events without use: time and useful events refill it. Time is a parameter."""

    __slots__ = ("_burst", "_per_s", "_left", "_at_s")

    def __init__(self, burst: float, per_s: float) -> None:
        self._burst = burst
        self._per_s = per_s
        self._left = burst
        self._at_s = 0.0

    def __repr__(self) -> str:
        return f"Budget({self._left:.0f} of {self._burst:.0f})"

    def earn(self, amount: float) -> None:
        self._left = min(self._burst, self._left + amount)

    def spend(self, amount: float, now: float) -> bool:
        """Take so much; False if there is not enough left."""
        if now > self._at_s:
            self._left = min(self._burst, self._left + (now - self._at_s) * self._per_s)
            self._at_s = now
        self._left -= amount
        return self._left >= 0.0
