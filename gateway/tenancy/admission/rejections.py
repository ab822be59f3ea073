"""How a request is told that it is not served now: in which words, and when to ask again.

429 wherever it is load that is in the way, so that clients ask again after Retry-After and no alarm about
broken workers goes off; 503 where another gateway would take it.
"""

from gateway.core.errors import NoWorker, TooManyRequests
from gateway.core.requests.request import InferenceRequest

KIND = "overloaded"


def no_room(model: str, wait_s: float) -> TooManyRequests:
    what = f"all workers for '{model}' are saturated and the queue is full: about {wait_s:.3g} s of work"
    return TooManyRequests(what, code="queue_full", kind=KIND, wait_s=wait_s)


def waited_too_long(request: InferenceRequest, waited_s: float, wait_s: float) -> TooManyRequests:
    what = f"all workers for '{request.model}' are saturated: it waited {waited_s:.3g} s, the longest wait"
    return TooManyRequests(what, code="queue_timeout", kind=KIND, wait_s=wait_s)


def waited_in_vain(request: InferenceRequest, waited_s: float, wait_s: float) -> TooManyRequests:
    waited = f"it waited {waited_s:.3g} s and wanted its first token in {request.slo_ttft_s:.3g} s"
    what = f"all workers for '{request.model}' are saturated: {waited}"
    return TooManyRequests(what, code="slo_unreachable", kind=KIND, wait_s=wait_s)


def unreachable(request: InferenceRequest, first_s: float) -> TooManyRequests:
    """Before it waited."""
    assert request.slo_ttft_s is not None
    wanted_s = request.slo_ttft_s
    what = f"the first token would come in about {first_s:.3g} s, and is wanted in {wanted_s:.3g} s"
    return TooManyRequests(what, code="slo_unreachable", kind=KIND, wait_s=first_s - wanted_s)


def stopping() -> NoWorker:
    return NoWorker("the gateway is stopping, and this request had not begun", retry_after_s=1)
