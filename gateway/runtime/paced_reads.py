"""Reads of a connection in turns, so that one peer's bytes take little of an iteration of the event loop.

    small read ───────────────► fed at once, by the connection itself
    large read ──► `take` ──► slices, for SLICE_S ──► the next iteration ──► the rest, or reading goes on

A read may be 256 KiB of units that each cost some µs (chunks of a byte, pipelined requests, empty frames),
and libuv reads up to 32 times from a socket before it polls others again: one peer could take seconds.
"""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Final

from gateway.runtime.work_slices import SLICE_S

SLICE_BYTES: Final = 8 << 10
"""Larger reads are fed in slices of this size."""


class PacedReads:
    """Reading of one connection: paused by its owner, or until the next iteration. `feed` takes the bytes."""

    __slots__ = ("is_paused", "_transport", "_loop", "_feed", "_is_reading", "_has_yielded", "_data", "_at")

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        feed: Callable[[bytes], object],
    ) -> None:
        self.is_paused = self._has_yielded = False
        self._is_reading = True
        self._transport: asyncio.Transport | None = transport
        self._loop = loop
        self._feed: Callable[[bytes], object] | None = feed
        self._data, self._at = b"", 0

    def __repr__(self) -> str:
        return f"PacedReads(paused={self.is_paused}, rest={len(self._data) - self._at})"

    @property
    def has_rest(self) -> bool:
        """Bytes wait that were read before."""
        return self._at < len(self._data)

    def take(self, data: bytes) -> None:
        """Feed a large read, or bytes behind a rest, in slices."""
        self._data, self._at = self._data[self._at :] + data, 0
        if not self.is_paused:
            self._turn()

    def take_rest(self) -> bytes:
        """Remove and return what was not fed yet."""
        rest, self._data, self._at = self._data[self._at :], b"", 0
        return rest

    def pause(self) -> None:
        self.is_paused = True
        self._read(False)

    def resume(self) -> None:
        """Read on; a rest is fed in the next iteration."""
        if self.is_paused:
            self.is_paused = False
            if self.has_rest:
                self.yield_to_others()
            elif not self._has_yielded:
                self._read(True)

    def yield_to_others(self) -> None:
        """Read on in the next iteration."""
        if self._transport and not self.is_paused and not self._has_yielded:
            self._has_yielded = True
            self._read(False)
            self._loop.call_soon(self._go_on)

    def hand_over(self) -> None:
        """Read on at once, for the connection's next owner."""
        self._read(True)
        self.close()

    def close(self) -> None:
        """Drop the rest, and all references."""
        self._transport = self._feed = None
        self._data, self._at = b"", 0

    def _read(self, is_reading: bool) -> None:
        if self._transport and self._is_reading is not is_reading:
            self._is_reading = is_reading
            if is_reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _go_on(self) -> None:
        self._has_yielded = False
        if self.is_paused:
            return
        if self.has_rest:
            self._turn()
        else:
            self._read(True)

    def _turn(self) -> None:
        end = monotonic() + SLICE_S
        while self.has_rest and self._feed and not self.is_paused:
            piece = self._data[self._at : self._at + SLICE_BYTES]
            self._at += len(piece)
            self._feed(piece)
            if monotonic() > end:
                break
        if not self.has_rest:
            self._data, self._at = b"", 0
        self.yield_to_others()
