"""The picker of one stream: Envoy's messages to the gateway, and its answers to Envoy.

    request complete ─► Api ─► exchange ─ decided ─► pick: headers, metadata, body (or immediate response)
    answer's head, body ─► the exchange, as from a connection ─► passed on to Envoy
    stream ends ─► seen to its end: nothing is left
                   headers only, or nothing where Envoy shows no answers: held for the predicted time
                   else: the client has gone

A pick always ends: after `DECIDE_WITHIN_S` the answer is 503, since a silent picker hangs Envoy's clients for
ever in FULL_DUPLEX_STREAMED. A stream never ends before the whole body went back.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from gateway.config.epp import EppSection
from gateway.core.decision import Decision, Prompt
from gateway.core.errors import FAILED, GatewayError, NoWorker
from gateway.core.outcome import SERVER_ERROR
from gateway.core.pool_objects import PoolObjects
from gateway.core.worker import Worker, WorkerId
from gateway.epp import protocol
from gateway.epp.control_headers import CONTROL, as_declared, control_of, with_model
from gateway.epp.destination import SPOOFED, endpoint_of, joined, outside, spoofed, subset_of
from gateway.epp.envoy_connection import EnvoyConnection, changes
from gateway.epp.fallbacks import fallbacks_of
from gateway.epp.held_bookings import HeldBookings
from gateway.epp.messages import ProtocolError
from gateway.epp.prefill_booking import PrefillBooking
from gateway.epp.protocol import PickProtocol, RequestState, ResponseState
from gateway.epp.responder import PickResponder
from gateway.epp.stream import GrpcStream
from gateway.http.content import check_contents
from gateway.http.headers import WORKERS_OWN
from gateway.http.messages import Header, HttpRequest, ResponseHead
from gateway.http.redirect import is_redirect
from gateway.proxy.api import Api
from gateway.proxy.context import Context
from gateway.proxy.dispatch import Dispatch
from gateway.proxy.exchange import InferenceExchange
from gateway.runtime.rate_limited_log import RateLimitedLog
from gateway.server.body_budget import Intake
from gateway.server.responder import Exchange
from gateway.tenancy.admission.request_identity import header_names
from gateway.upstream.plan import Decide, Plan

log = logging.getLogger("kvgate.epp")

DECIDE_WITHIN_S: Final = 10.0
"""Longest decision outside of admission queues, which have a timeout of their own."""

OK: Final = 0
INTERNAL: Final = 13
"""gRPC statuses."""

REASON_HEADERS: Final[tuple[bytes, ...]] = (b"x-kvgate-dropped-reason", b"x-llm-d-request-dropped-reason")
PREFILLER: Final = b"x-prefiller-host-port"
"""The header in which llm-d's sidecar finds the worker that computes the prompt."""

TEST_SELECTION: Final = b"test-epp-endpoint-selection"
TEST_SERVED: Final = b"x-conformance-test-served-endpoint"
"""Headers of conformance tests."""


@dataclass(slots=True, eq=False)
class Door:
    """Services that the pickers of a gateway share."""

    api: Api
    dispatch: Dispatch
    max_body_bytes: int
    held: HeldBookings = field(default_factory=HeldBookings)
    counts: Counter[str] = field(default_factory=Counter)
    """Streams by their outcome, and removed headers, moved bookings."""
    options: EppSection = field(default_factory=EppSection)
    objects: PoolObjects = field(default_factory=PoolObjects)
    """Priorities of inference objectives."""
    endpoints: dict[str, str] = field(default_factory=dict)
    """Addresses of workers with host names in their URLs."""
    has_seen_answers: bool = False
    """Envoy shows the heads of answers: a stream that ends without one was left by its client."""
    log: RateLimitedLog = field(default_factory=lambda: RateLimitedLog(log))

    @property
    def context(self) -> Context:
        return self.dispatch.context


class StreamPicker:
    """Handler of one ext_proc stream."""

    # fmt: off
    __slots__ = (
        "_door", "_stream", "_protocol", "_headers", "_subsets", "_intake", "_exchange", "_waiting",
        "_responder", "_connection", "_http", "_target", "_decide", "_timer", "_is_over", "_only", "_given",
        "_fallbacks", "_model",
    )
    # fmt: on

    def __init__(self, door: Door, stream: GrpcStream) -> None:
        self._door, self._stream = door, stream
        self._protocol = PickProtocol()
        self._headers: list[Header] = []
        self._subsets: list[frozenset[str]] = []
        self._fallbacks: list[Worker] = []
        self._model: str | None = None
        self._intake = Intake(door.context.bodies, door.max_body_bytes)
        self._exchange: InferenceExchange | None = None
        self._waiting: Exchange | None = None
        self._responder: PickResponder | None = None
        self._connection = EnvoyConnection(self._picked)
        self._http: HttpRequest | None = None
        self._target, self._given = b"", b""
        self._decide: Decide | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False
        self._only: WorkerId | None = None

    def __repr__(self) -> str:
        return f"StreamPicker({self._protocol}, {self._exchange})"

    # events of the stream ----------------------------------------------------------------------

    def message(self, message: bytes) -> None:
        if self._is_over:
            return
        try:
            event = self._protocol.receive(message)
            if event is not None:
                self._take(event)
        except ProtocolError as error:
            self._door.counts["malformed"] += 1
            self._door.log.warning("ext_proc: %s; stream ended", error.message)
            return self._end(error.status, error.message)
        except Exception:  # noqa: BLE001  a bug in one stream must not take the connection's others down
            log.exception("ext_proc: stream failed")
            return self._end(INTERNAL, FAILED)
        return self._flush()

    def half_closed(self) -> None:
        if self._is_over:
            return
        self._settle()
        self._end(OK, "")

    def aborted(self, why: str) -> None:
        if not self._is_over:
            self._is_over = True
            self._let_go()
            self._part()

    def _flush(self) -> None:
        outbox, self._protocol.outbox = self._protocol.outbox, []
        for message in outbox:
            self._stream.send(message)

    def _end(self, status: int, message: str) -> None:
        self._is_over = True
        self._let_go()
        self._stream.finish(status, message)
        self._part()

    def _let_go(self) -> None:
        """Give back what the request still holds."""
        self._intake.drop()
        if self._timer is not None:
            self._timer.cancel()
        for each in (self._waiting, self._exchange):
            if each is not None and each is not self._door.held.taken(each):
                each.client_gone()

    def _part(self) -> None:
        """Leave the exchange, which refers to this: a cycle is never collected (runtime/gc_policy.py)."""
        self._connection.close()
        self._exchange = self._waiting = self._responder = self._timer = self._decide = None

    def _settle(self) -> None:
        """The stream is over: an answer that Envoy does not show keeps its booking for the predicted time."""
        exchange, protocol_ = self._exchange, self._protocol
        if exchange is None or exchange.is_closed or not self._is_picked:
            return
        if protocol_.response is ResponseState.NONE and not self._door.has_seen_answers:
            self._door.counts["unseen_answer"] += 1
            self._door.held.keep(exchange)
        elif protocol_.response is ResponseState.PASSING and not protocol_.shows_answer:
            if self._connection.sink is not None and not exchange.has_answer:
                self._connection.sink.upstream_ended(b"")  # a refusal that waits for its body
            else:
                self._door.held.keep(exchange)

    @property
    def _is_picked(self) -> bool:
        return self._responder is not None and self._responder.is_picked

    # the request -------------------------------------------------------------------------------

    def _take(self, event: protocol.Event) -> None:
        if isinstance(event, protocol.RequestHead):
            self._headers, hints = event.headers, [event.subset]
            if self._door.options.conformance and (hint := _value(event.headers, TEST_SELECTION)):
                hints.append(hint.decode("latin-1"))
            self._subsets = [subset for hint in hints if (subset := subset_of(hint)) is not None]
        elif isinstance(event, protocol.RequestData):
            if self._protocol.request is RequestState.ANSWERED:
                return None
            error = self._intake.add(event.data)
            if error is not None:
                return self._refuse_with(error)
        elif isinstance(event, protocol.UnsupportedMode):
            self._door.counts["unsupported_mode"] += 1
            text = (
                "ext_proc: request_body_mode %d not supported; request passed without a pick; set "
                "FULL_DUPLEX_STREAMED or BUFFERED"
            )
            self._door.log.error(text, event.mode)
            self._headers = event.headers
            return self._protocol.go_on(b"") if self._may_pass(self._request()) else None
        elif isinstance(event, protocol.ResponseBegan):
            return self._answer_began(event)
        else:
            return self._answer_data(event)
        if self._protocol.request is RequestState.WHOLE:
            self._ask()
        return None

    def _ask(self) -> None:
        """Ask the gateway for a worker, now that the request is complete."""
        http = self._request()
        try:
            check_contents(http.headers)
        except GatewayError as error:
            self._http = http
            return self._refuse_with(error)
        if (lost := self._intake.hand_to(http)) is not None:
            self._http = http
            return self._refuse_with(lost)
        self._given = http.body
        http.is_trusted = self._door.options.trust_headers
        if self._model is not None and http.body:
            http.body = with_model(http.body, self._model)
        loop = self._door.context.loop
        self._timer = loop.call_later(DECIDE_WITHIN_S, self._late)
        self._http = http
        self._responder = PickResponder(http, self._refuse, self._door.api.standing(http))
        self._waiting = self._door.api.handle(http, self._responder, self._plan)
        if self._waiting is None:
            self._door.context.let_go(http)

    def _request(self) -> HttpRequest:
        method, target, headers = "GET", b"/", []
        for name, value in self._headers:
            if name == b":method":
                method = value.decode("latin-1")
            elif name == b":path":
                target = value
            elif name[:1] != b":":
                headers.append((name, value))
        if count := spoofed(headers):
            self._door.counts["spoofed_header"] += count
        self._target, self._headers = target, headers
        own = [header for header in headers if header[0] not in SPOOFED and header[0] not in CONTROL]
        http = HttpRequest(method, target, own, is_upgrade=self._protocol.is_tunnel)
        if len(own) != len(headers):
            self._steer(http, headers)
        return http

    def _steer(self, http: HttpRequest, headers: list[Header]) -> None:
        """Obey the control headers where Envoy sets them; count them where any client may."""
        door = self._door
        if not door.options.trust_headers:
            door.counts["untrusted_header"] += sum(name in CONTROL for name, _ in headers)
            return
        control, names = control_of(headers), header_names(door.context.config)
        declared = as_declared(control, names, door.objects.objectives)
        replaced = {name for name, _ in declared}
        http.headers = [header for header in http.headers if header[0] not in replaced] + declared
        self._model = control.model

    def _may_pass(self, http: HttpRequest) -> bool:
        """True if a request may go on unread; it is refused otherwise."""
        self._http = http
        try:
            self._door.api.check_unread(http)
        except GatewayError as error:
            self._refuse_with(error)
            return False
        return True

    def _plan(self, exchange: InferenceExchange) -> Plan:
        """The exchange's plan, with Envoy as the connection; nothing is tried again once it has the pick."""
        self._exchange = exchange
        self._decide = exchange.plan.decide
        exchange.tries.may_repeat = False
        if not self._protocol.shows_answer:
            exchange.request.may_ask_usage = False  # it could not be taken out of the answer again
        prefill = PrefillBooking(exchange.context.router) if self._door.options.prefill_header else None
        return Plan(decide=self._decided, ahead=self._ahead, reader=exchange.plan.reader, observer=prefill)

    def _decided(self, prompt: Prompt | None, failed: Collection[WorkerId], attempt: int) -> Decision:
        exchange = self._exchange
        assert exchange is not None
        exclude = {*failed, *self._outside()}
        if self._decide is not None and self._only is None:
            return self._decide(prompt, exclude, attempt)
        router, options, request = exchange.context.router, self._door.options, exchange.request
        if options.fallbacks and prompt is None:
            prompt = router.tokenize(request)
        may_split = options.prefill_header and self._door.dispatch.may_split(request)
        decision = router.decide(
            request, prompt=prompt, exclude=exclude, attempt=attempt, may_split=may_split
        )
        if options.fallbacks and self._only is None:
            self._fallbacks = fallbacks_of(exchange, prompt, decision, exclude, options.fallbacks)
        return decision

    def _outside(self) -> set[WorkerId]:
        """Workers that this request must not go to."""
        fleet = self._door.context.router.fleet
        if self._only is not None:
            return {member.worker.id for member in fleet if member.worker.id != self._only}
        workers = [member.worker for member in fleet] if self._subsets else []
        return {
            worker.id for subset in self._subsets for worker in outside(subset, workers, self._door.endpoints)
        }

    def _ahead(self, decision: Decision) -> bool:
        """Give Envoy the worker; its name is looked up first, since Envoy takes addresses."""
        exchange, url = self._exchange, decision.worker.url
        assert exchange is not None
        if self._endpoint(url):
            exchange.send_on(self._connection)
        else:
            exchange.context.tasks.start("resolve a worker", self._resolve(exchange, decision))
        return False

    async def _resolve(self, exchange: InferenceExchange, decision: Decision) -> None:
        host, _, port = decision.worker.url.partition("://")[2].partition("/")[0].rpartition(":")
        try:
            found = await exchange.context.loop.getaddrinfo(host, int(port))
            endpoint = joined(str(found[0][4][0]), int(port))
        except (OSError, ValueError):
            endpoint = None
        if exchange.is_closed:
            return
        if endpoint is None:
            self._door.log.warning(
                "worker %s: its host name does not resolve; the pick failed", decision.worker.id
            )
            exchange.fail(NoWorker("the chosen worker cannot be reached; retry", retry_after_s=1))
        else:
            self._door.endpoints[decision.worker.url] = endpoint
            exchange.send_on(self._connection)
        self._flush()

    def _picked(self, head: bytes, body: bytes) -> None:
        """Called by the exchange with the worker's request."""
        exchange, responder, http = self._exchange, self._responder, self._http
        assert exchange is not None and responder is not None and http is not None
        if responder.is_picked or exchange.decision is None:
            return  # the booking has moved; Envoy has the request already
        responder.is_picked = True
        if self._timer is not None:
            self._timer.cancel()
        chosen, prefill = exchange.decision.worker, exchange.decision.prefill
        endpoints = [found for each in (chosen, *self._fallbacks) if (found := self._endpoint(each.url))]
        changed, removed = changes(self._headers, self._target, head)
        if prefill is not None and (host := self._endpoint(prefill.url)):
            changed.append((PREFILLER, host.encode()))
            removed = [name for name in removed if name != PREFILLER]
        self._protocol.pick(",".join(endpoints), changed, removed, body, self._given)
        self._given = b""
        self._door.counts["picked"] += 1
        self._flush()

    def _endpoint(self, url: str) -> str | None:
        """The address of a worker; None for a host name that was not looked up yet."""
        return endpoint_of(url) or self._door.endpoints.get(url)

    def _late(self) -> None:
        exchange, self._timer = self._exchange, None
        if self._is_over or self._is_picked or self._protocol.request is RequestState.ANSWERED:
            return
        if exchange is not None and exchange.ticket is not None and exchange.ticket.entry is not None:
            return  # in an admission queue
        error = NoWorker(f"no decision within {DECIDE_WITHIN_S:g} s; retry", retry_after_s=1)
        self._door.log.warning("ext_proc: %s", error.message)
        if exchange is not None:
            exchange.fail(error)
        else:
            self._refuse_with(error)
            self._let_go()
        self._flush()

    def _refuse_with(self, error: GatewayError) -> None:
        http = self._http or self._request()
        responder = self._responder = PickResponder(http, self._refuse, self._door.api.standing(http))
        self._door.api.refuse(http, responder, error)
        self._intake.drop()

    def _refuse(self, status: int, headers: list[Header], body: bytes) -> None:
        is_replaced = self._responder is not None and self._responder.is_replaceable
        if self._protocol.request is RequestState.ANSWERED and not is_replaced:
            return
        if status >= 400:
            self._door.counts["rejected"] += 1
            error = self._responder.error if self._responder is not None else None
            reason = error.code.encode() if error is not None else b"%d" % status
            headers = [*headers, *[(name, reason) for name in REASON_HEADERS]]
        self._protocol.refuse(status, headers, body, f"kvgate_{status}")
        self._flush()

    # the answer --------------------------------------------------------------------------------

    def _answer_began(self, event: protocol.ResponseBegan) -> None:
        self._door.has_seen_answers = True
        responder, sink = self._responder, self._connection.sink
        status, headers = _status_of(event.headers)
        if not self._is_picked or sink is None or responder is None:
            if self._exchange is not None:
                self._exchange.client_gone()  # Envoy answered before the pick
            return self._protocol.response_head()
        if event.served:
            self._served(event.served)
            sink = self._connection.sink or sink
        length = _value(headers, b"content-length")
        responder.is_replaceable = is_redirect(status)
        self._heard(status)
        sink.upstream_head(ResponseHead(status, headers, int(length) if length.isdigit() else None))
        if responder.is_replaceable and responder.has_begun:
            return None  # an error took its place
        passed = responder.passed_head
        had = set(headers)
        changed = [h for h in passed.headers if h not in had] if passed is not None else []
        if self._door.options.conformance and event.served:
            changed.append((TEST_SERVED, event.served.encode()))
        is_set = {name for name, _ in changed}
        self._protocol.response_head(changed, sorted({n for n, _ in headers if n in WORKERS_OWN} - is_set))
        if event.is_end:
            (self._connection.sink or sink).upstream_ended(b"")
        return None

    def _answer_data(self, event: protocol.ResponseData) -> None:
        sink, responder = self._connection.sink, self._responder
        is_closed = self._exchange is None or self._exchange.is_closed
        if sink is None or responder is None or is_closed:
            return self._protocol.response_piece(event, event.data)
        if responder.passed_head is not None:
            self._heard(responder.passed_head.status)
        if event.is_end:
            sink.upstream_ended(event.data)
        else:
            sink.upstream_data(event.data)
        return self._protocol.response_piece(event, responder.take())

    def _heard(self, status: int) -> None:
        """Count what Envoy shows of an answer as a sign of life of its worker; errors may be Envoy's own."""
        exchange = self._exchange
        if status < SERVER_ERROR and exchange is not None and exchange.decision is not None:
            exchange.context.pools.heard(exchange.decision.worker.url)

    def _served(self, served: str) -> None:
        """Move the booking where Envoy sent the request to another worker than the one picked."""
        exchange, door = self._exchange, self._door
        if exchange is None or exchange.decision is None or exchange.is_closed:
            return
        url = exchange.decision.worker.url
        if served == self._endpoint(url):
            return
        door.counts["served_elsewhere"] += 1
        found = [m.worker for m in exchange.context.router.fleet if endpoint_of(m.worker.url) == served]
        text = "ext_proc: Envoy sent a request to %s instead of the picked %s"
        door.log.warning(text, exchange.decision.worker.id, served)
        if not found:
            return
        self._only, scanner = found[0].id, exchange.scanner
        exchange.release()
        try:
            exchange.decide_again()
        except GatewayError:  # that worker takes no requests: the answer passes without a booking
            exchange.client_gone()
        exchange.scanner = scanner


def _value(headers: Collection[Header], name: bytes) -> bytes:
    return next((value for known, value in headers if known == name), b"")


def _status_of(headers: Collection[Header]) -> tuple[int, list[Header]]:
    status = _value(headers, b":status")
    return int(status) if status.isdigit() else 0, [header for header in headers if header[0][:1] != b":"]


def service_of(door: Door) -> Callable[[GrpcStream], StreamPicker]:
    """The service at /envoy.service.ext_proc.v3.ExternalProcessor/Process."""
    return lambda stream: StreamPicker(door, stream)
