"""A decision: the request to the gateway, the booking, and its end by a report, the caller's leave or time.

ask ─► Api ─► exchange ─ decided ─► reply, booked ─ reports ─► the exchange ends
         └─ refused ─► reply          └─ no report for `expires_s` ─► released, counted
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Final

from msgspec import structs

from gateway.core.decision import Decision, Prompt
from gateway.core.errors import GatewayError, NoWorker
from gateway.core.worker import Worker, WorkerId
from gateway.decide import replies, reports
from gateway.decide.report_relay import ReportRelay
from gateway.decide.requests import DEFAULT_PATH, NOTHING, AskedDecision, http_of, path_of, report_of
from gateway.decide.states import DecisionEvent, DecisionState, after
from gateway.epp.envoy_connection import EnvoyConnection, changes
from gateway.epp.fallbacks import fallbacks_of
from gateway.epp.prefill_booking import PrefillBooking
from gateway.epp.responder import PickResponder
from gateway.http.content import check_contents
from gateway.http.messages import Header, HttpRequest, OutgoingHead
from gateway.observability import traceparent
from gateway.proto.kvgate.v1 import decide_pb2 as pb
from gateway.proxy.api import Api
from gateway.proxy.context import Context
from gateway.proxy.dispatch import Dispatch
from gateway.proxy.exchange import InferenceExchange
from gateway.runtime.rate_limited_log import RateLimitedLog
from gateway.server.body_budget import Intake
from gateway.server.responder import Exchange
from gateway.upstream.plan import Decide, Plan

log = logging.getLogger("kvgate.decide")

DECIDE_WITHIN_S: Final = 10.0
"""Longest decision outside of admission queues, which have a timeout of their own."""

LOOK_EVERY_S: Final = 0.1
"""Interval of looks whether a request that is being tokenized has come to a queue by now."""

MAX_OPEN: Final = 200_000
"""Decisions that wait or are booked; each takes some kilobytes, beside what counts as a body."""

KEPT_HEADERS: Final = frozenset({b"x-request-id", traceparent.PARENT, traceparent.OURS})
"""Headers that are read again when a decision ends."""

ID_BYTES: Final = 8
"""Bytes that a token id counts for, about as many as it has in a body."""

ASKED: Final = AskedDecision(NOTHING)
"""In the place of a message that was decided."""

APPLIED: Final[int] = pb.ReportReply.APPLIED
REPEATED: Final[int] = pb.ReportReply.REPEATED
UNKNOWN: Final[int] = pb.ReportReply.UNKNOWN


@dataclass(slots=True, eq=False)
class DecideDoor:
    """Services that all decisions share, and the decisions that are booked, by id."""

    api: Api
    dispatch: Dispatch
    max_body_bytes: int
    expires_s: float
    trusts_headers: bool = False
    """The callers set their clients' identity headers themselves."""
    counts: Counter[str] = field(default_factory=Counter)
    relay: ReportRelay | None = None
    """The way of reports to the gateway's other processes."""
    booked: dict[str, "OpenDecision"] = field(default_factory=dict)
    """In the order of their last reports."""
    num_waiting: int = 0
    log: RateLimitedLog = field(default_factory=lambda: RateLimitedLog(log))
    _untimed: tuple[Context, Context] | None = None
    _timer: asyncio.TimerHandle | None = None

    @property
    def context(self) -> Context:
        return self.dispatch.context

    @property
    def num_open(self) -> int:
        return self.num_waiting + len(self.booked)

    def untimed(self, context: Context) -> Context:
        """The context of an exchange without timeouts of its own: the caller sees the answer, and reports."""
        if self._untimed is None or self._untimed[0] is not context:
            no_limit = structs.replace(
                context.config.proxy, first_byte_timeout_s=0, idle_timeout_s=0, total_timeout_s=0
            )
            config = structs.replace(context.config, proxy=no_limit)
            self._untimed = context, replace(context, config=config)
        return self._untimed[1]

    def report(self, report: pb.ReportRequest) -> int:
        """Apply a report to its decision; returns its result."""
        found = self.booked.get(report.decision_id)
        result = UNKNOWN if found is None else found.report(report)
        self.counts["unknown_report" if result == UNKNOWN else "repeated_report" if result else "report"] += 1
        return result

    def await_report(self, decision_id: str, booked: "OpenDecision") -> None:
        """Wait `expires_s` for the next report of a decision, all with one timer: the first one's."""
        booked.until_s = self.context.loop.time() + self.expires_s
        self.booked.pop(decision_id, None)
        self.booked[decision_id] = booked
        if self._timer is None:
            self._timer = self.context.loop.call_later(self.expires_s, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self.context.loop.time()
        while self.booked:
            decision_id = next(iter(self.booked))
            left_s = self.booked[decision_id].until_s - now
            if left_s > 0:
                self._timer = self.context.loop.call_later(left_s, self._expire)
                return
            self.booked.pop(decision_id).expire()

    def relayed(self, data: bytes) -> int | None:
        """Apply a report that reached another process; None if the decision is not of this one."""
        report = report_of(data)
        return self.report(report) if report.decision_id in self.booked else None

    def stop(self) -> None:
        """Release what is booked: nothing is reported here any more."""
        if self._timer is not None:
            self._timer.cancel()
        for each in list(self.booked.values()):
            each.left()


class OpenDecision:
    """A decision from its request on; `reply` gets the one reply. `siblings` are the open decisions of the
    caller's stream, this one among them until its end."""

    # fmt: off
    __slots__ = (
        "state", "until_s", "_door", "_reply", "_asked", "_http", "_headers", "_given", "_target",
        "_exchange", "_waiting", "_responder", "_connection", "_decide", "_timer", "_fallbacks", "_siblings",
        "_since_s",
    )
    # fmt: on

    def __init__(
        self,
        door: DecideDoor,
        asked: AskedDecision,
        reply: Callable[[bytes], None],
        siblings: "set[OpenDecision]",
    ) -> None:
        self.state = DecisionState.WAITING
        self.until_s = 0.0
        self._door, self._asked, self._reply = door, asked, reply
        self._http: HttpRequest | None = None
        self._headers: list[Header] = []
        self._given, self._target = b"", b""
        self._exchange: InferenceExchange | None = None
        self._waiting: Exchange | None = None
        self._responder: PickResponder | None = None
        self._connection = EnvoyConnection(self._picked)
        self._decide: Decide | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._since_s = 0.0
        self._fallbacks: list[Worker] = []
        self._siblings = siblings
        siblings.add(self)

    def __repr__(self) -> str:
        return f"OpenDecision({self.state.name}, {self._exchange})"

    # the request -------------------------------------------------------------------------------

    def ask(self) -> None:
        """Ask the gateway; the reply may come within this call."""
        door = self._door
        door.num_waiting += 1
        try:
            if door.num_open > MAX_OPEN:
                raise NoWorker(f"{MAX_OPEN} decisions are open; report their ends", retry_after_s=1)
            self._handle()
        except GatewayError as error:
            http = self._http or HttpRequest("POST", DEFAULT_PATH.encode(), [])
            self._responder = self._responder or PickResponder(http, self._refused)
            door.api.refuse(http, self._responder, error)

    def _handle(self) -> None:
        door, context = self._door, self._door.context
        http = self._http = http_of(self._asked, door.max_body_bytes)
        if http.headers:
            self._headers = [*http.headers]
            check_contents(http.headers)
        http.is_trusted = door.trusts_headers
        self._responder = PickResponder(http, self._refused, door.api.standing(http))
        self._given, self._target = http.body, path_of(self._asked.message).encode()
        intake = Intake(context.bodies, door.max_body_bytes)
        if (error := intake.add(http.body)) is not None:
            raise error
        intake.hand_to(http)
        num_beside = len(http.target)
        for name, value in http.headers:
            num_beside += len(name) + len(value)
        if http.prompt is not None:
            num_beside += ID_BYTES * len(http.prompt.ids)
        http.num_held += num_beside
        context.bodies.num_bytes += num_beside
        self._waiting = door.api.handle(http, self._responder, self._plan)
        if self._waiting is None:
            context.let_go(http)
        elif self.state is DecisionState.WAITING:
            self._since_s = context.loop.time()
            self._look_after(min(DECIDE_WITHIN_S, self._max_queue_s or DECIDE_WITHIN_S))

    @property
    def _max_queue_s(self) -> float:
        return self._asked.message.max_queue_ms / 1000

    @property
    def _is_queued(self) -> bool:
        ticket = self._exchange.ticket if self._exchange is not None else None
        return self.state is DecisionState.WAITING and ticket is not None and ticket.entry is not None

    def _plan(self, exchange: InferenceExchange) -> Plan:
        """The exchange's plan, with the caller as the connection."""
        self._exchange = exchange
        exchange.tries.may_repeat = exchange.request.may_ask_usage = False
        exchange.context = self._door.untimed(exchange.context)
        self._decide = exchange.plan.decide
        return Plan(
            decide=self._decided,
            ahead=self._ahead,
            body=exchange.plan.body,
            observer=PrefillBooking(exchange.context.router),
        )

    def _decided(self, prompt: Prompt | None, failed: Collection[WorkerId], attempt: int) -> Decision:
        exchange, message = self._exchange, self._asked.message
        assert exchange is not None
        router, request = exchange.context.router, exchange.request
        left_out = message.exclude
        exclude = {*failed, *map(WorkerId, left_out)} if left_out else failed
        if self._decide is not None:
            return self._decide(prompt, exclude, attempt)
        prompt = router.tokenize(request) if prompt is None else prompt
        decision = router.decide(
            request,
            prompt=prompt,
            exclude=exclude,
            attempt=attempt + len(left_out),
            may_split=message.with_prefill and self._door.dispatch.may_split(request),
        )
        if num := message.num_fallbacks:
            self._fallbacks = fallbacks_of(exchange, prompt, decision, exclude, num)
        return decision

    def _ahead(self, decision: Decision) -> bool:
        assert self._exchange is not None
        self._exchange.send_on(self._connection)
        return False

    # the reply ---------------------------------------------------------------------------------

    def _step(self, event: DecisionEvent) -> bool:
        """Take the event if it means something now."""
        state = after(self.state, event)
        if state is None:
            return False
        if self.state is DecisionState.WAITING:
            self._door.num_waiting -= 1
        self.state = state
        if state is DecisionState.ENDED:
            self._siblings.discard(self)
            if self._timer is not None:
                self._timer.cancel()
        return True

    def _picked(self, head: OutgoingHead, body: bytes) -> None:
        """Called by the exchange with the worker's request."""
        exchange, responder, http, door = self._exchange, self._responder, self._http, self._door
        if exchange is None or responder is None or http is None or exchange.decision is None:
            return
        if not self._step(DecisionEvent.PICKED):
            return
        responder.is_picked = True
        decision, prompt = exchange.decision, http.prompt
        changed, removed = changes(self._headers, self._target, head)
        new_body = None
        if body != self._given:
            new_body = body if prompt is None else prompt.whole(body)
        reply = replies.decided(decision, self._fallbacks, door.expires_s, changed, removed, new_body)
        self._headers, self._given, self._fallbacks = [], b"", []
        self._asked, http.prompt = ASKED, None
        if http.headers:
            http.headers = [header for header in http.headers if header[0] in KEPT_HEADERS]
        door.counts["decided"] += 1
        if self._timer is not None:
            self._timer.cancel()
        door.await_report(decision.id, self)
        self._reply(reply)

    def _refused(self, status: int, headers: list[Header], body: bytes) -> None:
        if self._step(DecisionEvent.REFUSED):
            self._door.counts["rejected"] += 1
            error = self._responder.error if self._responder is not None else None
            self._reply(replies.rejected(status, headers, body, error))

    # time --------------------------------------------------------------------------------------

    def _look_after(self, seconds: float) -> None:
        self._timer = self._door.context.loop.call_later(seconds, self._look)

    def _look(self) -> None:
        """End a wait that is over: the caller's in a queue, or the longest decision."""
        if self.state is not DecisionState.WAITING:
            return
        waited_s = self._door.context.loop.time() - self._since_s
        max_queue_s = self._max_queue_s
        if self._is_queued:
            if max_queue_s and waited_s >= max_queue_s:
                self._queue_over()
            elif max_queue_s:
                self._look_after(max_queue_s - waited_s)
        elif waited_s >= DECIDE_WITHIN_S:
            self._late()
        else:
            self._look_after(min(LOOK_EVERY_S, DECIDE_WITHIN_S - waited_s))

    def _late(self) -> None:
        error = NoWorker(f"no decision within {DECIDE_WITHIN_S:g} s; retry", retry_after_s=1)
        if self._exchange is not None:
            return self._exchange.fail(error)
        assert self._http is not None and self._responder is not None
        waiting = self._waiting
        self._door.api.refuse(self._http, self._responder, error)
        if waiting is not None:
            waiting.client_gone()
        return None

    def _queue_over(self) -> None:
        """The caller waits no longer in this call."""
        exchange, gate = self._exchange, self._door.context.gate
        assert exchange is not None and gate is not None, "queued; the decision is not yet made"
        wait_s = gate.queues.expected_wait_s(exchange.request.model)
        if self._step(DecisionEvent.REFUSED):
            self._door.counts["queued"] += 1
            exchange.client_gone()
            self._reply(replies.queued(wait_s))

    # reports, and the end ----------------------------------------------------------------------

    def report(self, report: pb.ReportRequest) -> int:
        event, exchange = reports.event_of(report), self._exchange
        if event is None or exchange is None or not self._step(event):
            return REPEATED
        if exchange.is_closed:  # the gateway cut it
            self._step(DecisionEvent.LEFT)
            self._settled()
            return REPEATED
        if event is DecisionEvent.FIRST_TOKEN:
            self._door.await_report(report.decision_id, self)
            reports.first_token(exchange)
        elif event is DecisionEvent.FINISHED:
            reports.finished(exchange, self._connection, report.finished)
        else:
            reports.failed(exchange, report.failed)
        self._settled()
        return APPLIED

    def left(self) -> None:
        """The caller is gone."""
        if not self._step(DecisionEvent.LEFT):
            return
        self._door.counts["client_disconnected"] += 1
        for each in (self._waiting, self._exchange):
            if each is not None:
                each.client_gone()
        self._settled()

    def expire(self) -> None:
        """No report has come in time."""
        if self._step(DecisionEvent.EXPIRED) and self._exchange is not None:
            self._door.counts["expired"] += 1
            decision = self._exchange.decision
            worker = decision.worker.id if decision is not None else None
            text = "decide: no report within %g s; booking released (worker %s)"
            self._door.log.warning(text, self._door.expires_s, worker)
            self._exchange.client_gone()
            self._settled()

    def _settled(self) -> None:
        """Forget the decision once it has ended."""
        exchange = self._exchange
        if self._responder is not None:
            self._responder.take()
        if self.state is not DecisionState.ENDED or exchange is None:
            return
        if not exchange.is_closed:
            exchange.client_gone()
        if exchange.decision is not None:
            self._door.booked.pop(exchange.decision.id, None)
