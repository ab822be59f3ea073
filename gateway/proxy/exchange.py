"""One request from a client to a worker and back.

    parse ─ tokens ─ decide ─ send ─► head ─ splice ─► end
                       ▲        │ lost before the first byte: another worker
                       └────────┘ lost after it: error event (stream) or a cut connection

Every way out goes through `_close`, once: the booking is released, metrics are counted, the
client's answer is complete or visibly cut. Nothing here awaits on the hot path; a task exists only
while a connection is opened or a prompt is tokenized elsewhere.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING

from gateway.core.decision import Decision, Prompt
from gateway.core.errors import GatewayError, NoWorker, WorkerFailed
from gateway.core.multimodal import BEFORE_MEDIA
from gateway.core.outcome import CLIENT_GONE
from gateway.core.requests.request import InferenceRequest
from gateway.core.usage import limit_of
from gateway.core.worker import Worker, WorkerId
from gateway.http.headers import head_to_client
from gateway.http.messages import HttpRequest, ResponseHead
from gateway.http.response_observer import Answer, Piece
from gateway.http.sse import SseScanner
from gateway.observability.metrics import WorkerMetrics
from gateway.observability.request_end import CUT, OUT_OF_TIME, STOPPED, End, tell
from gateway.proxy.retries import Tries
from gateway.proxy.retryable import refusal_of
from gateway.runtime.ids import new_id
from gateway.server.responder import Responder
from gateway.tenancy.admission.tenants import Ticket
from gateway.tokenization.prompt_encoder import PromptError
from gateway.upstream.connection import OUR_ERRNOS, UpstreamConnection

if TYPE_CHECKING:
    from gateway.proxy.proxy import Proxy

log = logging.getLogger("kvgate.proxy")


class InferenceExchange:
    """One client request, its attempts, and the answer on its way back."""

    # fmt: off
    __slots__ = (
        "_proxy", "http", "_responder", "_request", "_loop", "_request_id", "_started", "_prompt",
        "_decision", "_worker_metrics", "_upstream", "tries", "_is_closed", "_status", "_answer",
        "_is_fresh", "_timer", "_task", "_last_activity", "_unasked", "_sent_s", "_options",
        "ticket",
    )
    # fmt: on

    def __init__(
        self, proxy: "Proxy", http: HttpRequest, responder: Responder, request: InferenceRequest
    ) -> None:
        self._proxy, self._options = proxy, proxy.options  # those that it begins with
        self.http = http
        self._responder = responder
        self._request = request
        self.ticket: Ticket | None = None
        self._loop = proxy.loop
        self._request_id = http.header(b"x-request-id") or new_id().encode()
        self._started = self._last_activity = self._sent_s = self._loop.time()
        self._prompt: Prompt | None = None
        self._decision: Decision | None = None
        self._worker_metrics: WorkerMetrics | None = None
        self._upstream: UpstreamConnection | None = None
        self.tries = Tries(proxy.retries, may_repeat=request.may_repeat)
        self._is_closed = False
        self._answer: Answer | None = None
        self._unasked: SseScanner | None = None
        self._status = 0
        self._is_fresh = True
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def _log_id(self) -> str:
        return self._request_id[:128].decode("latin-1")

    def __repr__(self) -> str:
        worker = self._decision.worker.id if self._decision else None
        return f"InferenceExchange({self._request_id!r}, worker={worker}, closed={self._is_closed})"

    # routing -----------------------------------------------------------------------------------

    def begin(self) -> None:
        """Route at once where the prompt is tokenized here and short, else in a task."""
        proxy, request = self._proxy, self._request
        proxy.exchanges.add(self)
        proxy.retries.began(self._started)
        if proxy.takes_time(request):
            self._start("make a prompt", self._tokenize())
        else:
            proxy.route(self, request, None)

    async def _tokenize(self) -> None:
        """Tokens from elsewhere, or what others know of them, then on as usual."""
        proxy, model = self._proxy, self._request.model
        try:
            prompt = await proxy.prompt_of(self._request, self.http.header(b"authorization"))
        except PromptError as exc:
            prompt = proxy.prompts.failed(model, str(exc))
        except GatewayError as error:
            return self.fail(error)
        except Exception:  # noqa: BLE001  a bug must not leave the client waiting
            log.exception("request %s: tokenizing failed", self._log_id)
            prompt = proxy.prompts.failed(model, "a bug, see the log")
        return proxy.route(self, self._request, prompt)

    def route_or_fail(self, prompt: Prompt | None) -> None:
        if self._is_closed:
            return
        try:
            self._route(prompt)
        except GatewayError as exc:
            self.fail(exc)

    def _route(self, prompt: Prompt | None) -> None:
        """Decide, and send to the chosen worker. Raises NoWorker or UnknownModel."""
        proxy = self._proxy
        decision = self._decide(prompt, len(self.tries.failed) + 1)
        self._decision = decision
        self._prompt = prompt
        self._worker_metrics = proxy.metrics.decided(decision)
        proxy.records.add(decision)
        self._reach(decision)

    def _decide(self, prompt: Prompt | None, attempt: int) -> Decision:
        """Raises NoWorker or UnknownModel."""
        failed, router = self.tries.failed, self._proxy.router
        return router.decide(self._request, prompt=prompt, exclude=failed, attempt=attempt)

    def _reach(self, decision: Decision) -> None:
        self._is_fresh = self.tries.was_sent = False
        # One that rests and is closed meanwhile may have taken the request, or not: no place for some.
        connection = self._proxy.pool(decision.worker.url).take() if self.tries.may_repeat else None
        if connection is None:
            self._start("connect", self._connect())
        else:
            self._send(connection)

    async def _connect(self) -> None:
        assert self._decision is not None
        self._is_fresh, self.tries.was_sent = True, False
        try:
            connection = await self._proxy.pool(self._decision.worker.url).connect()
        except TimeoutError:
            self._attempt_failed("connecting took too long")
        except OSError as exc:
            if exc.errno in OUR_ERRNOS:
                text = "%s; raise the limit of open files; request %s"
                self._proxy.log.error(text, exc.strerror, self._log_id)
                return self.fail(NoWorker("the gateway is out of connections", retry_after_s=1))
            self._attempt_failed(f"cannot connect: {exc.strerror or exc}", is_refused=True)
        else:
            if self._is_closed or not connection.is_open:
                connection.abort()
                self._attempt_failed("connection closed")
            else:
                self._send(connection)
        return None

    def _send(self, connection: UpstreamConnection) -> None:
        decision = self._decision
        assert decision is not None
        self._upstream = connection
        self.tries.was_sent = True
        self._sent_s = self._last_activity = self._loop.time()
        self._arm()
        body = self._body(decision)
        connection.send(self._head(decision.worker, len(body)), body, self)
        if self._responder.client_is_full:
            connection.pause()

    def _head(self, worker: Worker, size: int) -> bytes:
        return self._proxy.head_for(self.http, self._request.model, worker, size, self._request_id)

    def _body(self, decision: Decision) -> bytes:
        body, self._unasked = self._proxy.body_for(self._request, decision, self.ticket)
        return body

    # the worker's answer -----------------------------------------------------------------------

    def upstream_head(self, head: ResponseHead) -> None:
        self._touch()
        if head.status >= 400:
            refused = refusal_of(head.status, self._decision, self.tries.failed.values())
            if refused and self._may_try_another():
                return self._abandon(refused)
        masks, limit = self._options.mask_cached_tokens, limit_of(self._request, self._decision)
        self._status, self._answer = head.status, Answer(head, self._unasked, masks=masks, limit=limit)
        self._prompt = None  # there will be no other attempt, and a stream may last for an hour
        self._request.let_go()
        self._proxy.let_go(self.http)
        if self._answer.is_plain and self._decision:
            self._proxy.router.first_token(self._decision)  # an unstreamed answer is all there at once
        exposed = self._decision if self._options.expose_headers else None
        is_reframed = self._answer.is_reframed
        self._responder.head(head_to_client(head, self._request_id, exposed, is_stream=is_reframed))
        return None

    def upstream_data(self, data: bytes) -> None:
        self._touch()
        self._responder.data(self._watched(data))

    def upstream_ended(self, data: bytes) -> None:
        self._touch()
        self._upstream = None
        assert self._answer is not None, "an end follows its head"
        rest = self._watched(data) + self._answer.flush()
        self._close("ended")
        self._responder.end(rest)

    def upstream_lost(self, reason: str) -> None:
        self._upstream = None
        if self._answer:
            self._cut(f"the worker died: {reason}")
        elif not self._is_fresh:
            self._start("connect", self._connect())  # it had closed the resting connection: try anew
        else:
            self._attempt_failed(reason)

    def _watched(self, data: bytes) -> bytes:
        """What may be passed on now; the rest is kept until its event is whole."""
        assert self._answer is not None, "a body follows its head"
        data, piece, since_s = self._answer.feed(data, self._last_activity)
        self._saw(piece, since_s)
        return data

    def _saw(self, piece: Piece, since_s: float) -> None:
        metrics, decision = self._worker_metrics, self._decision
        assert metrics is not None and decision is not None
        if piece is Piece.TOKEN:
            metrics.itl_s.observe(since_s)
        elif piece is Piece.FIRST_TOKEN:
            metrics.ttft_s.observe(self._last_activity - self._started)
            self._proxy.router.first_token(decision, self._last_activity - self._sent_s)

    # failures ----------------------------------------------------------------------------------

    def worker_down(self, worker: WorkerId) -> None:
        """It says nothing any more: what it has not begun to answer another one can, if there is one."""
        is_waiting = self._decision and self._decision.worker.id == worker and self._upstream
        if is_waiting and not self._answer and self._may_try_another():
            self._abandon("it does nothing any more")

    def _abandon(self, reason: str) -> None:
        upstream, self._upstream = self._upstream, None
        if upstream:
            upstream.abort()
        self._attempt_failed(reason)

    def _may_try_another(self) -> bool:
        assert self._decision is not None
        others, fleet = {*self.tries.failed, self._decision.worker.id}, self._proxy.router.fleet
        return self.tries.may_ask_another() and fleet.has_another(self._request.model, others)

    def _attempt_failed(self, reason: str, *, is_refused: bool = False) -> None:
        """Nothing of an answer has come: the next worker gets the request, if one is left."""
        proxy, decision = self._proxy, self._decision
        assert decision is not None and self._worker_metrics is not None
        if self._is_closed:
            return
        worker = decision.worker.id
        self._worker_metrics.num_failed += 1
        proxy.router.finish(decision)
        proxy.records.finish(decision, "failed", 0, None, None)
        proxy.suspect(worker, reason, is_refused)
        if why := self.tries.lost(worker, reason, is_refused=is_refused):
            return self.fail(self._gave_up(why))
        try:
            self._route(self._prompt)
        except GatewayError:  # none is left, or the model's last worker was dropped meanwhile
            return self.fail(self._gave_up("no other is up"))
        proxy.metrics.retries["worker_failed"] += 1
        proxy.log.info("worker %s failed (%s); request %s goes to another", worker, reason, self._log_id)
        return None

    def _gave_up(self, why: str) -> WorkerFailed:
        text = "no worker answered (%s); request %s, tried %s"
        self._proxy.log.warning(text, why, self._log_id, self.tries)
        return self.tries.gave_up(why)

    def _cut(self, reason: str, *, is_workers_fault: bool = True) -> None:
        """No more of the answer will come: a stream ends with an error event, anything else is cut."""
        decision = self._decision
        assert decision is not None and self._worker_metrics is not None
        text = "worker %s: answer cut (%s); request %s"
        self._proxy.log.warning(text, decision.worker.id, reason, self._log_id)
        if is_workers_fault:
            self._worker_metrics.num_failed += 1
            self._proxy.suspect(decision.worker.id, reason, False)
        answer = self._answer
        self._close("cut", CUT if is_workers_fault else OUT_OF_TIME)
        if answer is not None and answer.can_be_ended:
            error = WorkerFailed(f"the answer was cut before it was complete: {reason}")
            self._responder.end_in_error(answer.held(), error, self._request_id)
        else:
            self._responder.abort()

    def fail(self, error: GatewayError) -> None:
        if self._is_closed:
            return
        self._status = error.status
        self._proxy.metrics.errors[error.code] += 1
        self._close("failed", error.code)
        if self._responder.has_begun:
            self._responder.abort()
        else:
            self._responder.fail(error, [(b"x-request-id", self._request_id)])

    # the client --------------------------------------------------------------------------------

    def client_gone(self) -> None:
        if not self._is_closed:
            self._proxy.metrics.num_client_disconnects += 1
            self._status = CLIENT_GONE
            self._close("client gone")

    def client_full(self) -> None:
        if self._upstream:
            self._upstream.pause()

    def client_free(self) -> None:
        self._touch()
        if self._upstream:
            self._upstream.resume()

    def cancel(self, reason: str) -> None:
        """The server stops and its drain time is over."""
        if not self._is_closed:
            log.warning("request %s cut: %s", self._log_id, reason)
            self._close("cut", STOPPED)
            self._responder.abort()

    # time --------------------------------------------------------------------------------------

    def _touch(self) -> None:
        self._last_activity = self._loop.time()

    def _arm(self) -> None:
        """One lazy timer: it looks at the clock when it fires."""
        if self._timer is None and (left := self._time_left()) is not None:
            self._timer = self._loop.call_later(max(left, 0.001), self._on_timer)

    def _time_left(self) -> float | None:
        return self._options.deadlines.left(
            self._loop.time(),
            started=self._started,
            last_activity=self._last_activity,
            has_answer=self._answer is not None,
        )

    def _on_timer(self) -> None:
        self._timer = None
        left = self._time_left()
        if self._is_closed or left is None:
            return
        if left > 0:
            return self._arm()
        if self._responder.client_is_full:  # it reads nothing; the worker is not to blame
            self.client_gone()
            return self._responder.abort()
        if self._answer:
            is_over = self._options.deadlines.is_total_over(self._loop.time(), self._started)
            return self._cut("its time is over" if is_over else "it stalled", is_workers_fault=not is_over)
        return self.fail(self.tries.was_late())

    # the end -----------------------------------------------------------------------------------

    def _start(self, name: str, coro: Coroutine[None, None, None]) -> None:
        self._task = self._proxy.tasks.start(name, coro)

    def _count(self, decision: Decision | None) -> None:
        """Count the request by model, kind of route and status, and its duration."""
        metrics = self._proxy.metrics
        model = decision.model if decision else metrics.model_label(self._request.model)
        metrics.ended(model, self._route_kind(), self._status, self._loop.time() - self._started)

    def _route_kind(self) -> str:
        """The value of metrics' `route` label."""
        return self._request.kind.value

    def _close(self, how: str, fault: str = "") -> None:
        """Give back everything that was taken; the first call counts. `fault`: what went wrong, a code."""
        if self._is_closed:
            return
        self._is_closed = True
        proxy, decision = self._proxy, self._decision
        for pending in (self._timer, self._task):
            if pending:
                pending.cancel()
        if self._upstream:
            self._upstream.abort()
            self._upstream = None
        proxy.metrics.responses[self._status] += 1
        self._count(decision)
        answer = self._answer
        usage = proxy.usages.of(answer, decision) if answer and how == "ended" else None
        proxy.ended(self, self._request, answer, usage, decision is not None)
        now = self._loop.time()
        ttft_s = answer.ttft_s(self._started) if answer else None
        if proxy.tellers:
            tell(proxy.tellers, End(self.http, self._request, decision, how, self._status, fault,
                self._request_id, self._started, self._sent_s, now, ttft_s, usage))  # fmt: skip
        if decision is None:
            return
        proxy.router.finish(decision, usage, answer.lasted_s if answer else 0.0)
        if how == "ended" and self._worker_metrics:
            proxy.heard(decision.worker.id, self._worker_metrics, self._status)
        if usage and self._worker_metrics and decision.prompt_from != BEFORE_MEDIA:
            self._worker_metrics.report(usage, decision.overlap_tokens)
        proxy.records.finish(decision, how, self._status, ttft_s, usage, now - self._started)
