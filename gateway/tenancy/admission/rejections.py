"""Errors of requests that admission control rejects, with the time after which to retry.

429 wherever load is the reason, so that clients retry after Retry-After and no alarm about broken workers
goes off; 503 where another gateway would take the request.
"""

from typing import Final

from gateway.core.errors import NoWorker, TooManyRequests
from gateway.core.request import InferenceRequest

KIND: Final = "overloaded"


def queue_full(model: str, wait_s: float) -> TooManyRequests:
    what = f"all workers for '{model}' are saturated and the queue is full: retry in about {wait_s:.3g} s"
    return TooManyRequests(what, code="queue_full", kind=KIND, wait_s=wait_s)


def queue_timeout(request: InferenceRequest, waited_s: float, wait_s: float) -> TooManyRequests:
    what = f"all workers for '{request.model}' are saturated: queue timeout after {waited_s:.3g} s"
    return TooManyRequests(what, code="queue_timeout", kind=KIND, wait_s=wait_s)


def slo_missed(request: InferenceRequest, waited_s: float, wait_s: float) -> TooManyRequests:
    waited = f"queued for {waited_s:.3g} s, past the TTFT SLO of {request.slo_ttft_s:.3g} s"
    what = f"all workers for '{request.model}' are saturated: {waited}"
    return TooManyRequests(what, code="slo_unreachable", kind=KIND, wait_s=wait_s)


def slo_unreachable(request: InferenceRequest, first_s: float) -> TooManyRequests:
    """Predicted TTFT above the request's SLO, before it was queued."""
    assert request.slo_ttft_s is not None
    wanted_s = request.slo_ttft_s
    what = f"predicted TTFT of about {first_s:.3g} s exceeds the SLO of {wanted_s:.3g} s"
    return TooManyRequests(what, code="slo_unreachable", kind=KIND, wait_s=first_s - wanted_s)


def stopping() -> NoWorker:
    return NoWorker("the gateway is shutting down; retry the request", retry_after_s=1)
