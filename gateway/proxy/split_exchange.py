"""A request whose prompt another worker may compute: two legs, one answer.

    decide ─ prefill leg ─► handed ─► decode leg ─► as any answer
      ▲         │ failed                 │ it could not have the blocks, or died before its first event
      └─────────┴────────────────────────┘ another prefill worker; then the decode worker computes it all

What prefill took for another prompt than we is not handed on. Where decode workers answer nothing alone,
other pairs are tried instead. What was handed is told to one decode worker, once. The head of a stream waits
for its first event: engines begin a stream before they know whether the blocks came.
"""

import logging
from typing import TYPE_CHECKING

from xxhash import xxh3_64_intdigest

from gateway.core.decision import Decision, Prompt
from gateway.core.errors import GatewayError, InvalidRequest, WorkerFailed
from gateway.core.kv_connector import Handed, Handoff, Pair
from gateway.core.kv_events import DecodeError
from gateway.core.requests.request import InferenceRequest
from gateway.core.usage import Usage
from gateway.core.worker import Worker, WorkerId
from gateway.disaggregation.failed_pairs import Tried
from gateway.disaggregation.prefill_leg import Failure, Prefill
from gateway.disaggregation.stream_holdback import Beginning, HeldStream
from gateway.http.headers import is_event_stream
from gateway.http.messages import HttpRequest, ResponseHead
from gateway.http.response_observer import Piece
from gateway.proxy.exchange import InferenceExchange
from gateway.server.responder import Responder

if TYPE_CHECKING:
    from gateway.proxy.proxy import Proxy

log = logging.getLogger("kvgate.proxy")

MAX_PREFILLS = 2
"""Prefill workers that are tried; then the decode worker computes the prompt itself."""


REFUSAL_S = 2.0
"""For a worker to say that it will not have a request, after the other one has said so."""


class SplitExchange(InferenceExchange):
    """Whether it is split at all is decided with the workers (`policies/disaggregation.py`)."""

    # fmt: off
    __slots__ = (
        "_splits", "_leg", "_handed", "_tried", "_may_split", "_held", "_began_s", "_ahead_s", "_doubted",
    )
    # fmt: on

    def __init__(
        self, proxy: "Proxy", http: HttpRequest, responder: Responder, request: InferenceRequest
    ) -> None:
        super().__init__(proxy, http, responder, request)
        assert proxy.splits is not None, "without them nothing is split"
        self._splits = proxy.splits
        self._leg: Prefill | None = None
        self._handed: Handed | None = None
        self._tried = Tried()
        self._may_split = True
        self._held: HeldStream | None = None
        self._began_s = self._ahead_s = 0.0
        self._doubted: tuple[Pair, int | None] | None = None
        """A pair that seems to make different prompts, and how many tokens prefill took this one for."""

    # routing -----------------------------------------------------------------------------------

    def _decide(self, prompt: Prompt | None, attempt: int) -> Decision:
        tried = self._tried
        decision = self._proxy.router.decide(
            self._request,
            prompt=prompt,
            exclude={*self.tries.failed, *tried.left_out} if tried.num else self.tries.failed,
            attempt=attempt + tried.num,
            may_split=self._may_split,
        )
        self._splits.decided(decision)
        return decision

    def _reach(self, decision: Decision) -> None:
        prefill = decision.prefill
        if prefill is None:
            return super()._reach(decision)
        proxy, handoff = self._proxy, self._handoff(decision.worker)
        body = handoff.to_prefill(self._proxy.body_at(self._request, prefill), self._pair(decision, prefill))
        self._began_s = self._loop.time()
        self._leg = Prefill(
            proxy.pool(prefill.url),
            self._head(prefill, len(body)),
            body,
            loop=self._loop,
            start=proxy.tasks.start,
            timeout_s=self._options.prefill_timeout_s,
            on_handed=self._answered,
            on_failed=self._prefill_failed,
        )
        self._leg.begin()
        if handoff.is_together:
            return super()._reach(decision)
        return None

    def _handoff(self, worker: Worker) -> Handoff:
        assert worker.transfer is not None, "one whose cache goes nowhere is in no pair"
        return self._proxy.handoffs[worker.transfer.connector]

    def _pair(self, decision: Decision, prefill: Worker) -> Pair:
        return Pair(prefill, decision.worker, number_of(decision.id))

    def _body(self, decision: Decision) -> bytes:
        body = super()._body(decision)
        if (prefill := decision.prefill) is None:
            return body
        return self._handoff(decision.worker).to_decode(body, self._pair(decision, prefill), self._handed)

    # the prefill leg ---------------------------------------------------------------------------

    def _answered(self, answer: bytes) -> None:
        """The whole answer of the prefill worker."""
        decision = self._decision
        assert decision is not None and decision.prefill is not None and self._leg is not None
        handoff = self._handoff(decision.worker)
        try:
            handed = handoff.handed(answer)
        except DecodeError as exc:
            return self._prefill_failed(Failure.REFUSED, str(exc))
        if handed.refused_usage:
            self._proxy.usages.refuse(decision.prefill.id, handed.refused_usage)
        took_s = self._loop.time() - self._began_s
        self._proxy.router.prefilled(decision, took_s)
        self._proxy.metrics.worker(decision.prefill.id).num_answered += 1
        self._splits.prefilled(took_s)
        if not handoff.is_together and self._differs(decision, handed.num_prompt_tokens):
            self._doubted = self._pair(decision, decision.prefill), handed.num_prompt_tokens
            self._may_split = False
            return self._again(decision)
        self._handed = handed
        self._began_s = self._loop.time()
        self._ahead_s = self._proxy.router.ahead_s(decision.worker.id)
        if not handoff.is_together:  # else it has been fetched by now
            self._splits.handed(decision, handed.num_prompt_tokens)
            super()._reach(decision)
        return None

    def _differs(self, decision: Decision, prefilled_tokens: int | None) -> bool:
        """Of a prompt that the engine cuts to a length we do not know all tokens."""
        if decision.num_tokens in (0, prefilled_tokens) or "truncate_prompt_tokens" in self._request.fields:
            return False
        return not self._splits.agree(decision, prefilled_tokens)

    def _prefill_failed(self, failure: Failure, reason: str) -> None:
        """Another prefill worker, or none."""
        decision, proxy = self._decision, self._proxy
        assert decision is not None and decision.prefill is not None
        if self._is_closed or self._answer:
            return
        prefill = decision.prefill.id
        self._splits.failed(failure.value)
        proxy.log.info("prefill worker %s failed (%s); request %s", prefill, reason, self._log_id)
        if failure is not Failure.REFUSED:
            proxy.suspect(prefill, reason, failure is Failure.UNREACHABLE)
        if decision.worker.is_bound:
            if failure is Failure.REFUSED:
                return self._refused(decision, reason)
            return self._pair_failed(decision, is_prefills_fault=failure is not Failure.ERROR)
        self._tried.prefill_failed(prefill)
        may_split = failure is not Failure.REFUSED and self._tried.num < MAX_PREFILLS
        # Who was not reached has computed nothing. Without room in the budget the decode worker computes it.
        self._may_split = may_split and (failure is Failure.UNREACHABLE or self.tries.pays())
        return self._again(decision)

    def _refused(self, decision: Decision, reason: str) -> None:
        """By one of two that got the same body: the other one says so too, in the engine's own words."""
        self._proxy.router.prefilled(decision, was_run=False)

        def is_late() -> None:
            if self._decision is decision and not self._is_closed and not self._answer:
                self.fail(InvalidRequest(f"the prefill worker {reason}"))

        self._loop.call_later(REFUSAL_S, is_late)

    def _transfer_failed(self, reason: str) -> None:
        """The decode worker could not have the blocks: it, or another, or another pair computes them."""
        decision = self._decision
        assert decision is not None and decision.prefill is not None
        self._splits.failed("transfer")
        text = "worker %s did not get the KV blocks of %s (%s); request %s"
        self._proxy.log.info(text, decision.worker.id, decision.prefill.id, reason, self._log_id)
        self._proxy.suspect(decision.prefill.id, reason, False)
        if decision.worker.is_bound:
            return self._pair_failed(decision)
        self._may_split = False
        return self._again(decision)

    def _pair_failed(self, decision: Decision, *, is_prefills_fault: bool = False) -> None:
        """Of two that answer nothing alone: another pair is tried, in all as many as workers are. The budget
        of retries has no say: nobody could compute it in their place."""
        tried, decode = self._tried, decision.worker.id
        assert decision.prefill is not None
        if is_prefills_fault:
            tried.prefill_failed(decision.prefill.id)
        elif tried.transfer_failed(decision.prefill.id, decode):
            without = {decode, *self.tries.failed, *tried.left_out}
            if self._proxy.router.fleet.has_another(self._request.model, without):
                tried.blame(decode)
        self._may_split = tried.num < self._options.max_attempts
        self._again(decision)

    def _again(self, decision: Decision) -> None:
        self._drop_legs()
        self._proxy.router.finish(decision)
        self._proxy.records.finish(decision, "failed", 0, None, None)
        while True:
            try:
                return self._route(self._prompt)
            except GatewayError as exc:
                if not (self._may_split and self._tried.turn()):
                    is_last = decision.worker.is_bound and not self._may_split
                    return self.fail(self._no_pair() if is_last else exc)

    def _no_pair(self) -> WorkerFailed:
        text = "model %s: no pair answered request %s: %s"
        self._proxy.log.warning(text, self._request.model, self._log_id, self._tried)
        return WorkerFailed(f"no pair answered, {self._tried.num} tried", retry_after_s=1)

    def _drop_legs(self) -> None:
        if self._leg:
            self._leg.cancel()
        if self._upstream:
            self._upstream.abort()
        if self._decision:
            self._splits.let_go(self._decision)
        self._leg = self._upstream = self._handed = self._held = None

    # the decode leg ----------------------------------------------------------------------------

    @property
    def _is_split(self) -> bool:
        return self._leg is not None

    def upstream_lost(self, reason: str) -> None:
        if self._held is not None:  # it had begun, on a connection that was open: what it was told is used up
            self._is_fresh = True
        super().upstream_lost(reason)

    def upstream_head(self, head: ResponseHead) -> None:
        if self._is_split and head.status >= 500 and not (head.status == 503 and self._may_try_another()):
            return self._transfer_failed(f"it answered {head.status}")
        if self._is_split and head.status == 200 and is_event_stream(head):
            self._touch()
            self._held = HeldStream(head)
            return None
        return self._pass_head_on(head)

    def upstream_data(self, data: bytes) -> None:
        held = self._held
        if held is None:
            return super().upstream_data(data)
        self._touch()
        beginning = held.feed(data)
        if beginning is Beginning.ERROR:
            self._transfer_failed("its stream began with an error")
        elif beginning is Beginning.ANSWER:
            self._pass_on(held)
            super().upstream_data(held.data)
        return None

    def upstream_ended(self, data: bytes) -> None:
        held = self._held
        if held is None:
            return super().upstream_ended(data)
        if held.feed(data) is Beginning.ERROR:
            return self._transfer_failed("its stream was an error")
        self._pass_on(held)
        return super().upstream_ended(held.data)

    def _pass_on(self, held: HeldStream) -> None:
        self._held = None
        self._pass_head_on(held.head)

    def _pass_head_on(self, head: ResponseHead) -> None:
        if self._handed and self._decision:
            self._splits.let_go(self._decision)
        super().upstream_head(head)

    def _saw(self, piece: Piece, since_s: float) -> None:
        super()._saw(piece, since_s)
        if piece is Piece.FIRST_TOKEN and self._decision:
            self._splits.began(self._decision, self._last_activity - self._started)
            if self._handed:
                took_s = self._last_activity - self._began_s
                self._splits.transferred(self._decision, took_s, self._ahead_s)

    def needs(self, worker: WorkerId) -> bool:
        """Whether another one has yet to fetch what that worker computed for it."""
        if self._answer or self._is_closed or self._decision is None or self._handed is None:
            return False
        return self._decision.prefill is not None and self._decision.prefill.id == worker

    # failures, and the end ---------------------------------------------------------------------

    def worker_down(self, worker: WorkerId) -> None:
        decision = self._decision
        if self._leg and not self._handed and decision and decision.prefill and decision.prefill.id == worker:
            self._leg.fail(Failure.DIED, "it does nothing any more")
        super().worker_down(worker)

    def _attempt_failed(self, reason: str, *, is_refused: bool = False) -> None:
        self._drop_legs()
        if self._decision:
            self._tried.blame(self._decision.worker.id)
        super()._attempt_failed(reason, is_refused=is_refused)

    def _close(self, how: str, fault: str = "") -> None:
        if self._is_closed:
            return
        if how == "ended" and self._answer and self._decision and (usage := self._answer.usage()):
            self._told(self._decision, usage)
        if self._leg:
            self._leg.cancel()
        if self._handed and self._decision:
            self._splits.let_go(self._decision)
        super()._close(how, fault)

    def _told(self, decision: Decision, usage: Usage) -> None:
        """By the end of its answer, what the decode worker took the prompt for."""
        self._splits.answered(decision, usage)
        if self._handed:
            self._splits.compare(decision, self._handed.num_prompt_tokens, usage.prompt_tokens)
        if self._doubted:
            pair, num_tokens = self._doubted
            if num_tokens == usage.prompt_tokens:
                self._splits.acquit(pair.prefill.id, decision, usage.prompt_tokens)


def number_of(decision_id: str) -> int:
    """By which both legs of a decision are known to their workers: of 63 bits, as connectors want it."""
    return xxh3_64_intdigest(decision_id.encode()) >> 1
