"""What each request passes before it is decided where it goes.

    parsed ─ admit: who asks; its tenant's requests; room in the queue ─► prompt ─ route: its tenant's tokens;
    saturated? wait, else go ─► … ─ ended: what it cost

What is refused is refused with 429, Retry-After and why, as early as it is known. Where nothing is configured
there is no gate.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from gateway.apis.response_ids import STORED
from gateway.bookings.tenant_usage import Used
from gateway.config import Config
from gateway.core.decision import Prompt
from gateway.core.errors import GatewayError, TooManyRequests
from gateway.core.requests.request import InferenceRequest
from gateway.core.requests.routes import TABLE, paths
from gateway.core.usage import Usage
from gateway.http.messages import HttpRequest
from gateway.http.networks import Trusted
from gateway.http.response_observer import Answer
from gateway.routing.router import Router
from gateway.server.responder import Responder
from gateway.tenancy.admission.base import Waiter
from gateway.tenancy.admission.queues import Lines, tokens_of
from gateway.tenancy.admission.rejections import unreachable
from gateway.tenancy.admission.request_identity import Names, header_names, said, tenant_of_key, trusted_peers
from gateway.tenancy.admission.saturation import Saturation
from gateway.tenancy.admission.stats import Told
from gateway.tenancy.admission.tenants import Tenant, Tenants, Ticket

UNQUEUED = paths(route for route in TABLE if not route.is_queued) | {STORED}
"""Paths that engines answer beside their work."""

STOP_MARGIN_S = 1.0
"""For the refusals to reach their clients before connections are cut."""

Tokenize = Callable[[InferenceRequest], Prompt]


class Gate:
    def __init__(
        self,
        lines: Lines,
        tenants: Tenants,
        *,
        names: Names,
        trusted: Trusted,
        tokenize: Tokenize,
        told: Told,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.lines = lines
        self.tenants = tenants
        self.told = told
        self.now = loop.time
        self._names = names
        self._trusted = trusted
        self._is_trusting = bool(trusted)
        self._tokenize = tokenize
        self._queues = lines.rule.is_on
        lines.on_refused = self._waited_in_vain

    def __repr__(self) -> str:
        return f"Gate({self.lines}, {self.tenants})"

    def take(self, config: Config) -> None:
        """Other rules, for requests that come from now on; what waits goes on waiting. Raises ConfigError,
        with nothing changed, for networks that are none."""
        trusted = trusted_peers(config)
        self._trusted, self._is_trusting, self._names = trusted, bool(trusted), header_names(config)
        self.lines.take(config)
        self._queues = self.lines.rule.is_on
        self.tenants.limit(config.tenants, self.now())

    def admit(self, http: HttpRequest, request: InferenceRequest, responder: Responder) -> Ticket:
        """Admit a request, until its exchange has `ended`. Raises TooManyRequests, with nothing taken."""
        now = self.now()
        is_trusted = self._is_trusting and self._trusted.trusts(responder.peer)
        tenant = self.identify(http, request, now, is_trusted=is_trusted)
        try:
            if self._queues:
                self.lines.check_room(request.model, tenant.name, request.priority or 0)
            tenant.admit(now)
        except TooManyRequests as error:
            self.told.refuse(request, tenant, error, http)
            error.request = request
            raise
        finally:
            if tenant.has_limits:
                responder.more_headers = tenant.headers(now)
        self.told.requests[tenant.label] += 1
        return Ticket(tenant, http, now, responder.more_headers)

    def route(self, waiter: Waiter, request: InferenceRequest, prompt: Prompt | None) -> None:
        """Let it go on to its decision, now or when it is its turn."""
        ticket = waiter.ticket
        assert ticket is not None, "it was admitted"
        try:
            if ticket.tenant.tokens is not None:
                prompt = self._tokenize(request) if prompt is None else prompt
                self._take_tokens(request, prompt, ticket)
            if self._must_wait(request):
                prompt = self._tokenize(request) if prompt is None else prompt
                return self.lines.wait(waiter, request, prompt, ticket)
        except GatewayError as error:
            self._waited_in_vain(waiter, request, error)
            return waiter.fail(error)
        assert self.lines.go is not None, "set by the proxy"
        self.lines.go(waiter, request, prompt)
        return None

    def ended(
        self,
        waiter: Waiter,
        request: InferenceRequest,
        answer: Answer | None,
        usage: Usage | None,
        *,
        was_sent: bool = True,
    ) -> None:
        """However it did, also before any worker got it. Nothing happens where it was told before."""
        ticket = waiter.ticket
        if ticket is None:
            return
        waiter.ticket = None
        tenant = ticket.tenant
        tenant.ended()
        if ticket.entry is not None:
            self.lines.leave(request, ticket.entry)
        if ticket.entry is not None or not was_sent:
            self._give_back(ticket)
        num_output = usage.completion_tokens if usage else answer.num_pieces if answer else 0
        num_prompt = usage.prompt_tokens if usage else 0
        if num_output:
            self.lines.charge(request, ticket, num_output)
            self.told.tokens[tenant.label, "generated"] += num_output
        if num_prompt:
            self.told.tokens[tenant.label, "prompt"] += num_prompt
        if tenant.tokens is not None:
            more = num_prompt - ticket.num_tokens if num_prompt else 0
            tenant.correct_tokens(more + (num_output or 0), self.now())

    def foresee(self, request: InferenceRequest, tenant: Tenant) -> dict[str, Any]:
        """What would be done with a request that came now, tenants' limits left out; nothing is taken."""
        fate, why = "goes on", None
        try:
            if self._queues:
                self.lines.check_room(request.model, tenant.name, request.priority or 0)
            if self._must_wait(request):
                fate = "waits"
        except TooManyRequests as error:
            fate, why = "refused", error.message
        return {
            "tenant": tenant.name,
            "priority": request.priority or 0,
            "slo_ttft_s": request.slo_ttft_s,
            "fate": fate,
            "why": why,
        }

    def stop(self, drain_s: float) -> None:
        """The gateway stops, and what has begun has so long to end: what waits goes on in its turn until
        shortly before, and is then sent elsewhere, with an answer."""
        self.lines.stop_at(self.now() + drain_s - min(STOP_MARGIN_S, drain_s / 4))

    def needs_usage(self, ticket: Ticket | None) -> bool:
        """True where the tenant has a limit on tokens: the answer must report its usage."""
        return ticket is not None and ticket.tenant.tokens is not None

    def identify(
        self, http: HttpRequest, request: InferenceRequest, now: float, *, is_trusted: bool
    ) -> Tenant:
        """Who asks, and for what; its headers are believed if it `is_trusted`."""
        told = said(http.headers, self._names) if is_trusted else None
        if http.who is not None:
            name: str | None = http.who.tenant  # shown, not said
        else:
            name = told.tenant if told else None
        tenant = self.tenants.of(name or tenant_of_key(http.headers), now)
        limits = tenant.limits
        if told is not None and told.priority is not None:
            request.priority = told.priority
        elif request.priority is None or request.priority < limits.priority:
            request.priority = limits.priority
        slo_s = told.slo_ttft_s if told else None
        request.slo_ttft_s = slo_s or limits.slo_ttft_s or None
        request.tenant = tenant.name
        return tenant

    def _must_wait(self, request: InferenceRequest) -> bool:
        """Raises TooManyRequests where it need not wait and would come too late all the same."""
        model = request.model
        try:
            if request.path in UNQUEUED:
                return False
            if self._queues and self.lines.must_wait(model):
                return True
            if request.slo_ttft_s is None:
                return False
            first_s = self.lines.best_ttft_s(model)
        except TooManyRequests:
            raise
        except GatewayError:
            return False  # said where it is decided
        if first_s > request.slo_ttft_s:
            raise unreachable(request, first_s)
        return False

    def _take_tokens(self, request: InferenceRequest, prompt: Prompt, ticket: Ticket) -> None:
        now, num_tokens = self.now(), tokens_of(request, prompt)
        ticket.tenant.take_tokens(num_tokens, now)
        ticket.num_tokens = num_tokens
        ticket.headers[:] = ticket.tenant.headers(now)

    def _waited_in_vain(self, waiter: Waiter, request: InferenceRequest, error: GatewayError) -> None:
        if ticket := waiter.ticket:
            self._give_back(ticket)
            self.told.refuse(request, ticket.tenant, error, ticket.http)

    def _give_back(self, ticket: Ticket) -> None:
        """Its prompt was not computed."""
        ticket.tenant.correct_tokens(-ticket.num_tokens, self.now())
        ticket.num_tokens = 0


def follow(router: Router, lines: Lines) -> None:
    """Saturated workers are left out, and freed ones are told of."""
    if lines.rule.is_on:
        router.spare, router.on_freed = lines.spare, lines.freed


def gate_of(
    config: Config, router: Router, used_of: Callable[[str], Used | None] | None = None
) -> Gate | None:
    """None where nothing is configured that it would do. `used_of` tells what other processes of this host
    let a tenant use. Raises ConfigError."""
    rule = Saturation(config.queue_above_ttft_s, config.max_in_flight_per_worker)
    trusted = trusted_peers(config)
    if not (rule.is_on or trusted or config.tenants):
        return None
    loop = asyncio.get_running_loop()
    lines = Lines(
        router.fleet,
        router.ledger,
        rule,
        max_queued=config.max_queued,
        timeout_s=config.queue_timeout_s,
        loop=loop,
    )
    follow(router, lines)
    return Gate(
        lines,
        Tenants(config.tenants, used_of=used_of),
        names=header_names(config),
        trusted=trusted,
        tokenize=router.tokenize,
        told=Told(),
        loop=loop,
    )
