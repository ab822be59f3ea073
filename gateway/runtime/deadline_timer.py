"""Timer for deadlines that every read postpones: it compares the deadline only when it fires."""

import asyncio
from collections.abc import Callable


class LazyTimer:
    """Calls `on_due` once a deadline has passed. One timer of the loop serves many deadlines, since creating
    and cancelling one for each read would cost more than the read."""

    __slots__ = ("_loop", "_on_due", "_deadline", "_handle", "_fires_at")

    def __init__(self, loop: asyncio.AbstractEventLoop, on_due: Callable[[], None]) -> None:
        self._loop = loop
        self._on_due: Callable[[], None] | None = on_due
        self._deadline = self._fires_at = 0.0
        self._handle: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        left = f"{self._deadline - self._loop.time():.3f} s" if self._deadline else "none"
        return f"LazyTimer({left})"

    def set(self, seconds: float) -> None:
        """Set the deadline in so many seconds, replacing an earlier one; 0: never."""
        if not seconds:
            self._deadline = 0.0
            return
        self._deadline = self._loop.time() + seconds
        if self._handle is None or self._fires_at > self._deadline:
            self._arm(seconds)

    def close(self) -> None:
        """Cancel the timer for ever and drop `on_due`, which may refer to this timer."""
        self._deadline, self._on_due = 0.0, None
        if self._handle:
            self._handle.cancel()
            self._handle = None

    def _arm(self, seconds: float) -> None:
        if self._handle:
            self._handle.cancel()
        self._fires_at = self._loop.time() + seconds
        self._handle = self._loop.call_later(seconds, self._fire)

    def _fire(self) -> None:
        self._handle = None
        if not self._deadline or self._on_due is None:
            return
        left = self._deadline - self._loop.time()
        if left > 0:
            self._arm(left)
        else:
            self._on_due()
