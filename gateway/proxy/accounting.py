"""Accounting of an exchange that has ended: metrics, observers, the decision log, its booking."""

from gateway.core.decision import Decision
from gateway.core.multimodal import BEFORE_MEDIA
from gateway.core.outcome import SERVER_ERROR
from gateway.core.request import InferenceRequest
from gateway.core.usage import Usage
from gateway.core.usage_reading import of_own_cache
from gateway.http.response_observer import ResponseObserver
from gateway.observability.metrics import Metrics, WorkerMetrics
from gateway.observability.request_end import RequestEnd, notify_ended
from gateway.proxy.context import Context
from gateway.upstream.plan import Execution


class Ending:
    """End of an exchange, and what it had by then. `result` and `fault` are those of `RequestEnd`, times are
    on the loop's clock; `is_refused`: the answer is a worker's that rejected the request because it was busy.
    """

    __slots__ = (
        "result", "fault", "status", "kind", "sent_s", "ended_s", "answer", "usage", "worker_metrics",
        "is_refused",
    )  # fmt: skip

    def __init__(
        self,
        result: str,
        fault: str,
        status: int,
        kind: str,
        *,
        sent_s: float,
        ended_s: float,
        answer: ResponseObserver | None,
        usage: Usage | None,
        worker_metrics: WorkerMetrics | None,
        is_refused: bool,
    ) -> None:
        self.result, self.fault, self.status, self.kind = result, fault, status, kind
        self.sent_s, self.ended_s = sent_s, ended_s
        self.answer, self.usage = answer, usage
        self.worker_metrics, self.is_refused = worker_metrics, is_refused

    def __repr__(self) -> str:
        return f"Ending({self.result}, {self.status}, fault={self.fault!r})"


def account(context: Context, exchange: Execution, ending: Ending) -> None:
    """Count and report the end of an exchange, and give back the booking of its last decision."""
    request, decision, answer, usage = exchange.request, exchange.decision, ending.answer, ending.usage
    result, status, arrived_s, ended_s = ending.result, ending.status, exchange.arrived_s, ending.ended_s
    count_request(context.metrics, request, decision, ending.kind, status, ended_s - arrived_s)
    ttft_s = answer.ttft_s(arrived_s) if answer else None
    if context.end_observers:
        end = RequestEnd(exchange.http, request, decision, result, status, ending.fault,
                  exchange.request_id, arrived_s, ending.sent_s, ended_s, ttft_s, usage)  # fmt: skip
        notify_ended(context.end_observers, end)
    if decision is None:
        return
    context.router.finish(decision, usage, answer.lasted_s if answer else 0.0)
    if result == "ended" and ending.worker_metrics is not None:  # set with each decision
        count_answer(ending.worker_metrics, decision, status, usage)
        if not ending.is_refused:
            context.judge(exchange, decision.worker.id, status)
    context.records.finish(decision, result, status, ttft_s, usage, ended_s - arrived_s, exchange.request_id)


def count_request(
    metrics: Metrics,
    request: InferenceRequest,
    decision: Decision | None,
    kind: str,
    status: int,
    lasted_s: float,
) -> None:
    """Count a request by model, kind of route and status, and its duration."""
    model = decision.model if decision else metrics.model_label(request.model)
    metrics.responses[status] += 1
    metrics.ended(model, kind, status, lasted_s)


def count_answer(metrics: WorkerMetrics, decision: Decision, status: int, usage: Usage | None) -> None:
    """Count a complete answer of a worker, and the tokens that it reported."""
    if status < SERVER_ERROR:
        metrics.num_answered += 1
    if usage and decision.prompt_from != BEFORE_MEDIA:
        metrics.report(of_own_cache(usage, decision), decision)
