"""The booking at a prefill worker that a caller, or a sidecar beside the decode worker, asks for a prompt."""

from gateway.core.decision import Decision
from gateway.routing.router import Router
from gateway.upstream.plan import Observer


class PrefillBooking(Observer):
    """Ends with the answer's first token: the prompt has been computed by then."""

    __slots__ = ("_router",)

    def __init__(self, router: Router) -> None:
        self._router = router

    def first_token(self, decision: Decision, arrived_s: float, now: float) -> None:
        self._router.prefilled(decision)
