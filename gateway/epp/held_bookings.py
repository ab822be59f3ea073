"""Bookings of requests with an answer that Envoy does not show to its end (`response_body_mode: NONE`, or no
response headers at all).

Such a booking is released after the predicted time. The worker's own count of running and waiting requests
corrects that: fewer than are booked there mean that the oldest has ended; as many mean that none has.
"""

import asyncio
from typing import Final

from gateway.http.messages import ResponseHead
from gateway.proxy.exchange import InferenceExchange
from gateway.server.responder import Exchange

PREDICTED_S: Final = 10.0
"""Time of an answer about which nothing is known: some hundred tokens."""

FRESH_S: Final = 2.0
"""Reports of workers are this old at most: an earlier one may not count the request yet."""

LONGEST_S: Final = 600.0
CHECK_EVERY_S: Final = 1.0


def is_over(held_s: float, predicted_s: float, num_reported: int, num_booked: int) -> bool:
    """True if a booking must be released that was held for `held_s`, as the oldest of `num_booked` at a
    worker that reports `num_reported` requests."""
    if held_s < FRESH_S:
        return False
    if num_reported < num_booked:
        return True
    return held_s >= (LONGEST_S if num_reported else predicted_s)


class HeldBookings:
    """Exchanges that wait for their predicted end, the oldest first."""

    def __init__(self) -> None:
        self._since: dict[Exchange, tuple[InferenceExchange, float]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"HeldBookings({len(self._since)})"

    def __len__(self) -> int:
        return len(self._since)

    def taken(self, exchange: Exchange) -> Exchange | None:
        """The exchange if it is held here."""
        return exchange if exchange in self._since else None

    def keep(self, exchange: InferenceExchange) -> None:
        """Hold the booking of an exchange after the end of its stream."""
        if not exchange.has_answer:
            exchange.upstream_head(ResponseHead(200, [], None))
        loop = exchange.context.loop
        self._since[exchange] = exchange, loop.time()
        if self._timer is None:
            self._timer = loop.call_later(CHECK_EVERY_S, lambda: self._check(loop))

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for exchange, _ in list(self._since.values()):
            exchange.close("ended")
        self._since.clear()

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for exchange, since_s in list(self._since.values()):
            decision = exchange.decision
            assert decision is not None, "a pick has one"
            worker, router = decision.worker.id, exchange.context.router
            member = router.fleet.get(worker)
            load = member.reported if member is not None else None
            exchange.touch()  # its idle timeout is for answers that are seen
            num_reported = load.num_running + load.num_waiting if load is not None else 0
            num_booked = router.ledger.load(worker).num_in_flight
            predicted_s = PREDICTED_S + (decision.ttft_s or 0.0)
            if exchange.is_closed or is_over(now - since_s, predicted_s, num_reported, num_booked):
                del self._since[exchange]
                exchange.close("ended")
        self._timer = loop.call_later(CHECK_EVERY_S, lambda: self._check(loop)) if self._since else None
