"""Accounting of a request that has ended, in the gateway's and its worker's metrics."""

from gateway.core.decision import Decision
from gateway.core.multimodal import BEFORE_MEDIA
from gateway.core.outcome import SERVER_ERROR
from gateway.core.request import InferenceRequest
from gateway.core.usage import Usage
from gateway.core.usage_reading import of_own_cache
from gateway.observability.metrics import Metrics, WorkerMetrics


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
