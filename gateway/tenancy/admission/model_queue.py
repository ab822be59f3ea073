"""The queue of one model, its requests, and the work that each of them is."""

from collections import Counter
from typing import Final

from gateway.core.decision import Prompt
from gateway.core.ledger import REQUEST_TOKENS
from gateway.core.request import InferenceRequest
from gateway.observability.metrics import Bounds, Histogram
from gateway.tenancy.admission.base import Waiter
from gateway.tenancy.admission.drain_rate import DrainRate
from gateway.tenancy.admission.fair_queue import FairQueue, QueueEntry
from gateway.tenancy.admission.tenants import Ticket

WAIT_BOUNDS_S: Final[Bounds] = (
    *(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0),
)
BYTES_PER_TOKEN: Final = 4
"""Bytes per token of a prompt that is not tokenized here."""


class QueuedRequest(QueueEntry):
    """Request in a queue, with the exchange and the prompt that it continues with; without one, its prompt is
    made once a worker is up."""

    __slots__ = ("waiter", "request", "prompt", "num_bytes")

    def __init__(
        self,
        waiter: Waiter,
        request: InferenceRequest,
        prompt: Prompt | None,
        ticket: Ticket,
        num_tokens: int,
        now: float,
        deadline_s: float,
    ) -> None:
        super().__init__(
            ticket.tenant.name,
            num_tokens,
            now,
            priority=request.priority or 0,
            weight=ticket.tenant.limits.weight,
            deadline_s=deadline_s,
        )
        self.waiter = waiter
        self.request = request
        self.prompt = prompt
        self.num_bytes = len(request.body)


class ModelQueue:
    """Queue of one model, with its drain rate and counts by outcome. `zero_since_s`: since then its requests
    wait for a first worker; `preparing` have left it, and their prompts are being made."""

    def __init__(self, max_queued: int) -> None:
        self.queue = FairQueue(max_queued)
        self.rate = DrainRate()
        self.wait_s = Histogram(WAIT_BOUNDS_S)
        self.ends: Counter[str] = Counter()
        self.num_bytes = 0
        self.zero_since_s: float | None = None
        self.preparing: set[QueuedRequest] = set()


def tokens_of(request: InferenceRequest, prompt: Prompt | None) -> int:
    """Tokens of the prompt, estimated from the body where it is not tokenized."""
    return (prompt.num_tokens if prompt is not None else 0) or len(request.body) // BYTES_PER_TOKEN


def work_of(request: InferenceRequest, prompt: Prompt | None) -> int:
    return tokens_of(request, prompt) + REQUEST_TOKENS
