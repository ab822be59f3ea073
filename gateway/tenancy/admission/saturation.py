"""When a worker takes no more for now, by what is known of it at this moment.

    in flight there      ours and of all who tell us (the ledger), against a bound
    work booked there    by its pace: when a request that comes now would have its first token
    its seats            where as many answers run as it runs at once, some have to end before
    its KV cache         full, and requests wait for it already (as it said last)

One that has nothing in flight always takes a request, so that nobody waits for nothing.
"""

from mypy_extensions import mypyc_attr

from gateway.core.ledger import Load
from gateway.core.speed import Pace
from gateway.core.worker import FULL_KV, Reported


@mypyc_attr(acyclic=True)
class Saturation:
    """0 means no bound; with neither nothing is ever saturated."""

    def __init__(self, above_ttft_s: float = 0.0, max_in_flight: int = 0) -> None:
        self.above_ttft_s = above_ttft_s
        self.max_in_flight = max_in_flight

    def __repr__(self) -> str:
        return f"Saturation(above {self.above_ttft_s:g} s, in flight {self.max_in_flight})"

    @property
    def is_on(self) -> bool:
        return bool(self.above_ttft_s or self.max_in_flight)

    def is_full(self, load: Load, pace: Pace, reported: Reported) -> bool:
        num = load.num_in_flight
        if num <= 0:
            return False
        if self.max_in_flight and num >= self.max_in_flight:
            return True
        if not self.above_ttft_s:
            return False
        if reported.num_waiting and reported.kv_usage >= FULL_KV:
            return True
        waits = load.booked_tokens > 0 or num >= pace.seats
        return waits and ttft_s(load, pace) > self.above_ttft_s


def ttft_s(load: Load, pace: Pace) -> float:
    """Until the first token of a request that comes now, its own prompt left out: `Pace.ttft_s`, written
    out: it is asked of each worker for each request."""
    num = load.num_in_flight
    seat_s = pace.seat_s(num) if num >= pace.seats else 0.0
    start_s = pace.start_s + num * pace.start_seq_s
    return seat_s + start_s + load.booked_tokens * (pace.token_s + num * pace.seq_s)
