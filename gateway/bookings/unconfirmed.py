"""Bookings published but not yet echoed back by Redis: an estimate of what other gateways booked meanwhile.

    booked ─► new ─published in message 7─► on its way ─7 comes back─► known, as is all published before it
                                            └─ after LOST_S: the message is lost

All gateways receive all messages in one order. Until its own message comes back, a gateway cannot know what
the others did in the same moment; but they see the same workers, and clients ask all of them alike. So each
unconfirmed booking is counted once more for each of them. That spreads a burst of equal prompts that comes to
all in the same millisecond, where else each would send its share to the worker that holds the prefix. Tokens
still to be computed are not multiplied: those of equal prompts are computed once, and different ones go where
they are fewest anyway.
"""

from collections import deque
from typing import Final

from gateway.core.worker import WorkerId

LOST_S: Final = 0.25
"""Time after which an unechoed message counts as lost."""


class UnconfirmedBookings:
    def __init__(self) -> None:
        self._counts: dict[WorkerId, int] = {}
        self._new: dict[WorkerId, int] = {}
        self._published: deque[tuple[int, float, dict[WorkerId, int]]] = deque()

    def __repr__(self) -> str:
        return f"UnconfirmedBookings({self._counts}, messages={len(self._published)})"

    def at(self, worker: WorkerId) -> int:
        return self._counts.get(worker, 0) if self._counts else 0

    def booked(self, worker: WorkerId) -> None:
        self._counts[worker] = self._counts.get(worker, 0) + 1
        self._new[worker] = self._new.get(worker, 0) + 1

    def published(self, seq: int, now: float) -> None:
        """Record that new bookings went out in message `seq`, at `now` in seconds of any monotonic clock."""
        while self._published and self._published[0][1] < now - LOST_S:
            self._forget(self._published.popleft()[2])
        if self._new:
            self._published.append((seq, now, self._new))
            self._new = {}

    def confirm(self, seq: int) -> None:
        """Confirm all bookings in messages up to `seq`."""
        while self._published and self._published[0][0] <= seq:
            self._forget(self._published.popleft()[2])

    def _forget(self, counts: dict[WorkerId, int]) -> None:
        for worker, count in counts.items():
            left = self._counts[worker] - count
            if left:
                self._counts[worker] = left
            else:
                del self._counts[worker]
