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
from collections.abc import Callable, Collection
from typing import Final

from gateway.core.decision import Decision, Prompt
from gateway.core.errors import FAILED, GatewayError, NoWorker
from gateway.core.outcome import SERVER_ERROR
from gateway.core.worker import Worker, WorkerId
from gateway.epp import protocol
from gateway.epp.control_headers import CONTROL, PICKERS, as_declared, control_of, with_model
from gateway.epp.destination import is_in, spoofed, subset_of
from gateway.epp.door import Door
from gateway.epp.envoy_connection import EnvoyConnection, changes
from gateway.epp.fallbacks import fallbacks_of
from gateway.epp.messages import ProtocolError
from gateway.epp.prefill_booking import PrefillBooking
from gateway.epp.protocol import PickProtocol, RequestState, ResponseState
from gateway.epp.responder import PickResponder
from gateway.epp.stream import GrpcStream
from gateway.http.content import check_contents
from gateway.http.headers import WORKERS_OWN
from gateway.http.messages import Header, HttpRequest, OutgoingHead, ResponseHead
from gateway.proxy.exchange import InferenceExchange
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

LENGTH: Final = b"content-length"
MAX_DIGITS: Final = 18

TEST_SELECTION: Final = b"test-epp-endpoint-selection"
TEST_SERVED: Final = b"x-conformance-test-served-endpoint"
"""Headers of conformance tests."""


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
        self._leave()

    def _leave(self) -> None:
        """The client is not waiting for the gateway any more."""
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
        if isinstance(event, protocol.ResponseData):
            return self._answer_data(event)
        if isinstance(event, protocol.RequestHead):
            self._headers, hints = event.headers, [event.subset]
            if self._door.options.conformance and (hint := _value(event.headers, TEST_SELECTION)):
                hints.append(hint.decode("latin-1"))
            self._subsets = [subset for hint in hints if (subset := subset_of(hint)) is not None]
        elif isinstance(event, protocol.RequestData):
            error = self._intake.add(event.data)
            if error is not None:
                return self._refuse_with(error)
        elif isinstance(event, protocol.UnsupportedMode):
            return self._pass_unread(event)
        else:
            return self._answer_began(event)
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
        self._http = http
        self._responder = PickResponder(http, self._refuse, self._door.api.standing(http))
        if self._subsets:
            context, addresses = self._door.context, self._door.addresses
            urls, now = [member.worker.url for member in context.router.fleet], context.loop.time()
            if any(addresses.is_missing(url, now) for url in urls):
                self._limit_time()
                context.tasks.start("resolve workers", self._handle_resolved(http, urls, now))
                return None
        return self._handle(http)

    async def _handle_resolved(self, http: HttpRequest, urls: list[str], now: float) -> None:
        """A subset has addresses: names of workers are looked up before they are compared."""
        await self._door.addresses.look_up_missing(urls, now)
        if self._is_over or self._protocol.request is not RequestState.WHOLE:  # left, or answered meanwhile
            return self._door.context.let_go(http)
        self._handle(http)
        return self._flush()

    def _handle(self, http: HttpRequest) -> None:
        responder, door = self._responder, self._door
        assert responder is not None
        self._waiting = door.api.handle(http, responder, self._plan)
        if self._waiting is None:
            door.context.let_go(http)
        elif self._protocol.request is not RequestState.ANSWERED:  # most are by now: a timer is dear
            self._limit_time()

    def _limit_time(self) -> None:
        if self._timer is None:
            self._timer = self._door.context.loop.call_later(DECIDE_WITHIN_S, self._late)

    def _request(self) -> HttpRequest:
        method, target, headers = "GET", b"/", []
        for header in self._headers:
            if header[0][:1] != b":":
                headers.append(header)
            elif header[0] == b":method":
                method = header[1].decode("latin-1")
            elif header[0] == b":path":
                target = header[1]
        self._target, self._headers = target, headers
        own = [header for header in headers if header[0] not in PICKERS]
        http = HttpRequest(method, target, own, is_upgrade=self._protocol.is_tunnel)
        if len(own) != len(headers):
            self._steer(http, headers)
        return http

    def _steer(self, http: HttpRequest, headers: list[Header]) -> None:
        """Count spoofed headers, and obey control headers where Envoy sets them, or count them too."""
        door = self._door
        if count := spoofed(headers):
            door.counts["spoofed_header"] += count
        if not door.options.trust_headers:
            door.counts["untrusted_header"] += sum(name in CONTROL for name, _ in headers)
            return
        control, names = control_of(headers), header_names(door.context.config)
        declared = as_declared(control, names, door.objects.objectives)
        replaced = {name for name, _ in declared}
        http.headers = [header for header in http.headers if header[0] not in replaced] + declared
        self._model = control.model

    def _pass_unread(self, event: protocol.UnsupportedMode) -> None:
        """Let a request go on without a pick, if its caller may send unread ones."""
        self._door.counts["unsupported_mode"] += 1
        text = (
            "ext_proc: request_body_mode %d not supported; request passed without a pick; set "
            "FULL_DUPLEX_STREAMED or BUFFERED"
        )
        self._door.log.error(text, event.mode)
        self._headers = event.headers
        http = self._http = self._request()
        try:
            self._door.api.check_unread(http)
        except GatewayError as error:
            return self._refuse_with(error)
        return self._protocol.go_on(sorted(PICKERS.intersection([name for name, _ in event.headers])))

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
        workers = [member.worker for member in self._door.context.router.fleet]
        if self._only is not None:
            return {worker.id for worker in workers if worker.id != self._only}
        return {worker.id for worker in workers if not self._is_within(worker)} if self._subsets else set()

    def _is_within(self, worker: Worker) -> bool:
        endpoint = self._door.addresses.of(worker.url)
        return endpoint is not None and all(is_in(subset, endpoint) for subset in self._subsets)

    def _ahead(self, decision: Decision) -> bool:
        """Give Envoy the worker; names are looked up first, since Envoy takes addresses."""
        exchange, addresses = self._exchange, self._door.addresses
        assert exchange is not None
        context, now = exchange.context, exchange.context.loop.time()
        others = (*self._fallbacks, decision.prefill) if decision.prefill else self._fallbacks
        urls = [decision.worker.url, *[each.url for each in others]]
        if any(addresses.is_missing(url, now) for url in urls):
            context.tasks.start("resolve workers", self._send_resolved(exchange, decision.worker, urls, now))
        else:
            self._send(exchange, decision.worker)
            for url in urls:
                addresses.renew(url, context.tasks, now)
        return False

    async def _send_resolved(
        self, exchange: InferenceExchange, worker: Worker, urls: list[str], now: float
    ) -> None:
        await self._door.addresses.look_up_missing(urls, now)
        if not exchange.is_closed:
            self._send(exchange, worker)
            self._flush()

    def _send(self, exchange: InferenceExchange, worker: Worker) -> None:
        if self._door.addresses.of(worker.url) is not None:
            return exchange.send_on(self._connection)
        self._door.log.warning("worker %s: its host name does not resolve; the pick failed", worker.id)
        return exchange.fail(NoWorker("the chosen worker cannot be reached; retry", retry_after_s=1))

    def _picked(self, head: OutgoingHead, body: bytes) -> None:
        """Called by the exchange with the worker's request."""
        exchange, responder, http = self._exchange, self._responder, self._http
        assert exchange is not None and responder is not None and http is not None
        if responder.is_picked or exchange.decision is None:
            return  # the booking has moved; Envoy has the request already
        responder.is_picked = True
        if self._timer is not None:
            self._timer.cancel()
        chosen, prefill = exchange.decision.worker, exchange.decision.prefill
        address_of = self._door.addresses.of
        endpoints = [found for each in (chosen, *self._fallbacks) if (found := address_of(each.url))]
        changed, removed = changes(self._headers, self._target, head)
        if prefill is not None and (host := address_of(prefill.url)):
            changed.append((PREFILLER, host.encode()))
            removed = [name for name in removed if name != PREFILLER]
        if self._protocol.is_buffered and len(body) != len(self._given):
            changed.append((LENGTH, b"%d" % len(body)))  # Envoy answers 500 to another one
        self._protocol.pick(",".join(endpoints), changed, removed, body, self._given)
        self._given = b""
        self._door.counts["picked"] += 1
        self._flush()

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
        if self._is_over or self._protocol.response is ResponseState.REPLACED:
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
            self._leave()  # Envoy answered before the pick
            return self._protocol.response_head()
        if event.served:
            self._served(event.served)
            sink = self._connection.sink or sink
        self._heard(status)
        sink.upstream_head(ResponseHead(status, headers, _number(_value(headers, LENGTH))))
        if self._protocol.response is ResponseState.REPLACED:
            return None  # an error took its place
        passed = responder.passed_head
        had = set(headers)
        changed = [h for h in passed.headers if h not in had] if passed is not None else []
        if self._door.options.conformance and event.served:
            changed.append((TEST_SERVED, event.served.encode()))
        dropped = WORKERS_OWN if passed is None or passed.length is not None else WORKERS_OWN | {LENGTH}
        removed = {name for name, _ in headers if name in dropped}
        removed.difference_update([name for name, _ in changed])
        self._protocol.response_head(changed, sorted(removed))
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
        if served == self._door.addresses.of(url):
            return
        door.counts["served_elsewhere"] += 1
        fleet = exchange.context.router.fleet
        found = [member.worker for member in fleet if door.addresses.of(member.worker.url) == served]
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


def _number(value: bytes) -> int | None:
    """A decimal number of a header; None for anything else."""
    return int(value) if value.isdigit() and len(value) <= MAX_DIGITS else None


def _status_of(headers: Collection[Header]) -> tuple[int, list[Header]]:
    return _number(_value(headers, b":status")) or 0, [header for header in headers if header[0][:1] != b":"]


def service_of(door: Door) -> Callable[[GrpcStream], StreamPicker]:
    """The service at /envoy.service.ext_proc.v3.ExternalProcessor/Process."""
    return lambda stream: StreamPicker(door, stream)
