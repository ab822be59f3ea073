"""The view that admission control has of a request's exchange."""

from collections.abc import Callable
from typing import Protocol

from gateway.core.decision import Prompt
from gateway.core.errors import GatewayError
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
