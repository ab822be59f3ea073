"""Rejections as clients see them: status, code, reason, and Retry-After."""

import json

import pytest

from gateway.core.errors import GatewayError
from gateway.core.request import InferenceRequest
from gateway.core.route_table import RouteKind
from gateway.tenancy.admission import rejections


def request() -> InferenceRequest:
    asked = InferenceRequest(RouteKind.COMPLETION, "/v1/completions", b"{}", {"model": "m"})
    asked.slo_ttft_s = 1.5
    return asked


@pytest.mark.parametrize(
    ("error", "status", "code", "retry_after_s", "words"),
    [
        (rejections.queue_full("m", 7.21), 429, "queue_full", 8, "full: retry in about 7.21 s"),
        (rejections.queue_full("m", 1e9), 429, "queue_full", 60, "full"),
        (
            rejections.queue_timeout(request(), 50.0, 3.0),
            429,
            "queue_timeout",
            3,
            "queue timeout after 50 s",
        ),
        (rejections.slo_missed(request(), 1.5, 0.2), 429, "slo_unreachable", 1, "TTFT SLO of 1.5 s"),
        (
            rejections.slo_unreachable(request(), 4.0),
            429,
            "slo_unreachable",
            3,
            "4 s exceeds the SLO of 1.5 s",
        ),
        (rejections.stopping(), 503, "no_worker", 1, "the gateway is shutting down"),
    ],
)
def test_a_rejection_has_reason_and_retry_after(
    error: GatewayError, status: int, code: str, retry_after_s: int, words: str
) -> None:
    assert (error.status, error.code, error.retry_after_s) == (status, code, retry_after_s)
    assert words in json.loads(error.body())["error"]["message"]
