"""The exchange: a client's request to a worker and the answer back, executed by a plan (`upstream/plan.py`).

    parse ─ tokens ─ decide ─ send ─► head ─ splice ─► end
                       ▲        │ lost before the first byte: another worker
                       └────────┘ lost after it: error event (stream) or a cut connection

Every request ends in `close`, once: the booking is released, and the client's answer is complete or cut.
A task exists only while a connection is opened or a prompt is tokenized elsewhere.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from functools import partial

from gateway.bookings.time_slice import failed
from gateway.core.decision import Prompt
from gateway.core.errors import GatewayError
from gateway.core.outcome import CLIENT_GONE
from gateway.core.request import InferenceRequest
from gateway.core.usage import Usage
from gateway.core.usage_reading import limit_of
from gateway.core.worker import WorkerId
from gateway.http.headers import head_to_client, sent_again
from gateway.http.messages import HttpRequest, ResponseHead
from gateway.http.refusal import is_refusal
from gateway.http.response_observer import Piece, ResponseObserver
from gateway.http.sse import SseScanner
from gateway.observability.metrics import WorkerMetrics
from gateway.observability.request_end import CUT, OUT_OF_TIME, STOPPED
from gateway.proxy.accounting import Ending, account
from gateway.proxy.context import Context
from gateway.proxy.deadlines import Deadlines
from gateway.proxy.failures import charge, cut_off, lost, may_try_another, out_of_connections, refuse, retried
from gateway.proxy.held_refusal import HeldRefusal
from gateway.proxy.retries import Attempts
from gateway.proxy.retryable import redirected, unloaded
from gateway.server.responder import Responder, request_id
from gateway.tenancy.admission.tenants import Ticket
from gateway.upstream.connection import UpstreamConnection, WorkerConnection
from gateway.upstream.plan import PLAIN, Execution, Plan

log = logging.getLogger("kvgate.proxy")


class InferenceExchange(Execution):
    """A client's request, its attempts, and the answer on its way back."""

    # fmt: off
    __slots__ = (
        "plan", "context", "responder", "ticket", "tries", "scanner", "_exchanges", "_prompt",
        "_worker_metrics", "_upstream", "_status", "_answer", "_is_fresh", "_is_resent", "_is_refused",
        "_deadlines", "_task", "_sent_s", "_loop",
    )
    # fmt: on

    def __init__(
        self,
        context: Context,
        http: HttpRequest,
        responder: Responder,
        request: InferenceRequest,
        exchanges: "set[InferenceExchange]",
    ) -> None:
        """Exchange of one request, listed in `exchanges` while it lasts; `plan` may be set first."""
        self.plan: Plan = PLAIN
        self.context = context
        self.http = http
        self.responder = responder
        self.request = request
        self.ticket: Ticket | None = None
        """The admission of the request, until its end."""
        self.request_id = request_id(http)[1]
        self.decision, self.failed_at = None, ()
        self._loop = context.loop
        self._deadlines = Deadlines(context.loop)
        self.arrived_s = self._sent_s = self._deadlines.last_activity
        self.scanner: SseScanner | None = None
        """Edits a streamed answer; a reader may set it before it passes the head on."""
        self.tries = Attempts(context.retries, may_repeat=request.may_repeat)
        self.is_closed = self._is_resent = self._is_refused = False
        self._exchanges = exchanges
        self._prompt: Prompt | None = None
        self._worker_metrics: WorkerMetrics | None = None
        self._upstream: WorkerConnection | None = None
        self._answer: ResponseObserver | None = None
        self._status = 0
        self._is_fresh = True
        self._task: asyncio.Task[None] | None = None

    @property
    def has_answer(self) -> bool:
        return self._answer is not None

    def __repr__(self) -> str:
        worker = self.decision.worker.id if self.decision else None
        return f"InferenceExchange({self.request_id!r}, worker={worker}, closed={self.is_closed})"

    # routing -----------------------------------------------------------------------------------

    def begin(self) -> None:
        """Route at once where the prompt is tokenized here and short, else in a task."""
        context = self.context
        self._exchanges.add(self)
        context.retries.began(self.arrived_s)
        if context.prompts.takes_time(self.request):
            self._task = context.tasks.start("make a prompt", self._tokenize(self._proceed))
        else:
            self._proceed(None)

    def prepare(self, then: Callable[[Prompt | None], None]) -> None:
        """Make the prompt as at the beginning, after a wait for a worker, and call back with it."""
        if self.context.prompts.takes_time(self.request):
            self._task = self.context.tasks.start("make a prompt", self._tokenize(then))
        else:
            then(None)

    async def _tokenize(self, then: Callable[[Prompt | None], None]) -> None:
        """Wait for the tokens and for a remote lookup, then go on."""
        authorization = self.http.header(b"authorization")
        try:
            prompt = await self.context.prompts.known_of(self.request, authorization, self.log_id)
        except GatewayError as error:
            return self._unrouted(error)
        return then(prompt)

    def _proceed(self, prompt: Prompt | None) -> None:
        """Decide and send, once admission control and this gateway's time slice allow it."""
        context, gate = self.context, self.context.gate
        if self.is_closed:
            return
        try:
            if gate is not None and self.ticket is not None:
                goes_on, prompt = gate.route(self, self.request, prompt)
                if not goes_on:
                    return
            if context.time_slice is None:
                self._route(prompt)
            else:
                context.time_slice.decide(self, self.request, prompt)
        except GatewayError as exc:
            self._unrouted(exc)
        except Exception:  # noqa: BLE001  see failed
            failed(self)

    def route_or_fail(self, prompt: Prompt | None) -> None:
        """Decide and send, after a wait in a queue or for a time slice."""
        if self.is_closed:
            return
        try:
            self._route(prompt)
        except GatewayError as exc:
            self._unrouted(exc)

    def _unrouted(self, error: GatewayError) -> None:
        """Wait where no worker is up and one is expected, else answer with the error."""
        if not self._is_held(error):
            self.fail(error)

    def _is_held(self, error: GatewayError) -> bool:
        gate = self.context.gate
        if self.is_closed or gate is None or not gate.hold(self, self.request, error):
            return False
        self.tries.failed.clear()  # they may be those that come back
        self._deadlines.stop()
        return True

    def _route(self, prompt: Prompt | None) -> None:
        """Decide, and send to the chosen worker. Raises NoWorker or UnknownModel."""
        context, plan, failed = self.context, self.plan, self.tries.failed
        attempt = len(failed) + 1
        if plan.decide is None:
            decision = context.router.decide(self.request, prompt=prompt, exclude=failed, attempt=attempt)
        else:
            decision = plan.decide(prompt, failed, attempt)
        self.decision, self._prompt = decision, prompt
        self._worker_metrics = context.metrics.decided(decision)
        context.records.add(decision, self.request_id)
        if plan.ahead is None or plan.ahead(decision):
            self.send()

    def decide_again(self) -> None:
        self._route(self._prompt)

    def send(self) -> None:
        """Send on an idle connection of the pool, or open one."""
        assert self.decision is not None
        self._is_fresh = self._is_resent = self.tries.was_sent = False
        # A resting connection that closes meanwhile may have delivered the request: not for what is kept.
        pool = self.context.pools.of(self.decision.worker.url)
        connection = pool.take() if self.tries.may_repeat else None
        if connection is None:
            self._task = self.context.tasks.start("connect", self._connect())
        else:
            self.send_on(connection)

    async def _connect(self) -> None:
        assert self.decision is not None
        self._is_fresh, self.tries.was_sent = True, False
        try:
            connection = await self.context.pools.of(self.decision.worker.url).connect()
        except TimeoutError:
            self._attempt_failed("connection timed out")
        except OSError as exc:
            if (ours := out_of_connections(exc, self.context.log, self.log_id)) is not None:
                return self.fail(ours)
            self._attempt_failed(f"cannot connect: {exc.strerror or exc}", is_refused=True)
        else:
            if self.is_closed or not connection.is_open:
                connection.abort()
                self._attempt_failed("connection closed")
            else:
                self.send_on(connection)
        return None

    def send_on(self, connection: WorkerConnection) -> None:
        plan, decision = self.plan, self.decision
        assert decision is not None
        self._upstream = connection
        self.tries.was_sent = True
        self._sent_s = self._deadlines.last_activity = self._loop.time()
        self._deadlines.arm(self.context.config.proxy, self._late)
        if plan.upgrade is None:
            body, self.scanner = self.context.body_for(self.request, decision, self.ticket)
            if plan.body is not None:
                body = plan.body(decision, body)
            model, worker = self.request.model, decision.worker
            head = self.context.outgoing.head(self.http, model, worker, len(body), self.worker_id)
        else:
            head, body = plan.upgrade(decision), b""
        head = sent_again(head) if self._is_resent else head
        connection.send(head, body, self if plan.reader is None else plan.reader(decision))
        if self.responder.client_is_full:
            connection.pause()

    # the worker's answer -----------------------------------------------------------------------

    def upstream_head(self, head: ResponseHead) -> None:
        self.touch()
        if head.status >= 300:
            if redirect := redirected(head, self.decision, self.context.log, self.log_id):
                return self.fail(redirect)
            if is_refusal(head.status) and self._upstream:
                make = partial(HeldRefusal, head, on_read=self._refused, on_lost=self.attempt_lost)
                return self._upstream.divert(make)
            reason = unloaded(head.status, self.decision, self.tries.failed.values())
            if reason and self._may_try_another():
                return self._abandon(reason)
        return self._begin_answer(head)

    def _refused(self, held: HeldRefusal) -> None:
        """Try another worker; where none is left, the refusal is the answer."""
        decision, refusal = self.decision, held.refusal
        assert decision and refusal
        self._upstream = None if held.has_ended else self._upstream
        self._is_refused = refusal.is_busy
        if refusal.is_busy:
            self.context.busy(decision.worker.id, refusal.busy_s)
        if refusal.is_retryable and self._may_try_another():
            return self._abandon(refusal.reason)
        self._begin_answer(refusal.to_client(held.head))
        held.go_on()

    def _begin_answer(self, head: ResponseHead) -> None:
        masks, limit = self.context.config.auth.mask_cached_tokens, limit_of(self.request, self.decision)
        answer = self._answer = ResponseObserver(head, self.scanner, masks=masks, limit=limit)
        self._deadlines.has_answer = True
        self._status, self._prompt = head.status, None  # no other attempt follows; a stream may last an hour
        self.request.let_go()
        self.context.let_go(self.http)
        if answer.is_plain and self.decision:
            self.context.router.first_token(self.decision)  # an unstreamed answer comes all at once
        exposed = self.decision if self.context.config.headers.expose_headers else None
        to_client = head_to_client(head, self.request_id, exposed, is_stream=answer.is_reframed)
        self.responder.head(to_client)

    def upstream_data(self, data: bytes) -> None:
        self.touch()
        self.responder.data(self._watched(data))

    def upstream_ended(self, data: bytes) -> None:
        self.touch()
        self._upstream = None
        assert self._answer is not None, "an end follows its head"
        rest = self._watched(data) + self._answer.flush()
        self.close("ended")
        self.responder.end(rest)

    def upstream_lost(self, reason: str) -> None:
        self._upstream = None
        if self._answer:
            self._cut(f"the worker died: {reason}")
        elif not self._is_fresh:
            self._is_resent = True  # its resting connection was closed
            self._task = self.context.tasks.start("connect", self._connect())
        else:
            self._attempt_failed(reason)

    def attempt_lost(self, reason: str) -> None:
        self._upstream = None
        self._attempt_failed(reason)

    def switched(self, status: int) -> UpstreamConnection:
        """Return the connection, which leaves HTTP; the exchange's own timeouts end here."""
        upstream, self._upstream = self._upstream, None
        assert isinstance(upstream, UpstreamConnection), "a head comes from a connection"
        self._deadlines.stop()
        self._status = status
        return upstream

    def _watched(self, data: bytes) -> bytes:
        """Return the bytes that may be passed on now; the rest is kept until its event is complete."""
        metrics, decision, now = self._worker_metrics, self.decision, self._deadlines.last_activity
        assert self._answer is not None and metrics is not None and decision is not None
        data, piece, since_s = self._answer.feed(data, now)
        if piece is Piece.TOKEN:
            metrics.itl_s.observe(since_s)
        elif piece is Piece.FIRST_TOKEN:
            metrics.ttft_s.observe(now - self.arrived_s)
            self.context.router.first_token(decision, now - self._sent_s)
            if self.plan.observer is not None:
                self.plan.observer.first_token(decision, self.arrived_s, now)
        return data

    # failures ----------------------------------------------------------------------------------

    def worker_down(self, worker: WorkerId, why: str) -> None:
        """Retry on another worker, if one is left, a request that a worker that is down has not begun to
        answer."""
        if self.plan.observer is not None:
            self.plan.observer.worker_down(worker, why)
        is_waiting = self.decision and self.decision.worker.id == worker and self._upstream
        if is_waiting and not self._answer and self._may_try_another(is_up=True):
            self._abandon(why)

    def _abandon(self, reason: str) -> None:
        self._abort_upstream()
        self._attempt_failed(reason)

    def _abort_upstream(self) -> None:
        upstream, self._upstream = self._upstream, None
        if upstream:
            upstream.abort()

    def _may_try_another(self, is_up: bool = False) -> bool:
        assert self.decision is not None
        fleet, worker = self.context.router.fleet, self.decision.worker.id
        return may_try_another(fleet, self.request, self.tries, worker, is_up=is_up)

    def pays_retry(self) -> bool:
        return self.tries.pays()

    def failed_workers(self) -> Collection[WorkerId]:
        return self.tries.failed

    def release(self) -> None:
        decision = self.decision
        assert decision is not None
        self._abort_upstream()
        self.context.router.finish(decision)
        self.context.records.finish(decision, "failed", 0, None, None)

    def _attempt_failed(self, reason: str, *, is_refused: bool = False) -> None:
        """Retry the request on another worker, if one is left, since no part of an answer has come."""
        context, decision = self.context, self.decision
        assert decision is not None and self._worker_metrics is not None
        if self.is_closed:
            return
        if self.plan.observer is not None:
            self.plan.observer.attempt_failed(decision)
        is_busy, self._is_refused = self._is_refused, False
        self.release()
        if not is_busy:
            charge(context, self, self._worker_metrics, reason, is_refused, was_sent=self.tries.was_sent)
        error = lost(self, self.tries, reason, context.log, is_refused=is_refused)
        if error is None:
            try:
                self._route(self._prompt)
            except GatewayError as gone:  # none is left, or the model's last worker was dropped meanwhile
                if self._is_held(gone):
                    return None
                error = self.tries.gave_up("no other worker is up", context.log, self.log_id)
        if error is not None:
            return self.fail(error)
        return retried(context, decision.worker.id, reason, self.log_id, is_busy=is_busy)

    def _cut(self, reason: str, *, is_workers_fault: bool = True) -> None:
        """End an answer that cannot go on: a stream with an error event, any other with a cut."""
        assert self.decision is not None
        worker = self.decision.worker.id
        self.context.log.warning("worker %s: answer aborted (%s); request %s", worker, reason, self.log_id)
        if is_workers_fault:
            self.blame_worker(reason)
        self.close("aborted", CUT if is_workers_fault else OUT_OF_TIME)
        cut_off(self.responder, self._answer, reason, self.request_id)

    def blame_worker(self, reason: str) -> None:
        """Count a failure of the worker that had begun to answer."""
        assert self._worker_metrics is not None
        charge(self.context, self, self._worker_metrics, reason)

    def fail(self, error: GatewayError) -> None:
        if self.is_closed:
            return
        self._status = error.status
        self.context.metrics.failed(error.code, self.request.model)
        self.close("failed", error.code)
        refuse(self.responder, error, self.request_id)

    # the client --------------------------------------------------------------------------------

    def client_gone(self) -> None:
        if not self.is_closed:
            self.context.metrics.num_client_disconnects += 1
            self._status = CLIENT_GONE
            self.close("client_disconnected")

    def client_full(self) -> None:
        if self._upstream:
            self._upstream.pause()

    def client_free(self) -> None:
        self.touch()
        if self._upstream:
            self._upstream.resume()

    def cancel(self, reason: str) -> None:
        """Cut the request: the gateway stops, and its drain time is over."""
        if not self.is_closed:
            log.warning("request %s aborted: %s", self.log_id, reason)
            self.close("aborted", STOPPED)
            self.responder.abort()

    # time --------------------------------------------------------------------------------------

    def touch(self) -> None:
        self._deadlines.last_activity = self._loop.time()

    def _late(self) -> None:
        """End a request that exceeded a timeout."""
        if self.responder.client_is_full:  # the client reads nothing; the worker is not to blame
            self.client_gone()
            return self.responder.abort()
        if self._answer:
            is_over = self._deadlines.is_total_over
            return self._cut(
                f"{'total' if is_over else 'idle'} timeout exceeded", is_workers_fault=not is_over
            )
        return self.fail(self.tries.was_late())

    # the end -----------------------------------------------------------------------------------

    def close(self, result: str, fault: str = "") -> None:
        """Give back all that the request took; the first call counts. `fault`: the code of an error."""
        if self.is_closed:
            return
        self.is_closed = True
        self._stop()
        decision, answer = self.decision, self._answer
        whole = answer if result == "ended" else None
        usage = self.context.usages.of(whole, decision, self.request.path) if whole else None
        ending = Ending(
            result,
            fault,
            self._status,
            self.request.kind if self.plan.upgrade is None else "websocket",
            sent_s=self._sent_s,
            ended_s=self._loop.time(),
            answer=answer,
            usage=usage,
            worker_metrics=self._worker_metrics,
            is_refused=self._is_refused,
        )
        if self.plan.observer is not None:
            self.plan.observer.closed(decision, usage)
        self.plan = PLAIN  # its parts refer to this exchange: no cycle is left behind
        self._leave(usage)
        account(self.context, self, ending)

    def _stop(self) -> None:
        self._deadlines.stop()
        if self._task:
            self._task.cancel()
            self._task = None  # a cancelled task keeps its frames, which refer to this exchange
        self._abort_upstream()

    def _leave(self, usage: Usage | None) -> None:
        """End the admission, the share of the retry budget and the room for the body."""
        context, gate = self.context, self.context.gate
        self._exchanges.discard(self)
        context.retries.ended(self.tries)
        context.let_go(self.http)
        if gate is not None:
            gate.ended(self, self.request, self._answer, usage, was_sent=self.decision is not None)
