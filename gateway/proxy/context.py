"""Services and options that the exchanges of a gateway share."""

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from gateway.apis.response_ids import ResponseIds
from gateway.config import Config
from gateway.core.decision import Decision
from gateway.core.requests.request import InferenceRequest
from gateway.core.worker import Worker, WorkerId
from gateway.http import cache_report
from gateway.http.messages import HttpRequest
from gateway.http.usage_injection import UnaskedScanner, with_usage
from gateway.observability.metrics import Metrics
from gateway.observability.request_end import OnEnd
from gateway.proxy.deadlines import Deadlines
from gateway.proxy.prompts import Prompts
from gateway.proxy.retries import Retries
from gateway.proxy.time_slice import TimeSlice
from gateway.proxy.usage_check import Usages
from gateway.routing.decision_log import Records
from gateway.routing.router import Router
from gateway.runtime.rate_limited_log import RateLimitedLog
from gateway.runtime.tasks import Tasks
from gateway.server.body_budget import Bodies
from gateway.tenancy.admission.gate import Gate
from gateway.tenancy.admission.tenants import Ticket
from gateway.upstream.outgoing import Outgoing
from gateway.upstream.pools import Pools

log = logging.getLogger("kvgate.proxy")


@dataclass(frozen=True, slots=True)
class ProxyOptions:
    """Options of the proxy in seconds, counts and bytes; `gateway/config/` has their reasons. 0 seconds means
    no limit."""

    connect_timeout_s: float = 5.0
    deadlines: Deadlines = Deadlines()
    pool_idle_s: float = 4.0
    max_attempts: int = 2
    retry_share: float = 0.2
    expose_headers: bool = False
    prefill_timeout_s: float = 60.0
    allow_transfer_fields: bool = False
    session_header: bytes = b""
    session_cookie: bytes = b""
    mask_cached_tokens: bool = False


def proxy_options(config: Config) -> ProxyOptions:
    return ProxyOptions(
        connect_timeout_s=config.proxy.connect_timeout_s,
        deadlines=Deadlines(
            config.proxy.first_byte_timeout_s, config.proxy.idle_timeout_s, config.proxy.total_timeout_s
        ),
        pool_idle_s=config.proxy.pool_idle_s,
        max_attempts=config.proxy.max_attempts,
        retry_share=config.proxy.retry_share,
        expose_headers=config.headers.expose_headers,
        prefill_timeout_s=config.disaggregation.prefill_timeout_s,
        allow_transfer_fields=config.proxy.allow_transfer_fields,
        session_header=config.headers.session_header.lower().encode(),
        session_cookie=config.headers.session_cookie.encode(),
        mask_cached_tokens=config.auth.mask_cached_tokens,
    )


AskUsage = Callable[[Worker, bool], UnaskedScanner | None]
"""Decides whether a stream's usage is requested where its client does not: the scanner that strips it, or
None. The flag is True where the usage is needed."""


@dataclass(frozen=True, slots=True, eq=False)
class Context:
    """The services of exchanges. Each exchange keeps the context that it began with; a reload makes another
    one (`proxy/dispatch.py`)."""

    router: Router
    prompts: Prompts
    metrics: Metrics
    records: Records
    tasks: Tasks
    pools: Pools
    outgoing: Outgoing
    usages: Usages
    suspect: Callable[[WorkerId, str, bool], None]
    """Reports a failure of a worker that may be down: why, and whether it refused the connection."""
    blame: Callable[[WorkerId, str], None] = lambda worker, reason: None
    """Reports a failure of a worker that is up."""
    options: ProxyOptions = ProxyOptions()
    gate: Gate | None = None
    ask_usage: AskUsage = lambda worker, is_needed: None
    time_slice: TimeSlice | None = None
    """Set with `--booking atomic`."""
    to_report: Collection[str] = ()
    """Ids of decisions for which the engine is to report its cache hit (`ingest/blind_recovery.py`)."""
    retries: Retries = field(default_factory=Retries)
    response_ids: ResponseIds = field(default_factory=ResponseIds)
    bodies: Bodies = field(default_factory=Bodies)
    end_observers: list[OnEnd] = field(default_factory=list)
    """Notified of each request that has ended."""
    log: RateLimitedLog = field(default_factory=lambda: RateLimitedLog(log))
    """Log lines that requests cause, rate-limited by their first value."""
    loop: asyncio.AbstractEventLoop = field(default_factory=lambda: asyncio.get_running_loop())

    def let_go(self, http: HttpRequest) -> None:
        """Give back the room that the body of a request took; a second call does nothing."""
        self.prompts.long_prompts.let_go(http.num_held)
        self.bodies.let_go(http)

    def body_for(
        self, request: InferenceRequest, decision: Decision, ticket: Ticket | None
    ) -> tuple[bytes, UnaskedScanner | None]:
        """Return the body for a worker: the client's, with the worker's model name and the gateway's own
        requests for usage and cache hits; the scanner strips injected usage from a stream."""
        body, unasked = self.outgoing.body(request, decision.worker), None
        if request.may_ask_usage:
            is_needed = self.gate is not None and self.gate.needs_usage(ticket)
            unasked = self.ask_usage(decision.worker, is_needed)
        if decision.id in self.to_report:
            body = cache_report.asking(body)
        return with_usage(body) if unasked else body, unasked
