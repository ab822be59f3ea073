"""Services and configuration that the exchanges of a gateway share."""

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from gateway.apis.response_ids import ResponseIds
from gateway.bookings.time_slice import TimeSlice
from gateway.config import Config
from gateway.core.decision import Decision
from gateway.core.outcome import SERVER_ERROR
from gateway.core.pool_objects import PoolObjects
from gateway.core.request import InferenceRequest
from gateway.core.worker import Worker, WorkerId
from gateway.discovery.request_faults import RequestFaults
from gateway.http import cache_report
from gateway.http.messages import HttpRequest
from gateway.http.usage_injection import InjectedUsageScanner, with_usage
from gateway.observability.metrics import Metrics
from gateway.observability.request_end import OnEnd
from gateway.proxy.prompts import Prompts
from gateway.proxy.retries import RetryBudget
from gateway.proxy.usage_check import UsageCheck
from gateway.routing.decision_log import DecisionLog
from gateway.routing.router import Router
from gateway.runtime.rate_limited_log import RateLimitedLog
from gateway.runtime.tasks import Tasks
from gateway.server.body_budget import BodyBudget
from gateway.tenancy.admission.gate import Gate
from gateway.tenancy.admission.tenants import Ticket
from gateway.upstream.outgoing import Outgoing
from gateway.upstream.plan import Execution
from gateway.upstream.pools import Pools

log = logging.getLogger("kvgate.proxy")

BAD_REQUEST: Final = 400

AskUsage = Callable[[Worker, bool], InjectedUsageScanner | None]
"""Decides whether a stream's usage is requested where its client does not: the scanner that strips it, or
None. The flag is True where the usage is needed."""


@dataclass(frozen=True, slots=True, eq=False)
class Context:
    """The services of exchanges. Each exchange keeps the context that it began with; a reload makes another
    one (`proxy/dispatch.py`)."""

    config: Config
    router: Router
    prompts: Prompts
    metrics: Metrics
    records: DecisionLog
    tasks: Tasks
    pools: Pools
    outgoing: Outgoing
    usages: UsageCheck
    suspect: Callable[[WorkerId, str, bool], None]
    """Reports a failure of a worker that may be down: why, and whether it refused the connection."""
    faults: RequestFaults = field(default_factory=RequestFaults)
    """Charges failed requests to workers, or to the requests."""
    busy: Callable[[WorkerId, float], None] = lambda worker, seconds: None
    """Reports a worker that rejects requests because it is saturated, and for how long to send it none."""
    gate: Gate | None = None
    ask_usage: AskUsage = lambda worker, is_needed: None
    time_slice: TimeSlice | None = None
    """Set with `--booking atomic`."""
    to_report: Collection[str] = ()
    """Ids of decisions for which the engine is to report its cache hit (`ingest/blind_recovery.py`)."""
    retries: RetryBudget = field(default_factory=RetryBudget)
    response_ids: ResponseIds = field(default_factory=ResponseIds)
    bodies: BodyBudget = field(default_factory=BodyBudget)
    objects: PoolObjects = field(default_factory=PoolObjects)
    """Rewrites of model names."""
    end_observers: list[OnEnd] = field(default_factory=list)
    """Notified of each request that has ended."""
    log: RateLimitedLog = field(default_factory=lambda: RateLimitedLog(log))
    """Log lines that requests cause, rate-limited by their first value."""
    loop: asyncio.AbstractEventLoop = field(default_factory=lambda: asyncio.get_running_loop())

    def let_go(self, http: HttpRequest) -> None:
        """Give back the room that the body of a request took; a second call does nothing."""
        self.prompts.long_prompts.let_go(http.num_held)
        self.bodies.let_go(http)

    def failed(
        self,
        exchange: Execution,
        worker: WorkerId,
        reason: str,
        is_refused: bool = False,
        *,
        was_sent: bool = True,
    ) -> None:
        """Report a failed attempt at a worker, and charge it."""
        self.suspect(worker, reason, is_refused)
        self.faults.failed(exchange, worker, reason, was_sent=was_sent, is_refused=is_refused)

    def judge(self, exchange: Execution, worker: WorkerId, status: int) -> None:
        """Charge a complete answer with an error of the server's, or note a good one."""
        if status >= SERVER_ERROR:
            self.faults.failed(exchange, worker, f"it answered {status}")
        elif status < BAD_REQUEST:
            self.faults.answered(exchange)

    def body_for(
        self, request: InferenceRequest, decision: Decision, ticket: Ticket | None
    ) -> tuple[bytes, InjectedUsageScanner | None]:
        """Return the body for a worker: the client's, with the worker's model name and the gateway's own
        requests for usage and cache hits; the scanner strips injected usage from a stream."""
        body, unasked = self.outgoing.body(request, decision.worker), None
        if request.may_ask_usage:
            is_needed = self.gate is not None and self.gate.needs_usage(ticket)
            unasked = self.ask_usage(decision.worker, is_needed)
        if decision.id in self.to_report:
            body = cache_report.asking(body)
        return with_usage(body) if unasked else body, unasked
