"""Dispatch: makes the exchange of each request, with its plan and its admission.

    parsed ─ intake ─► InferenceRequest ─ plan ─► InferenceExchange ─ admit ─► begin

An exchange lives until its answer has ended; `Dispatch.exchanges` has those that do.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from gateway.config import Config
from gateway.core.body_text import MAX_GROWTH, encoding_of
from gateway.core.request import InferenceRequest
from gateway.core.route_table import RouteKind, route_of
from gateway.core.worker import WorkerId
from gateway.disaggregation.legs import Legs, LegServices
from gateway.http.messages import HttpRequest
from gateway.observability.otlp import Traces
from gateway.proxy import responses
from gateway.proxy.context import AskUsage, Context
from gateway.proxy.exchange import InferenceExchange
from gateway.proxy.intake import request_of
from gateway.proxy.large_intake import LargeIntake, Refuse
from gateway.proxy.stream_keepalive import KeptAliveResponder, takes_comments
from gateway.proxy.websocket import Tunnel, parse_tunnel
from gateway.requests.large_body import DENSE_BYTES, is_large
from gateway.requests.steering import behind
from gateway.server.responder import Exchange, Responder
from gateway.tenancy.admission.gate import Gate
from gateway.upstream.plan import Plan

Amend = Callable[[InferenceExchange], Plan]
"""Makes another plan of an exchange's own one, before it begins: another proxy carries the bytes (`epp/`)."""


class Dispatch:
    """Makes exchanges; `legs` is set where prefill and decode may run on different workers."""

    def __init__(
        self, context: Context, legs: LegServices | None = None, traces: Traces | None = None
    ) -> None:
        self.context = context
        self.exchanges: set[InferenceExchange] = set()
        self.intakes: set[LargeIntake] = set()
        self._legs = legs
        self._traces = traces
        self.reconfigure(context.config, context.ask_usage)

    def __repr__(self) -> str:
        return f"Dispatch({len(self.exchanges)} exchanges)"

    def reconfigure(self, config: Config, ask_usage: AskUsage) -> None:
        """Take a configuration for requests that begin from now on."""
        context = self.context = replace(self.context, config=config, ask_usage=ask_usage)
        context.retries.limit(config.proxy)
        context.pools.limit(config.proxy)

    def open_gate(self, gate: Gate | None) -> None:
        """Admission control, or none, for requests that begin from now on."""
        self.context = replace(self.context, gate=gate)

    # requests ----------------------------------------------------------------------------------

    def handle(
        self, http: HttpRequest, responder: Responder, refuse: Refuse, amend: Amend | None = None
    ) -> Exchange:
        """Take a request to an inference route. Raises the errors of `handle_parsed`, InvalidRequest for an
        invalid body, and NoRoomForBody for one in another encoding; a large one is parsed later, and `refuse`
        answers its errors."""
        if self._traces is not None:
            self._traces.begin(http, responder.peer)
        is_recoded = encoding_of(http.body) is not None
        if is_recoded:
            self.context.bodies.grow(http, int(len(http.body) * MAX_GROWTH))
        if len(http.body) >= DENSE_BYTES and (is_recoded or is_large(http.body)):
            hand_on, intakes = partial(self.handle_parsed, amend=amend), self.intakes
            return LargeIntake(self.context, http, responder, refuse=refuse, hand_on=hand_on, intakes=intakes)
        return self.handle_parsed(http, responder, request_of(self.context, http), amend)

    def handle_parsed(
        self,
        http: HttpRequest,
        responder: Responder,
        request: InferenceRequest,
        amend: Amend | None = None,
    ) -> InferenceExchange:
        """Make the exchange of a request and begin it. Raises UnknownResponse and TooManyRequests; the
        exchange answers all later errors."""
        context = self.context
        quiet_s = context.config.proxy.stream_keepalive_s
        if quiet_s and (amend is not None or not takes_comments(request)):
            quiet_s = 0.0
        http.body = b""  # the request has it now, and forgets it when no attempt needs it any more
        exchange = InferenceExchange(context, http, responder, request, self.exchanges)
        if route_of(request.path).keeps_state:
            exchange.plan = responses.plan_of(exchange, responses.continued(context, http, request))
        elif amend is None and self._legs is not None and self.may_split(request):
            config = context.config
            exchange.plan = Legs(
                self._legs,
                exchange,
                max_attempts=config.proxy.max_attempts,
                timeout_s=config.disaggregation.prefill_timeout_s,
            ).plan()
        if amend is not None:
            exchange.plan = amend(exchange)
        return self._admit(exchange, quiet_s)

    def about_response(
        self, http: HttpRequest, responder: Responder, amend: Amend | None = None
    ) -> InferenceExchange:
        """Take a request about a response that a worker keeps. Raises UnknownResponse, UnknownRoute,
        MethodNotAllowed and TooManyRequests."""
        if self._traces is not None:
            self._traces.begin(http, responder.peer)
        request, stored = responses.about(self.context, http)
        if (caller := http.caller) is not None:
            request.tenant = caller.tenant
        exchange = InferenceExchange(self.context, http, responder, request, self.exchanges)
        exchange.plan = responses.plan_of(exchange, stored)
        if amend is not None:
            exchange.plan = amend(exchange)
        return self._admit(exchange)

    def tunnel(
        self, http: HttpRequest, responder: Responder, amend: Amend | None = None
    ) -> Tunnel | InferenceExchange:
        """Take a WebSocket to a worker. Raises InvalidRequest, Forbidden or TooManyRequests."""
        context = self.context
        if self._traces is not None:
            self._traces.begin(http, responder.peer)
        request = parse_tunnel(http, context.router.fleet.served())
        exchange = InferenceExchange(context, http, responder, request, self.exchanges)
        tunnel: Tunnel | InferenceExchange
        if amend is None:
            tunnel = own = Tunnel(exchange)
            exchange.plan = own.plan()
        else:
            tunnel = exchange
            exchange.plan = amend(exchange)
        if context.gate is not None:
            exchange.ticket = context.gate.admit(http, request, responder)
        exchange.begin()
        return tunnel

    def may_split(self, request: InferenceRequest) -> bool:
        """True where a prefill worker of the model could compute the prompt, or might once it is up."""
        fleet, model, gate = self.context.router.fleet, request.model, self.context.gate
        is_prompt = request.kind is RouteKind.CHAT or request.kind is RouteKind.COMPLETION
        if fleet.has_prefills(model):
            return request.may_split or (fleet.is_bound(model) and is_prompt)
        if gate is None or not gate.is_holding:
            return False
        return (request.may_split or is_prompt) and gate.may_hold(model)

    def _admit(self, exchange: InferenceExchange, quiet_s: float = 0.0) -> InferenceExchange:
        request, gate = exchange.request, self.context.gate
        if gate is not None:
            exchange.ticket = gate.admit(exchange.http, request, exchange.responder)
        elif request.priority is not None and request.priority < 0:
            request.priority = 0  # without admission control no client may go first
        if request.given_priority is not None:
            request.body = behind(request.body, request.given_priority, request.priority or 0)
        if quiet_s:
            kept = KeptAliveResponder(exchange.responder, exchange.request_id, quiet_s, self.context.loop)
            exchange.responder = kept
        exchange.begin()
        return exchange

    # the fleet, and the end --------------------------------------------------------------------

    def worker_down(self, worker: WorkerId, why: str) -> None:
        """Retry elsewhere the requests that a worker that is down has not begun to answer. They fail by the
        cause, `why`: that the worker is down is what follows from it."""
        for exchange in list(self.exchanges):
            exchange.worker_down(worker, why)

    def stop(self, drain_s: float) -> None:
        """Give the requests in flight `drain_s` seconds to end."""
        if self.context.gate is not None:
            self.context.gate.stop(drain_s)

    def cut(self) -> None:
        """Cut the requests and tunnels that are still open; the log names each."""
        for body in list(self.intakes):
            body.cancel()
        for exchange in list(self.exchanges):
            exchange.cancel("the gateway stopped before the answer was complete")
