"""A request on two workers: a prefill leg that computes its prompt, and a decode leg that answers it.

    decide ─ prefill leg ─► transfer parameters ─► decode leg ─► as any answer
      ▲         │ failed                 │ it could not get the blocks, or died before its first event
      └─────────┴────────────────────────┘ another prefill worker; then the decode worker computes the prompt

Where the prefill worker counted other tokens than the gateway, its blocks are not transferred. Where decode
workers answer nothing alone (`Worker.is_bound`), other pairs are tried instead. One decode worker gets the
parameters of a transfer, once. The head of a stream is held back until its first event: engines begin to
stream before they know whether the blocks arrived.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from xxhash import xxh3_64_intdigest

from gateway.core.decision import Decision, Prompt
from gateway.core.errors import GatewayError, InvalidRequest, WorkerFailed
from gateway.core.kv_connector import KvConnector, Pair, PrefillResult
from gateway.core.kv_events import DecodeError
from gateway.core.outcome import SERVER_ERROR
from gateway.core.usage import Usage
from gateway.core.worker import Worker, WorkerId
from gateway.disaggregation.failed_pairs import FailedPairs
from gateway.disaggregation.prefill_leg import PrefillFailure, PrefillLeg, Start
from gateway.disaggregation.stats import DisaggregationStats
from gateway.disaggregation.stream_holdback import Beginning, HeldStream
from gateway.http.headers import is_event_stream
from gateway.http.messages import ResponseHead
from gateway.http.refusal import BUSY_S, is_full_error, is_refusal, refusal_of
from gateway.observability.metrics import Metrics
from gateway.routing.router import Router
from gateway.runtime.rate_limited_log import RateLimitedLog
from gateway.upstream.connection import ResponseSink
from gateway.upstream.outgoing import Outgoing
from gateway.upstream.plan import MAX_FAULTS, Execution, Observer, Plan
from gateway.upstream.pools import Pools

MAX_PREFILLS: Final = 2
"""Prefill workers that are tried; then the decode worker computes the prompt itself."""

MAX_ERROR_BYTES: Final = 16 << 10
"""Bytes of a decode worker's error that are read for signs of saturation; errors have some hundred."""

REFUSAL_S: Final = 2.0
"""A worker has so long to reject a request that the other one of its pair has rejected."""


@dataclass(frozen=True, slots=True, eq=False)
class LegServices:
    """Services that all requests on two workers share. `fetching` has the requests between the end of the
    prefill leg and the answer of the decode leg."""

    disaggregation_stats: DisaggregationStats
    connectors: Mapping[str, KvConnector]
    router: Router
    metrics: Metrics
    pools: Pools
    outgoing: Outgoing
    start: Start
    log: RateLimitedLog
    failed: Callable[[Execution, WorkerId, str, bool], None]
    busy: Callable[[WorkerId, float], None]
    refuse_usage: Callable[[WorkerId, str], None]
    loop: asyncio.AbstractEventLoop = field(default_factory=lambda: asyncio.get_running_loop())
    fetching: set["Legs"] = field(default_factory=set)

    def num_fetching(self, worker: WorkerId) -> int:
        """Requests for which this worker computed a prompt that their decode workers have yet to fetch."""
        return sum([legs.needs(worker) for legs in self.fetching])


class Legs(Observer):
    """The legs of one request, and its attempts at them. Each decision says whether there are two, or the
    decode worker alone (`policies/disaggregation.py`)."""

    # fmt: off
    __slots__ = (
        "_services", "_exchange", "_max_attempts", "_timeout_s", "_leg", "_result", "_failed_pairs",
        "_may_split", "_began_s", "_ahead_s", "_doubted",
    )
    # fmt: on

    def __init__(
        self, services: LegServices, exchange: Execution, *, max_attempts: int, timeout_s: float
    ) -> None:
        """Legs of one exchange; a prefill leg may take `timeout_s`."""
        self._services = services
        self._exchange = exchange
        self._max_attempts = max_attempts
        self._timeout_s = timeout_s
        self._leg: PrefillLeg | None = None
        self._result: PrefillResult | None = None
        self._failed_pairs = FailedPairs()
        self._may_split = True
        self._began_s = self._ahead_s = 0.0
        self._doubted: tuple[Pair, int | None] | None = None
        """A pair that seems to make different prompts, and the tokens that prefill counted in this one."""

    def __repr__(self) -> str:
        return f"Legs({self._exchange!r}, prefill={self._leg}, tried={self._failed_pairs})"

    def plan(self) -> Plan:
        return Plan(
            decide=self._decide, ahead=self._prefill, body=self._body, reader=self._reader, observer=self
        )

    def needs(self, worker: WorkerId) -> bool:
        """True where the decode worker has yet to fetch what this worker computed."""
        decision = self._exchange.decision
        return decision is not None and decision.prefill is not None and decision.prefill.id == worker

    # the plan ----------------------------------------------------------------------------------

    def _decide(self, prompt: Prompt | None, failed: Collection[WorkerId], attempt: int) -> Decision:
        tried = self._failed_pairs
        decision = self._services.router.decide(
            self._exchange.request,
            prompt=prompt,
            exclude={*failed, *tried.excluded} if tried.num else failed,
            attempt=attempt + tried.num,
            may_split=self._may_split,
        )
        self._services.disaggregation_stats.decided(decision)
        return decision

    def _prefill(self, decision: Decision) -> bool:
        """Begin the prefill leg. True where the decode leg begins with it, or where there is no other."""
        prefill = decision.prefill
        if prefill is None:
            return True
        services, exchange, connector = self._services, self._exchange, self._connector(decision.worker)
        request, outgoing = exchange.request, services.outgoing
        body = connector.to_prefill(outgoing.body(request, prefill), self._pair(decision, prefill))
        self._began_s = services.loop.time()
        self._leg = PrefillLeg(
            services.pools.of(prefill.url),
            outgoing.head(exchange.http, request.model, prefill, len(body), exchange.worker_id),
            body,
            loop=services.loop,
            start=services.start,
            timeout_s=self._timeout_s,
            on_prefilled=self._answered,
            on_failed=self._prefill_failed,
        )
        self._leg.begin()
        return connector.is_together

    def _body(self, decision: Decision, body: bytes) -> bytes:
        if (prefill := decision.prefill) is None:
            return body
        return self._connector(decision.worker).to_decode(body, self._pair(decision, prefill), self._result)

    def _reader(self, decision: Decision) -> ResponseSink:
        if self._leg is None:
            return self._exchange
        return DecodeAnswer(self, self._exchange)

    def _connector(self, worker: Worker) -> KvConnector:
        assert worker.transfer is not None, "a worker without a KV connector is never in a pair"
        return self._services.connectors[worker.transfer.connector]

    def _pair(self, decision: Decision, prefill: Worker) -> Pair:
        return Pair(prefill, decision.worker, number_of(decision.id))

    # the prefill leg ---------------------------------------------------------------------------

    def _answered(self, answer: bytes) -> None:
        """Take the whole answer of the prefill worker, and begin the decode leg."""
        services, exchange, decision = self._services, self._exchange, self._exchange.decision
        assert decision is not None and decision.prefill is not None and self._leg is not None
        connector = self._connector(decision.worker)
        try:
            result = connector.prefill_result(answer)
        except DecodeError as exc:
            return self._prefill_failed(PrefillFailure.REFUSED, str(exc))
        if result.refused_usage:
            services.refuse_usage(decision.prefill.id, result.refused_usage)
        took_s = services.loop.time() - self._began_s
        services.router.prefilled(decision, took_s)
        services.metrics.worker(decision.prefill.id).num_answered += 1
        services.disaggregation_stats.prefilled(took_s)
        if not connector.is_together and self._differs(decision, result.num_prompt_tokens):
            self._doubted = self._pair(decision, decision.prefill), result.num_prompt_tokens
            self._may_split = False
            return self._again(decision)
        self._result = result
        if not exchange.has_answer:
            services.fetching.add(self)
        self._began_s = services.loop.time()
        self._ahead_s = services.router.ahead_s(decision.worker.id)
        if not connector.is_together:  # else the decode worker has fetched it by now
            services.disaggregation_stats.pin(decision, result.num_prompt_tokens)
            exchange.send()
        return None

    def _differs(self, decision: Decision, prefilled_tokens: int | None) -> bool:
        """True where the prefill worker counted other tokens. A prompt that the engine cuts is not compared:
        its length is not known here."""
        if decision.num_tokens in (0, prefilled_tokens):
            return False
        if self._exchange.request.is_cut:
            return False
        return not self._services.disaggregation_stats.agree(decision, prefilled_tokens)

    def _prefill_failed(self, failure: PrefillFailure, reason: str) -> None:
        """Try another prefill worker, or none."""
        services, exchange, decision = self._services, self._exchange, self._exchange.decision
        assert decision is not None and decision.prefill is not None
        if exchange.is_closed or exchange.has_answer:
            return
        prefill = decision.prefill.id
        services.disaggregation_stats.failed(failure.value)
        services.log.info("worker %s: prefill of request %s failed: %s", prefill, exchange.log_id, reason)
        if failure is PrefillFailure.BUSY and self._leg:
            services.busy(prefill, self._leg.busy_s)
        elif failure is not PrefillFailure.REFUSED:
            services.failed(exchange, prefill, reason, failure is PrefillFailure.UNREACHABLE)
        if failure is PrefillFailure.DIED and len(exchange.failed_at) >= MAX_FAULTS:
            return exchange.fail(self._is_cause())
        if decision.worker.is_bound:
            if failure is PrefillFailure.REFUSED:
                return self._refused(decision, reason)
            return self._pair_failed(decision, is_prefills_fault=failure is not PrefillFailure.ERROR)
        self._failed_pairs.prefill_failed(prefill)
        may_split = failure is not PrefillFailure.REFUSED and self._failed_pairs.num < MAX_PREFILLS
        # An unreachable worker computed nothing. Without a retry to spend, the decode worker computes it all.
        self._may_split = may_split and (failure is PrefillFailure.UNREACHABLE or exchange.pays_retry())
        return self._again(decision)

    def _refused(self, decision: Decision, reason: str) -> None:
        """Wait for the decode worker, which got the same body, to reject it in the engine's own words."""
        exchange = self._exchange
        self._services.router.prefilled(decision, was_run=False)

        def is_late() -> None:
            if exchange.decision is decision and not exchange.is_closed and not exchange.has_answer:
                exchange.fail(InvalidRequest(f"the prefill worker {reason}"))

        self._services.loop.call_later(REFUSAL_S, is_late)

    def _pair_failed(self, decision: Decision, *, is_prefills_fault: bool = False) -> None:
        """Try another pair, in all as many as `max_attempts`, of workers that cannot answer alone. The retry
        budget is not asked: no single worker could compute the request in their place."""
        tried, decode = self._failed_pairs, decision.worker.id
        assert decision.prefill is not None
        if is_prefills_fault:
            tried.prefill_failed(decision.prefill.id)
        elif tried.transfer_failed(decision.prefill.id, decode):
            without = {decode, *self._exchange.failed_workers(), *tried.excluded}
            request = self._exchange.request
            if self._services.router.fleet.has_another(request.model, without, request.path):
                tried.blame(decode)
        self._may_split = tried.num < self._max_attempts
        self._again(decision)

    def _again(self, decision: Decision) -> None:
        exchange = self._exchange
        self._drop(decision)
        exchange.release()
        while True:
            try:
                return exchange.decide_again()
            except GatewayError as exc:
                if not (self._may_split and self._failed_pairs.turn()):
                    is_last = decision.worker.is_bound and not self._may_split
                    return exchange.fail(self._no_pair() if is_last else exc)

    def _no_pair(self) -> WorkerFailed:
        request, text = self._exchange.request, "model %s: no pair of workers answered request %s: %s"
        self._services.log.warning(text, request.model, self._exchange.log_id, self._failed_pairs)
        return WorkerFailed(
            f"no pair of prefill and decode workers answered ({self._failed_pairs.num} tried)",
            retry_after_s=1,
        )

    def _is_cause(self) -> WorkerFailed:
        """Return the error of a request that takes down each worker that gets it."""
        num = len(self._exchange.failed_at)
        error = WorkerFailed(f"{num} workers failed on the request, so it is the likely cause")
        error.should_retry = False
        return error

    def _drop(self, decision: Decision) -> None:
        """Forget both legs of an attempt."""
        if self._leg:
            self._leg.cancel()
        self._fetched(decision)
        self._leg = self._result = None

    def _fetched(self, decision: Decision) -> None:
        """The prompt was fetched, or will not be; a second call does nothing."""
        self._services.disaggregation_stats.unpin(decision)
        self._services.fetching.discard(self)

    # the decode leg ----------------------------------------------------------------------------

    def transfer_failed(self, reason: str, *, is_busy: bool = False) -> None:
        """The decode worker did not get the blocks: it, another one or another pair computes the prompt.
        `is_busy`: it is saturated, and no transfer is at fault."""
        decision = self._exchange.decision
        assert decision is not None and decision.prefill is not None
        self._services.disaggregation_stats.failed("transfer")
        text, log = "worker %s: KV transfer from %s failed (%s); request %s", self._services.log
        log.info(text, decision.worker.id, decision.prefill.id, reason, self._exchange.log_id)
        if is_busy:
            self._services.busy(decision.worker.id, BUSY_S)
        else:
            self._services.failed(self._exchange, decision.prefill.id, reason, False)
        if decision.worker.is_bound:
            return self._pair_failed(decision)
        self._may_split = False
        return self._again(decision)

    def decode_began(self) -> None:
        """The decode worker answers."""
        if self._result and self._exchange.decision:
            self._fetched(self._exchange.decision)

    # what the exchange reports -----------------------------------------------------------------

    def first_token(self, decision: Decision, arrived_s: float, now: float) -> None:
        self._services.disaggregation_stats.began(decision, now - arrived_s)
        if self._result:
            self._services.disaggregation_stats.transferred(decision, now - self._began_s, self._ahead_s)

    def worker_down(self, worker: WorkerId, why: str) -> None:
        decision = self._exchange.decision
        if self._leg and not self._result and decision and decision.prefill and decision.prefill.id == worker:
            self._leg.fail(PrefillFailure.DIED, why)

    def attempt_failed(self, decision: Decision) -> None:
        self._drop(decision)
        self._failed_pairs.blame(decision.worker.id)

    def closed(self, decision: Decision | None, usage: Usage | None) -> None:
        if decision is None:
            return
        if usage:
            self._compare(decision, usage)
        if self._leg:
            self._leg.cancel()
        self._fetched(decision)
        self._leg = None

    def _compare(self, decision: Decision, usage: Usage) -> None:
        """Compare the prompt tokens that the decode worker counted with those of prefill and the gateway."""
        disaggregation_stats = self._services.disaggregation_stats
        disaggregation_stats.answered(decision, usage)
        if self._result:
            disaggregation_stats.compare(decision, self._result.num_prompt_tokens, usage.prompt_tokens)
        if self._doubted:
            pair, num_tokens = self._doubted
            if num_tokens == usage.prompt_tokens:
                disaggregation_stats.acquit(pair.prefill.id, decision, usage.prompt_tokens)


class DecodeAnswer:
    """The answer of a decode leg. A stream is held back until its first event says that there will be an
    answer; a failed transfer is not passed on, and an error 500 is read first: a saturated worker says so
    there."""

    __slots__ = ("_legs", "_exchange", "_held", "_error", "_body")

    def __init__(self, legs: Legs, exchange: Execution) -> None:
        self._legs = legs
        self._exchange = exchange
        self._held: HeldStream | None = None
        self._error: ResponseHead | None = None
        self._body = b""

    def __repr__(self) -> str:
        return f"DecodeAnswer({self._held!r}, {self._error})"

    def upstream_head(self, head: ResponseHead) -> None:
        if head.status == SERVER_ERROR:
            self._error = head
            return self._exchange.touch()
        if head.status > SERVER_ERROR and not is_refusal(head.status):
            return self._legs.transfer_failed(f"it answered {head.status}")
        if head.status == 200 and is_event_stream(head):
            self._exchange.touch()
            self._held = HeldStream(head)
            return None
        return self._pass_on(head)

    def upstream_data(self, data: bytes) -> None:
        held = self._held
        if self._error is not None:
            self._body += data
            return self._failed(self._error) if len(self._body) > MAX_ERROR_BYTES else None
        if held is None:
            return self._exchange.upstream_data(data)
        self._exchange.touch()
        beginning = held.feed(data)
        if beginning is Beginning.ERROR:
            self._legs.transfer_failed("its stream began with an error", is_busy=is_full_error(held.data))
        elif beginning is Beginning.ANSWER:
            self._pass_on(held.head)
            self._exchange.upstream_data(held.data)
        return None

    def upstream_ended(self, data: bytes) -> None:
        held = self._held
        if self._error is not None:
            self._body += data
            return self._failed(self._error)
        if held is None:
            return self._exchange.upstream_ended(data)
        if held.feed(data) is Beginning.ERROR:
            return self._legs.transfer_failed(
                "its stream contained only an error", is_busy=is_full_error(held.data)
            )
        self._pass_on(held.head)
        return self._exchange.upstream_ended(held.data)

    def upstream_lost(self, reason: str) -> None:
        if self._error is not None:
            self._failed(self._error)
        elif self._held is None:
            self._exchange.upstream_lost(reason)
        else:  # the worker had the request, and used the transfer up
            self._exchange.attempt_lost(reason)

    def _failed(self, head: ResponseHead) -> None:
        refusal = refusal_of(head, self._body, time.time())
        self._legs.transfer_failed(f"it answered {head.status}", is_busy=refusal.is_busy)

    def _pass_on(self, head: ResponseHead) -> None:
        self._held = None
        self._legs.decode_began()
        self._exchange.upstream_head(head)


def number_of(decision_id: str) -> int:
    """The number that names a decision to the workers of both legs: 63 bits, as connectors want it."""
    return xxh3_64_intdigest(decision_id.encode()) >> 1
