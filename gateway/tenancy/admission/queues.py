"""Queues of requests while their model's workers are saturated, or none is up: one per model.

    wait ─► queue ─► a worker has room: go ─► the decision, as of any request
              ├─► its deadline or the longest wait has passed, it is displaced from a full queue, shutdown:
              rejected
              └─► its client disconnected: removed at once

              └─► its model is left without workers: it waits on for the first one (`zero.py`)

Queues move when a first token or an end frees a worker (`freed`), and every LOOK_S while something waits:
workers join, other gateways' requests end and workers' own load reports change without a notification here.
Each gateway queues its own requests; loads include the bookings of the other gateways.
"""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import Final

from gateway.config import Config
from gateway.core.decision import Prompt
from gateway.core.errors import GatewayError
from gateway.core.fleet import EligibleWorker, Fleet, Member
from gateway.core.ledger import Ledger
from gateway.core.request import InferenceRequest
from gateway.core.worker import WorkerId
from gateway.runtime.rate_limited_log import RateLimitedLog
from gateway.tenancy.admission.base import Go, OnRefused, Waiter, at_once
from gateway.tenancy.admission.drain_rate import PredictedRate
from gateway.tenancy.admission.fair_queue import NEVER, QueueEntry
from gateway.tenancy.admission.model_queue import ModelQueue, QueuedRequest, work_of
from gateway.tenancy.admission.rejections import (
    queue_full,
    queue_timeout,
    slo_missed,
    slo_unreachable,
    stopping,
)
from gateway.tenancy.admission.saturation import Saturation, ttft_s
from gateway.tenancy.admission.tenants import Ticket
from gateway.tenancy.admission.zero import RELEASE, REQUEST_BYTES, ZeroRule

log = logging.getLogger("kvgate.admission")

LOOK_S: Final = 0.05
"""Seconds: the delay with which a deadline or an unannounced change is noticed. A look costs some 0.5 us per
worker."""
DECISION_S: Final = 0.5
"""Longest wait, in seconds, for a decision that takes turns with other gateways; usually a few
milliseconds."""
OUTPUT_WEIGHT: Final = 2
"""Weight of a generated token relative to a prompt token, as in the paper on virtual token counters: each
takes a step of its own."""
MIN_INTERVAL_S: Final = 1e-4
"""Shortest time between two ends of answers at a worker, against a division by zero."""
MIN_PER_S: Final = 0.1
"""Requests or tokens per second that leave a queue at least, by prediction: without a worker nothing is
known."""
MAX_PREPARING: Final = 64
"""Released requests of a model while their prompts are being made: no booking shows them yet."""


class ModelQueues:
    def __init__(
        self,
        fleet: Fleet,
        ledger: Ledger,
        rule: Saturation,
        *,
        max_queued: int,
        timeout_s: float,
        loop: asyncio.AbstractEventLoop,
        go: Go = at_once,
        zero: ZeroRule | None = None,
    ) -> None:
        """Queues that release requests to `go`."""
        self._use(rule)
        self.zero = ZeroRule(fleet) if zero is None else zero
        self.models: dict[str, ModelQueue] = {}
        self.go = go
        self.on_refused: OnRefused = lambda waiter, request, error: None
        self._fleet = fleet
        self._ledger = ledger
        self._max_queued = max_queued
        self._timeout_s = timeout_s
        self._loop = loop
        self._log = RateLimitedLog(log)
        self._num_waiting = self._num_bytes = 0
        self._freed: set[WorkerId] = set()
        self._is_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._stop_s = 0.0  # when the gateway stops; 0: not stopping
        self._deciding_s = 0.0  # until then a decision is pending that has not booked yet

    def __repr__(self) -> str:
        return f"ModelQueues({self._num_waiting} waiting, {self.rule})"

    @property
    def is_on(self) -> bool:
        """True if requests may have to wait."""
        return self.rule.is_on or self.zero.is_on

    def reconfigure(self, config: Config) -> None:
        """Apply changed bounds, also to requests that already wait."""
        self._use(Saturation(config.queue.above_ttft_s, config.queue.above_in_flight))
        self.zero.reconfigure(config)
        self._max_queued, self._timeout_s = config.queue.max_requests, config.queue.timeout_s
        for known in self.models.values():
            if not self.zero.is_on:
                known.zero_since_s = None  # those that wait are decided, and get what any request gets
            is_at_zero = known.zero_since_s is not None
            known.queue.max_waiting = self.zero.max_requests if is_at_zero else self._max_queued

    def _use(self, rule: Saturation) -> None:
        self.rule = rule
        self._is_bounded = rule.is_on
        self._release_rule = rule if rule.is_on else RELEASE

    # loads -------------------------------------------------------------------------------------

    def is_full(self, each: EligibleWorker) -> bool:
        return self._is_full(each.member)

    def _is_full(self, member: Member) -> bool:
        return self._release_rule.is_full(self._ledger.load(member.worker.id), member.speed, member.reported)

    def spare(self, eligible: list[EligibleWorker]) -> list[EligibleWorker]:
        """Workers with room; all of them where none has."""
        if not self._is_bounded and not (self._num_waiting and eligible and self._is_awaited(eligible[0])):
            return eligible
        for each in eligible:
            if self.is_full(each):
                return [other for other in eligible if not self.is_full(other)] or eligible
        return eligible

    def _is_awaited(self, each: EligibleWorker) -> bool:
        """True if requests wait for a model of this worker."""
        worker = each.member.worker
        return any([len(known.queue) and worker.find(model) for model, known in self.models.items()])

    def must_wait(self, model: str) -> bool:
        """True if a request that comes now has to be queued. Raises UnknownModel or NoWorker."""
        known = self.models.get(model)
        if known is not None and len(known.queue) > 0:
            return True
        return self._is_bounded and self._is_saturated(model)

    def is_at_zero(self, model: str) -> bool:
        """True if requests of this model wait for its first worker."""
        known = self.models.get(model)
        return known is not None and known.zero_since_s is not None

    def best_ttft_s(self, model: str) -> float:
        """Predicted TTFT, in seconds, at the worker with the least work ahead, without the request's own
        prompt. 0 if a worker has none: it is tried there, whatever its speed model predicts. Raises
        UnknownModel or NoWorker."""
        best_s = NEVER
        for each in self._fleet.eligible(model):
            load = self._ledger.load(each.member.worker.id)
            if not load.booked_tokens:
                return 0.0
            best_s = min(best_s, ttft_s(load, each.member.speed))
        return best_s

    def _is_saturated(self, model: str) -> bool:
        fleet = self._fleet
        for each in fleet.eligible(model):
            if not self.is_full(each):
                break
        else:
            return True
        prefills = fleet.prefills(model) if fleet.is_bound(model) else ()
        return bool(prefills) and all([self.is_full(each) for each in prefills])

    # waiting -----------------------------------------------------------------------------------

    def check_room(self, model: str, tenant: str, priority: int) -> None:
        """Check for room in the queue before any work is done for a request. Raises TooManyRequests, or
        NoWorker for a model at zero."""
        known = self.models.get(model)
        if known is not None and len(known.queue) and not known.queue.has_room(tenant, priority):
            known.ends["full"] += 1
            raise self._full(known, model)

    def wait(self, waiter: Waiter, request: InferenceRequest, prompt: Prompt | None, ticket: Ticket) -> None:
        """Queue a request; one without a prompt waits for its model's first worker. Raises TooManyRequests if
        the queue is full or its SLO cannot be met, and NoWorker for a model at zero."""
        model, now = request.model, self._loop.time()
        if ticket.entry is not None:  # no worker was left while its prompt was made
            self.leave(request, ticket.entry)
        known = self.models.get(model)
        if known is None:
            known = self.models[model] = ModelQueue(self._max_queued)
        num_tokens = work_of(request, prompt)
        if prompt is None:
            self._make_room(known, request, ticket, num_tokens)
            if known.zero_since_s is None:
                self._zero_begins(known, model, now)
            deadline_s = ticket.arrived_s + self.zero.wait_s
        else:
            deadline_s = now + self._timeout_s
        if request.slo_ttft_s is not None:
            if prompt is not None:
                self._check_slo(known, request, ticket, num_tokens, now)
            deadline_s = min(deadline_s, ticket.arrived_s + request.slo_ttft_s)
        self._push(known, QueuedRequest(waiter, request, prompt, ticket, num_tokens, now, deadline_s), ticket)

    def _push(self, known: ModelQueue, queued: QueuedRequest, ticket: Ticket) -> None:
        model, was_empty = queued.request.model, not len(known.queue)
        out = known.queue.push(queued)
        if out is queued:
            known.ends["full"] += 1
            raise self._full(known, model)
        ticket.entry = queued
        self._num_waiting += 1
        self._num_bytes += queued.num_bytes
        known.num_bytes += queued.num_bytes
        if was_empty and known.zero_since_s is None:
            self._begins(known, model, queued.arrived_s)
        self._look_later()
        if out is not None:
            self._refuse(known, out, "displaced", self._full(known, model))

    def _make_room(
        self, known: ModelQueue, request: InferenceRequest, ticket: Ticket, num_tokens: int
    ) -> None:
        """Free the memory that a request at zero needs. Raises NoWorker."""
        most, tenant, priority = self.zero.max_bytes, ticket.tenant.name, request.priority or 0
        while self._num_bytes + len(request.body) + REQUEST_BYTES * (self._num_waiting + 1) > most:
            out = known.queue.displace(tenant, priority, num_tokens)
            if out is None:
                known.ends["full"] += 1
                raise self.zero.full(request.model)
            self._refuse(known, out, "displaced", self.zero.full(request.model))

    def leave(self, request: InferenceRequest, entry: QueueEntry) -> None:
        """Take out a request that was answered, or lost its client."""
        assert isinstance(entry, QueuedRequest)
        known = self.models[request.model]
        if known.queue.remove(entry):
            self._left(known, entry, "client_disconnected")
        elif entry in known.preparing:
            self._prepared(known, entry)

    def charge(self, request: InferenceRequest, ticket: Ticket, num_tokens: int) -> None:
        """Charge generated tokens to the tenant's share."""
        if known := self.models.get(request.model):
            cost = OUTPUT_WEIGHT * num_tokens / ticket.tenant.limits.weight
            known.queue.charge(ticket.tenant.name, request.priority or 0, cost)

    def wait_s(self, known: ModelQueue, model: str, num_tokens: int) -> float:
        """Seconds until `num_tokens` of those in a queue have left it: the one estimate of a wait, for
        Retry-After, messages, SLOs and `/admin/admission`."""
        if known.zero_since_s is not None:
            return self.zero.until_worker_s(model)
        num_waiting, all_tokens = len(known.queue), known.queue.num_tokens
        num_requests = num_waiting * num_tokens / all_tokens if all_tokens else 0.0
        return known.rate.seconds_for(num_requests, num_tokens, self._predicted(model), self._loop.time())

    def expected_wait_s(self, model: str) -> float:
        """Seconds until all that wait now for a model have left its queue."""
        known = self.models.get(model)
        return self.wait_s(known, model, known.queue.num_tokens) if known is not None else 0.0

    def stop_at(self, when_s: float) -> None:
        """Reject at `when_s` all requests that still wait."""
        self._stop_s = when_s
        self._look()

    # moving ------------------------------------------------------------------------------------

    def freed(self, worker: WorkerId) -> None:
        """Note that a worker has less work ahead, and release requests if it has room."""
        if self._num_waiting:
            self._freed.add(worker)
            self._soon()

    def decided(self) -> None:
        """Continue after a decision that was pending."""
        self._deciding_s = 0.0
        self._soon()

    def _soon(self) -> None:
        """Run the release after the current callback: a request that ends has not been closed yet."""
        if self._num_waiting and not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._move_if_freed)

    def _move_if_freed(self) -> None:
        self._is_due = False
        freed, self._freed = self._freed, set()
        if not freed or any([self._has_room(worker) for worker in freed]):
            self._move()

    def _has_room(self, worker: WorkerId) -> bool:
        member = self._fleet.get(worker)
        return member is None or not self._is_full(member)

    def _look(self) -> None:
        """Expire deadlines and release requests; repeats while something waits."""
        if self._timer is not None:
            self._timer.cancel()  # called before its time
            self._timer = None
        now = self._loop.time()
        for known in list(self.models.values()):
            for entry in known.queue.expire(now):
                self._expired(known, entry, now)
        if self._stop_s and now >= self._stop_s:
            self._refuse_all()
        self._move()
        self._look_later()

    def _look_later(self) -> None:
        if self._num_waiting and self._timer is None:
            self._timer = self._loop.call_later(LOOK_S, self._look)

    def _move(self) -> None:
        """Release requests while there is room; models that share workers take turns."""
        has_moved = True
        while has_moved:
            has_moved = False
            for model, known in list(self.models.items()):
                if self._deciding_s > self._loop.time():
                    return
                if len(known.queue) and not self._is_stuck(known, model):
                    self.models[model] = self.models.pop(model)  # the last one next time
                    has_moved = True
                    entry = known.queue.pop()
                    assert entry is not None
                    self._release(known, entry)

    def _is_stuck(self, known: ModelQueue, model: str) -> bool:
        if known.zero_since_s is not None:
            if self.zero.is_at_zero(model):
                return True
            self._zero_ends(known, model, known.zero_since_s)
        try:
            return self._is_saturated(model) or not self._has_room_beside(known, model)
        except GatewayError as error:
            if not self.zero.holds(model, error):
                return False  # its workers are gone: the decision will report it
            self._zero_begins(known, model, self._loop.time())
            return True

    def _has_room_beside(self, known: ModelQueue, model: str) -> bool:
        """True if workers have room for one more than those that are being prepared and not booked yet."""
        num = len(known.preparing)
        if not 0 < num < MAX_PREPARING:
            return num == 0
        for each in self._fleet.eligible(model):
            num -= self._release_rule.num_free(self._ledger.load(each.member.worker.id))
            if num < 0:
                return True
        return False

    def _release(self, known: ModelQueue, queued: QueueEntry) -> None:
        """Send a request that has left the queue, once it has a prompt."""
        assert isinstance(queued, QueuedRequest)
        now = self._loop.time()
        queued.request.queued_s = now - queued.arrived_s
        known.rate.left(queued.num_tokens, now)
        self._left(known, queued, "served")
        if queued.prompt is not None:
            return self._go(queued, queued.prompt)
        if ticket := queued.waiter.ticket:
            ticket.entry = queued  # if its client disconnects, it leaves `preparing`
        known.preparing.add(queued)
        return queued.waiter.prepare(partial(self._go_on, known, queued))

    def _go_on(self, known: ModelQueue, queued: QueuedRequest, prompt: Prompt | None) -> None:
        self._prepared(known, queued)
        self._go(queued, prompt)

    def _prepared(self, known: ModelQueue, queued: QueuedRequest) -> None:
        known.preparing.discard(queued)
        if ticket := queued.waiter.ticket:
            ticket.entry = None
        self._soon()

    def _go(self, queued: QueuedRequest, prompt: Prompt | None) -> None:
        try:
            if not self.go(queued.waiter, queued.request, prompt, self.decided):
                self._deciding_s = self._loop.time() + DECISION_S
        except Exception:  # noqa: BLE001  a bug must neither block the queue nor leave the client waiting
            log.exception("%r: leaving the queue raised; its client gets 500", queued.waiter)
            queued.waiter.fail(GatewayError("internal error in the gateway; retry the request"))

    # ends --------------------------------------------------------------------------------------

    def _begins(self, known: ModelQueue, model: str, now: float) -> None:
        known.rate.begin(now)
        self._log.info("model %s: all workers saturated; requests wait in the queue", model)

    def _zero_begins(self, known: ModelQueue, model: str, now: float) -> None:
        known.zero_since_s = now
        known.queue.max_waiting = self.zero.max_requests
        self.zero.begins(model)
        self._log.info(
            "model %s: no worker is up; requests wait for the first one, at most %g s",
            model,
            self.zero.wait_s,
        )

    def _zero_ends(self, known: ModelQueue, model: str, since_s: float) -> None:
        known.zero_since_s = None
        if self._is_bounded:
            known.queue.max_waiting = self._max_queued
        now = self._loop.time()
        known.rate.begin(now)
        text = "model %s: a worker is up after %.1f s; the %d requests that waited are sent"
        self._log.info(text, model, now - since_s, len(known.queue))

    def _left(self, known: ModelQueue, entry: QueueEntry, result: str) -> None:
        assert isinstance(entry, QueuedRequest)
        now = self._loop.time()
        known.wait_s.observe(now - entry.arrived_s)
        known.ends[result] += 1
        self._num_waiting -= 1
        self._num_bytes -= entry.num_bytes
        known.num_bytes -= entry.num_bytes
        if ticket := entry.waiter.ticket:
            ticket.entry = None
        if not len(known.queue):
            known.rate.end(now)
            known.zero_since_s, known.queue.max_waiting = None, self._max_queued

    def _refuse(self, known: ModelQueue, entry: QueueEntry, result: str, error: GatewayError) -> None:
        assert isinstance(entry, QueuedRequest)
        self._left(known, entry, result)
        self.on_refused(entry.waiter, entry.request, error)
        entry.waiter.fail(error)

    def _refuse_all(self) -> None:
        for known in self.models.values():
            while (entry := known.queue.pop()) is not None:
                self._refuse(known, entry, "stopping", stopping())

    def _expired(self, known: ModelQueue, entry: QueueEntry, now: float) -> None:
        assert isinstance(entry, QueuedRequest)
        request, waited_s = entry.request, now - entry.arrived_s
        wait_s = self.wait_s(known, request.model, known.queue.num_tokens)
        error: GatewayError
        if known.zero_since_s is not None and self.zero.is_at_zero(request.model):
            if ticket := entry.waiter.ticket:
                waited_s = now - ticket.arrived_s  # also where it waited before, for a worker that was lost
            result, error = "no_worker", self.zero.expired(request.model, waited_s)
            text = "model %s: no worker came up within %.1f s; requests that waited so long get 503"
            self._log.warning(text, request.model, waited_s)
        elif request.slo_ttft_s is not None and waited_s < self._timeout_s:
            result, error = "deadline", slo_missed(request, waited_s, wait_s)
        elif not self._is_bounded:  # nothing bounds what workers get: the longest wait ends by being sent
            return self._release(known, entry)
        else:
            result, error = "timeout", queue_timeout(request, waited_s, wait_s)
        return self._refuse(known, entry, result, error)

    def _check_slo(
        self, known: ModelQueue, request: InferenceRequest, ticket: Ticket, num_tokens: int, now: float
    ) -> None:
        """Reject early where the SLO is predicted to be missed. Raises TooManyRequests."""
        assert request.slo_ttft_s is not None
        ahead = known.queue.ahead(ticket.tenant.name, request.priority or 0, num_tokens) - num_tokens
        wait_s = now - ticket.arrived_s + self.wait_s(known, request.model, ahead)
        try:
            first_s = wait_s + self.best_ttft_s(request.model)
        except GatewayError:
            return
        if first_s > request.slo_ttft_s:
            known.ends["slo"] += 1
            raise slo_unreachable(request, first_s)

    def _full(self, known: ModelQueue, model: str) -> GatewayError:
        if known.zero_since_s is not None:
            return self.zero.full(model)
        return queue_full(model, self.wait_s(known, model, known.queue.num_tokens))

    def _predicted(self, model: str) -> PredictedRate:
        """The rate at which workers of a model that are full take requests, by their speed models."""
        try:
            eligible: Sequence[EligibleWorker] = self._fleet.eligible(model)
        except GatewayError:
            eligible = ()
        requests_per_s = tokens_per_s = 0.0
        for each in eligible:
            speed, bound = each.member.speed, self.rule.max_in_flight or NEVER
            num_running = min(float(bound), speed.max_running)
            if num_running == NEVER:
                requests_per_s = NEVER
                num_running = float(self._ledger.load(each.member.worker.id).num_in_flight)
            else:
                requests_per_s += 1 / max(speed.interval_s(num_running), MIN_INTERVAL_S)
            tokens_per_s += 1 / speed.prefill_token_s(num_running)
        return PredictedRate(max(requests_per_s, MIN_PER_S), max(tokens_per_s, MIN_PER_S))
