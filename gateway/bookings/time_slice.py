"""Decisions in this gateway's time slice (`--booking atomic`), where several gateways share workers.

A prompt of a few tokens is decided at once: it books so little that other gateways need not see it first.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol

from gateway.bookings.shared_ledger import LOCK_TOKENS
from gateway.core.decision import Prompt
from gateway.core.errors import FAILED, GatewayError
from gateway.core.request import InferenceRequest

log = logging.getLogger("kvgate.proxy")

InTurn = Callable[[Callable[[], None]], None]
"""Calls back in this gateway's next time slice, which is soon."""


class Decidable(Protocol):
    """Request that waits for its decision."""

    def route_or_fail(self, prompt: Prompt | None) -> None:
        """Decide and send, or answer with the error."""

    def fail(self, error: GatewayError) -> None:
        """Answer with this; nothing was sent to a worker."""


class TimeSlice:
    """Decides requests under the distributed lock."""

    def __init__(self, under_lock: InTurn, tokenize: Callable[[InferenceRequest], Prompt]) -> None:
        self._in_turn = under_lock
        self._tokenize = tokenize

    def __repr__(self) -> str:
        return f"TimeSlice({self._in_turn!r})"

    def decide(
        self,
        waiter: Decidable,
        request: InferenceRequest,
        prompt: Prompt | None,
        on_decided: Callable[[], None] | None = None,
    ) -> bool:
        """Have a request decided, now or in the next slice. False: it is not decided yet, and `on_decided`
        is called once it is."""
        prompt = self._tokenize(request) if prompt is None else prompt
        if prompt.num_tokens < LOCK_TOKENS:
            waiter.route_or_fail(prompt)
            return True
        self._in_turn(partial(self._decide, waiter, prompt, on_decided))
        return False

    def _decide(self, waiter: Decidable, prompt: Prompt, on_decided: Callable[[], None] | None) -> None:
        try:
            waiter.route_or_fail(prompt)
        except Exception:  # noqa: BLE001  see failed
            failed(waiter)
        if on_decided is not None:
            on_decided()


def failed(waiter: Decidable) -> None:
    """Answer a request that met a bug: its client must not wait, nor its admission or the queue be held."""
    log.exception("decision of %r raised; its client gets 500", waiter)
    waiter.fail(GatewayError(FAILED))
