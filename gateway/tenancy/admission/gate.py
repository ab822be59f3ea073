"""Admission gate: the checks that a request passes before its routing decision.

    parsed ─ admit: tenant, its request limits, room in the queue ─► prompt ─ route: its tenant's token limit;
      saturated? wait, else go ─► … ─ ended: settle the cost
                                └─ hold: wait too, where no worker is up and one is expected

A rejected request gets 429 with Retry-After and the reason, as early as it is known. Without limits, queues
or trusted proxies there is no gate.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from gateway.apis.response_ids import STORED
from gateway.bookings.tenant_usage import QuotaUsage
from gateway.bookings.time_slice import TimeSlice
from gateway.config import Config
from gateway.core.decision import Prompt
from gateway.core.errors import GatewayError, NoWorker, TooManyRequests
from gateway.core.pool_objects import PoolObjects
from gateway.core.request import InferenceRequest
from gateway.core.route_table import GENERATE, TABLE, RouteKind, paths
from gateway.core.usage import Usage
from gateway.http.messages import HttpRequest
from gateway.http.networks import Trusted
from gateway.http.response_observer import ResponseObserver
from gateway.routing.router import Router
from gateway.server.responder import Responder
from gateway.tenancy.admission.base import Waiter, at_once
from gateway.tenancy.admission.model_queue import tokens_of
from gateway.tenancy.admission.queues import ModelQueues
from gateway.tenancy.admission.rejections import slo_unreachable
from gateway.tenancy.admission.request_identity import (
    HeaderNames,
    declared_identity,
    header_names,
    objective_priority,
    tenant_of_key,
    trusted_peers,
)
from gateway.tenancy.admission.saturation import Saturation
from gateway.tenancy.admission.stats import AdmissionStats
from gateway.tenancy.admission.tenants import Tenant, Tenants, Ticket
from gateway.tenancy.admission.zero import Outlook, ZeroRule

UNQUEUED: Final = paths(route for route in TABLE if not route.is_queued) | {STORED}
"""Paths that engines answer without occupying a sequence: never queued."""

STOP_MARGIN_S: Final = 1.0
"""Seconds left for rejections to reach their clients before connections are closed."""

Tokenize = Callable[[InferenceRequest], Prompt]


class Gate:
    def __init__(
        self,
        queues: ModelQueues,
        tenants: Tenants,
        *,
        names: HeaderNames,
        trusted: Trusted,
        tokenize: Tokenize,
        stats: AdmissionStats,
        loop: asyncio.AbstractEventLoop,
        objects: PoolObjects,
    ) -> None:
        self.queues = queues
        self.tenants = tenants
        self.stats = stats
        self.now = loop.time
        self._names = names
        self._objects = objects
        self._trusted = trusted
        self._is_trusting = bool(trusted)
        self._tokenize = tokenize
        self._is_queueing = queues.is_on
        self.is_holding = queues.zero.is_on
        """True where models may start from zero."""
        queues.on_refused = self._rejected

    def __repr__(self) -> str:
        return f"Gate({self.queues}, {self.tenants})"

    def reconfigure(self, config: Config) -> None:
        """Apply changed limits to new requests; requests already queued stay queued. Raises ConfigError, with
        nothing changed, for invalid networks."""
        trusted = trusted_peers(config)
        self._trusted, self._is_trusting, self._names = trusted, bool(trusted), header_names(config)
        self.queues.reconfigure(config)
        self._is_queueing = self.queues.is_on
        self.is_holding = self.queues.zero.is_on
        self.tenants.limit(config.tenants, self.now())

    def admit(self, http: HttpRequest, request: InferenceRequest, responder: Responder) -> Ticket:
        """Admit a request until its exchange has `ended`. Raises TooManyRequests, or NoWorker, with nothing
        counted."""
        now = self.now()
        is_trusted = http.is_trusted or (self._is_trusting and self._trusted.trusts(responder.peer))
        tenant = self.identify(http, request, now, is_trusted=is_trusted)
        try:
            if self._is_queueing:
                self.queues.check_room(request.model, tenant.name, request.priority or 0)
            tenant.admit(now)
        except GatewayError as error:
            self.stats.reject(request, tenant, error, http)
            error.request = request
            raise
        finally:
            if tenant.has_limits:
                responder.more_headers = tenant.headers(now)
        self.stats.requests[tenant.label] += 1
        return Ticket(tenant, http, now, responder.more_headers)

    def route(
        self, waiter: Waiter, request: InferenceRequest, prompt: Prompt | None
    ) -> tuple[bool, Prompt | None]:
        """True: the request may be decided now, with the prompt where its tokens were needed. False: it waits
        in a queue, or was rejected."""
        ticket = waiter.ticket
        assert ticket is not None, "it was admitted"
        try:
            if ticket.tenant.tokens is not None:
                prompt = self._tokenize(request) if prompt is None else prompt
                self._take_tokens(request, prompt, ticket)
            if self._must_wait(request):
                if self.queues.is_at_zero(request.model):
                    prompt = None  # made once a worker is up: which tokens it counts is not known
                elif prompt is None:
                    prompt = self._tokenize(request)
                self.queues.wait(waiter, request, prompt, ticket)
                return False, prompt
        except GatewayError as error:
            self._rejected(waiter, request, error)
            waiter.fail(error)
            return False, prompt
        return True, prompt

    def hold(self, waiter: Waiter, request: InferenceRequest, error: GatewayError) -> bool:
        """True: a request that found no worker waits for one, or was rejected. False: `error` answers it."""
        ticket = waiter.ticket
        if ticket is None or request.path in UNQUEUED or not self.queues.zero.holds(request.model, error):
            return False
        try:
            if ticket.tenant.tokens is not None and not ticket.num_tokens:
                self._take_tokens(request, None, ticket)
            self.queues.wait(waiter, request, None, ticket)
        except GatewayError as refused:
            self._rejected(waiter, request, refused)
            waiter.fail(refused)
        return True

    def may_hold(self, model: str) -> bool:
        """True if a request for this model may have to wait for workers of which nothing is known yet."""
        fleet = self.queues.zero.fleet
        return self.is_holding and (fleet.is_bound(model) or not fleet.is_ready(model))

    def ended(
        self,
        waiter: Waiter,
        request: InferenceRequest,
        answer: ResponseObserver | None,
        usage: Usage | None,
        *,
        was_sent: bool = True,
    ) -> None:
        """Settle a request's token usage and release it, however it ended. Later calls do nothing."""
        ticket = waiter.ticket
        if ticket is None:
            return
        waiter.ticket = None
        tenant = ticket.tenant
        tenant.ended()
        if ticket.entry is not None:
            self.queues.leave(request, ticket.entry)
        if ticket.entry is not None or not was_sent:
            self._give_back(ticket)
        num_output = num_generated(request, answer, usage)
        num_prompt = usage.prompt_tokens if usage else 0
        if num_output:
            self.queues.charge(request, ticket, num_output)
            self.stats.tokens[tenant.label, "output"] += num_output
        if num_prompt:
            self.stats.tokens[tenant.label, "prompt"] += num_prompt
        if tenant.tokens is not None:
            more = num_prompt - ticket.num_tokens if num_prompt else 0
            tenant.correct_tokens(more + num_output, self.now())

    def preview(self, request: InferenceRequest, tenant: Tenant) -> dict[str, Any]:
        """Preview admission of a request that came now, tenants' limits left out; nothing is counted."""
        result, reason = "admitted", None
        try:
            if self._is_queueing:
                self.queues.check_room(request.model, tenant.name, request.priority or 0)
            if self._must_wait(request) or self.queues.zero.is_at_zero(request.model):
                result = "queued"
        except (TooManyRequests, NoWorker) as error:
            result, reason = "rejected", error.message
        return {
            "tenant": tenant.name,
            "priority": request.priority or 0,
            "slo_ttft_s": request.slo_ttft_s,
            "result": result,
            "reason": reason,
        }

    def stop(self, drain_s: float) -> None:
        """Stop queueing: requests leave their queue in turn until shortly before `drain_s` is over; the rest
        are then rejected so that clients retry elsewhere."""
        self.queues.stop_at(self.now() + drain_s - min(STOP_MARGIN_S, drain_s / 4))

    def needs_usage(self, ticket: Ticket | None) -> bool:
        """True where the tenant has a limit on tokens: the answer must report its usage."""
        return ticket is not None and ticket.tenant.tokens is not None

    def identify(
        self, http: HttpRequest, request: InferenceRequest, now: float, *, is_trusted: bool
    ) -> Tenant:
        """Set the request's tenant, priority and SLO; the client's headers count only if they are trusted."""
        declared = declared_identity(http.headers, self._names) if is_trusted else None
        if http.caller is not None:
            name: str | None = http.caller.tenant  # authenticated, not declared
        else:
            name = declared.tenant if declared else None
        tenant = self.tenants.of(name or tenant_of_key(http.headers), now)
        limits = tenant.limits
        priority = declared.priority if declared is not None else None
        if priority is None and is_trusted and self._objects.objectives:
            priority = objective_priority(http.headers, self._objects.objectives)
        if priority is not None:
            request.priority = priority
        elif request.priority is None or request.priority < limits.priority:
            request.priority = limits.priority
        slo_s = declared.slo_ttft_s if declared else None
        request.slo_ttft_s = slo_s or limits.slo_ttft_s or None
        request.tenant = tenant.name
        return tenant

    def _must_wait(self, request: InferenceRequest) -> bool:
        """True if the request has to be queued. Raises TooManyRequests if it need not wait but cannot meet
        its SLO."""
        model = request.model
        try:
            if request.path in UNQUEUED:
                return False
            if self._is_queueing and self.queues.must_wait(model):
                return True
            if request.slo_ttft_s is None:
                return False
            first_s = self.queues.best_ttft_s(model)
        except TooManyRequests:
            raise
        except GatewayError:
            return False  # the decision will report it
        if first_s > request.slo_ttft_s:
            raise slo_unreachable(request, first_s)
        return False

    def _take_tokens(self, request: InferenceRequest, prompt: Prompt | None, ticket: Ticket) -> None:
        now, num_tokens = self.now(), tokens_of(request, prompt)
        ticket.tenant.take_tokens(num_tokens, now)
        ticket.num_tokens = num_tokens
        ticket.headers[:] = ticket.tenant.headers(now)

    def _rejected(self, waiter: Waiter, request: InferenceRequest, error: GatewayError) -> None:
        if ticket := waiter.ticket:
            self._give_back(ticket)
            self.stats.reject(request, ticket.tenant, error, ticket.http)

    def _give_back(self, ticket: Ticket) -> None:
        """Refund the prompt tokens of a request that was not computed."""
        ticket.tenant.correct_tokens(-ticket.num_tokens, self.now())
        ticket.num_tokens = 0


def num_generated(request: InferenceRequest, answer: ResponseObserver | None, usage: Usage | None) -> int:
    """Generated tokens of an answer: as reported, else guessed of what the client got of a text."""
    if usage is not None and usage.completion_tokens is not None:
        if answer is not None and answer.is_stream and request.path == GENERATE:
            return max(usage.completion_tokens, answer.num_guessed)  # the last count is of one of its prompts
        return usage.completion_tokens
    if answer is None or (
        request.kind is RouteKind.PASS and not answer.is_stream and request.path != GENERATE
    ):
        return 0  # an embedding, a sound
    return answer.num_guessed


def follow(router: Router, queues: ModelQueues) -> None:
    """Connect a router to the queues: it skips saturated workers and reports freed ones."""
    if queues.is_on:
        router.spare, router.on_freed = queues.spare, queues.freed


def gate_of(
    config: Config,
    router: Router,
    used_of: Callable[[str], QuotaUsage | None] | None = None,
    time_slice: TimeSlice | None = None,
    outlook: Outlook | None = None,
    objects: PoolObjects | None = None,
) -> Gate | None:
    """Admission gate of a configuration, or None where nothing that it does is configured. `used_of` returns
    a tenant's usage in the other processes of this host; released requests are decided in `time_slice`, where
    there is one; `outlook` says which models may start from zero, and `objects` have the priorities of
    objectives. Raises ConfigError."""
    rule = Saturation(config.queue.above_ttft_s, config.queue.above_in_flight)
    zero = ZeroRule(router.fleet, outlook, config)
    trusted = trusted_peers(config)
    if not (rule.is_on or zero.is_on or trusted or config.tenants or config.epp.trust_headers):
        return None
    loop = asyncio.get_running_loop()
    queues = ModelQueues(
        router.fleet,
        router.ledger,
        rule,
        max_queued=config.queue.max_requests,
        timeout_s=config.queue.timeout_s,
        loop=loop,
        go=at_once if time_slice is None else time_slice.decide,
        zero=zero,
    )
    follow(router, queues)
    return Gate(
        queues,
        Tenants(config.tenants, used_of=used_of),
        names=header_names(config),
        trusted=trusted,
        tokenize=router.tokenize,
        stats=AdmissionStats(),
        loop=loop,
        objects=objects or PoolObjects(),
    )
