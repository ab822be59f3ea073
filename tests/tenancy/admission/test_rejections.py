"""What clients are told: status, code, reason, and when to ask again."""

import json

import pytest

from gateway.core.errors import GatewayError
from gateway.core.requests.request import InferenceRequest
from gateway.core.requests.routes import Kind
from gateway.tenancy.admission import rejections


def request() -> InferenceRequest:
    asked = InferenceRequest(Kind.COMPLETION, "/v1/completions", b"{}", {"model": "m"})
    asked.slo_ttft_s = 1.5
    return asked


@pytest.mark.parametrize(
    ("error", "status", "code", "retry_after_s", "words"),
    [
        (rejections.no_room("m", 7.21), 429, "queue_full", 8, "full: about 7.21 s of work"),
        (rejections.no_room("m", 1e9), 429, "queue_full", 60, "full"),
        (
            rejections.waited_too_long(request(), 50.0, 3.0),
            429,
            "queue_timeout",
            3,
            "it waited 50 s",
        ),
        (rejections.waited_in_vain(request(), 1.5, 0.2), 429, "slo_unreachable", 1, "first token in 1.5 s"),
        (
            rejections.unreachable(request(), 4.0),
            429,
            "slo_unreachable",
            3,
            "4 s, and is wanted in 1.5 s",
        ),
        (rejections.stopping(), 503, "no_worker", 1, "the gateway is stopping"),
    ],
)
def test_a_refusal_says_why_and_when_to_ask_again(
    error: GatewayError, status: int, code: str, retry_after_s: int, words: str
) -> None:
    assert (error.status, error.code, error.retry_after_s) == (status, code, retry_after_s)
    assert words in json.loads(error.body())["error"]["message"]
