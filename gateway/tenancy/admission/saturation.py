"""Saturation rule: when a worker takes no more requests for now.

    in flight there       bookings of this gateway and of the others, against a bound
    work booked there     by its speed model: the predicted TTFT of a request that comes now
    its concurrency limit once it runs as many sequences as fit, some have to end first
    its KV cache          full while requests wait for it (as last reported)

A worker with nothing in flight always takes a request, so that none waits without a cause.
"""

from typing import Final

from mypy_extensions import mypyc_attr

from gateway.core.ledger import Load
from gateway.core.speed import Speed
from gateway.core.worker import FULL_KV, ReportedLoad

UNLIMITED: Final = 2**31


@mypyc_attr(acyclic=True)
class Saturation:
    """Bounds above which a worker is saturated; 0 means no bound, and with neither no worker is ever
    saturated."""

    def __init__(self, above_ttft_s: float = 0.0, max_in_flight: int = 0) -> None:
        self.above_ttft_s = above_ttft_s
        self.max_in_flight = max_in_flight

    def __repr__(self) -> str:
        return f"Saturation(above {self.above_ttft_s:g} s, in flight {self.max_in_flight})"

    @property
    def is_on(self) -> bool:
        return bool(self.above_ttft_s or self.max_in_flight)

    def num_free(self, load: Load) -> int:
        """Requests that may still be sent to a worker, where their number is limited."""
        return max(self.max_in_flight - load.num_in_flight, 0) if self.max_in_flight else UNLIMITED

    def is_full(self, load: Load, speed: Speed, reported: ReportedLoad) -> bool:
        num = load.num_in_flight
        if num <= 0:
            return False
        if self.max_in_flight and num >= self.max_in_flight:
            return True
        if not self.above_ttft_s:
            return False
        if reported.num_waiting and reported.kv_usage >= FULL_KV:
            return True
        waits = load.booked_tokens > 0 or num >= speed.max_running
        return waits and ttft_s(load, speed) > self.above_ttft_s


def ttft_s(load: Load, speed: Speed) -> float:
    """Predicted seconds until the first token of a request that comes now, without its own prompt: the body
    of `Speed.ttft_s`, inlined because it runs for each worker and request. While answers have to end first,
    the tokens ahead are computed."""
    num, wait_s = float(load.num_in_flight), 0.0
    if num >= speed.max_running:
        wait_s = speed.wait_s(load.num_in_flight)
        num = speed.max_running
    start_s = speed.start_s + num * speed.start_seq_s
    return start_s + max(wait_s, load.booked_tokens * (speed.token_s + num * speed.seq_s))
