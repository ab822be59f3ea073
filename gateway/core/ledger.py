"""The load ledger: requests sent to each worker and not finished.

Exact at decision time, where scraped gauges are late. A booking goes through

    booked --first token--> decoding --release--> released
       \\------------------- release ----------------^

and each transition counts once: finished, client gone, worker gone and deadline may race, the load is
released exactly once.
"""

from contextlib import AbstractContextManager
from enum import Enum
from typing import Final

from mypy_extensions import mypyc_attr

from gateway.core.worker import WorkerId

REQUEST_TOKENS: Final = 64
"""The cost of one more request beside its prompt, in prefill tokens: a decode step of one sequence
takes about as long as prefilling some tens of tokens, and a request does many. It breaks the tie between an
idle worker and one that only decodes."""


class Phase(Enum):
    BOOKED = "booked"
    DECODING = "decoding"
    RELEASED = "released"


@mypyc_attr(acyclic=True)
class Booking:
    """A request's share of a worker's load. `uncached_tokens` counts until the first token."""

    __slots__ = ("worker", "uncached_tokens", "num_tokens", "phase")

    def __init__(self, worker: WorkerId, uncached_tokens: int, num_tokens: int) -> None:
        self.worker = worker
        self.uncached_tokens = uncached_tokens
        self.num_tokens = num_tokens
        self.phase = Phase.BOOKED


@mypyc_attr(acyclic=True)
class PrefillQueue:
    """Bookings at one worker without a first token, in their order: an engine computes prompts one after the
    other, the first one since the last change at the front."""

    __slots__ = ("_waiting", "_since_s")

    def __init__(self) -> None:
        self._waiting: dict[Booking, None] = {}
        self._since_s = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, booking: Booking, now: float) -> None:
        if not self._waiting:
            self._since_s = now
        self._waiting[booking] = None

    def remove(self, booking: Booking, now: float) -> None:
        if next(iter(self._waiting)) is booking:
            self._since_s = now
        del self._waiting[booking]

    def done_tokens(self, now: float, token_s: float) -> int:
        """Tokens of the first prompt that are computed by now, at `token_s` each: never more than it has, so
        that a worker that stalls does not look idle."""
        for first in self._waiting:
            return min(max(int((now - self._since_s) / token_s), 0), first.uncached_tokens)
        return 0


@mypyc_attr(acyclic=True)
class Load:
    """In flight at one worker: requests, and prompt tokens of those without a first token (`queue`, where it
    is known)."""

    __slots__ = ("num_in_flight", "booked_tokens", "queue")

    def __init__(
        self, num_in_flight: int = 0, booked_tokens: int = 0, queue: PrefillQueue | None = None
    ) -> None:
        self.num_in_flight = num_in_flight
        self.booked_tokens = booked_tokens
        self.queue = queue

    @property
    def num_decoding(self) -> int:
        """Requests with a first token, as far as the queue is known."""
        return self.num_in_flight - (len(self.queue) if self.queue is not None else 0)

    def ahead_tokens(self, now: float, token_s: float) -> int:
        """Booked tokens that are still to be computed, where one takes `token_s`."""
        if self.queue is None or not self.booked_tokens:
            return self.booked_tokens
        return max(self.booked_tokens - self.queue.done_tokens(now, token_s), 0)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Load):
            return NotImplemented
        return (self.num_in_flight, self.booked_tokens) == (other.num_in_flight, other.booked_tokens)

    def __repr__(self) -> str:
        return f"Load({self.num_in_flight}, {self.booked_tokens})"


_IDLE: Final = Load()


class _NoLock:
    """Lock of a ledger that one process alone books in; compiled, unlike contextlib's `nullcontext`."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exc: object) -> None:
        return None


_FREE: Final[AbstractContextManager[object]] = _NoLock()


class Ledger:
    def __init__(self) -> None:
        self._loads: dict[WorkerId, Load] = {}

    def __repr__(self) -> str:
        return f"Ledger({self._loads})"

    def lock(self, num_tokens: int) -> AbstractContextManager[object]:
        """Return the lock that a decision holds from reading the load until its booking, so that no other
        decision on this host comes in between."""
        return _FREE

    def load(self, worker: WorkerId) -> Load:
        """The load now; not to be changed by the caller."""
        return self._loads.get(worker, _IDLE)

    def here(self, worker: WorkerId) -> Load:
        """The load that this host has booked there, without other gateways' bookings."""
        return self.load(worker)

    def remote(self, worker: WorkerId) -> Load:
        """The load that other gateways have booked there."""
        return _IDLE

    def book(self, worker: WorkerId, uncached_tokens: int, num_tokens: int, now: float = 0.0) -> Booking:
        load = self._loads.get(worker)
        if load is None:
            load = self._loads[worker] = Load(queue=PrefillQueue())
        load.num_in_flight += 1
        load.booked_tokens += uncached_tokens
        booking = Booking(worker, uncached_tokens, num_tokens)
        if load.queue is not None:
            load.queue.add(booking, now)
        return booking

    def first_token(self, booking: Booking, now: float = 0.0) -> None:
        """The prefill is done: its tokens are no longer work ahead."""
        if booking.phase is Phase.BOOKED:
            booking.phase = Phase.DECODING
            load = self._loads[booking.worker]
            load.booked_tokens -= booking.uncached_tokens
            if load.queue is not None:
                load.queue.remove(booking, now)

    def release(self, booking: Booking, now: float = 0.0) -> bool:
        """End a booking; False if it had ended before."""
        if booking.phase is Phase.RELEASED:
            return False
        self.first_token(booking, now)
        booking.phase = Phase.RELEASED
        load = self._loads[booking.worker]
        load.num_in_flight -= 1
        if not load.num_in_flight:
            del self._loads[booking.worker]
        return True
