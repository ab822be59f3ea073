"""The view that admission control has of a request's exchange, and how it lets one go."""

from collections.abc import Callable
from typing import Protocol

from gateway.core.decision import Prompt
from gateway.core.errors import GatewayError
from gateway.core.request import InferenceRequest
from gateway.tenancy.admission.tenants import Ticket


class Waiter(Protocol):
    ticket: Ticket | None
    """Admission ticket of the request, or None once its exchange has ended."""

    def prepare(self, then: Callable[[Prompt | None], None]) -> None:
        """Make the prompt where that takes time, and call back with it; at once, with None, elsewhere."""

    def route_or_fail(self, prompt: Prompt | None) -> None:
        """Decide and send, or answer with the error."""

    def fail(self, error: GatewayError) -> None:
        """Answer with this; nothing was sent to a worker."""


Go = Callable[[Waiter, InferenceRequest, Prompt | None, Callable[[], None]], bool]
"""Decides and sends a request. Returns False if the decision comes later: its bookings are not visible yet,
and the last argument is called once they are."""
OnRefused = Callable[[Waiter, InferenceRequest, GatewayError], None]


def at_once(
    waiter: Waiter, request: InferenceRequest, prompt: Prompt | None, decided: Callable[[], None]
) -> bool:
    """Decide and send a request now, as a gateway does that shares its workers with no other."""
    waiter.route_or_fail(prompt)
    return True
