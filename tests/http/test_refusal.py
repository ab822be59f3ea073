"""Refusals of engines, in the words of each: a table."""

import pytest

from gateway.http.messages import Header, ResponseHead
from gateway.http.refusal import BUSY_S, FULL, MAX_BUSY_S, is_full_error, is_refusal, refusal_of
from tests.support.blackbox.engine_refusals import SGLANG, VLLM_REQUESTS, VLLM_TOKENS

OLLAMA = b'{"error":"server busy, please try again.  maximum pending requests exceeded"}'
ANTHROPIC = b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}'
NOW_S = 1_792_567_680.0
"""Wed, 21 Oct 2026 07:28:00 GMT."""
LLAMA_CPP_LOADING = b'{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}'


@pytest.mark.parametrize(
    ("status", "headers", "body", "is_busy", "busy_s"),
    [
        (503, [], VLLM_REQUESTS, True, BUSY_S),
        (503, [], VLLM_TOKENS, True, BUSY_S),
        (503, [], SGLANG, True, BUSY_S),
        (
            503,
            [],
            SGLANG.replace(b"The request queue is full", b"Request queue timeout reached"),
            True,
            BUSY_S,
        ),
        (503, [], OLLAMA, True, BUSY_S),
        (503, [], LLAMA_CPP_LOADING, False, BUSY_S),
        (503, [], b"", False, BUSY_S),  # vLLM's /health of a dead engine
        (503, [], b"Service Unavailable", False, BUSY_S),
        (503, [(b"retry-after", b"3")], b"", True, 3.0),
        (503, [(b"retry-after", b" 3 ")], b"", True, 3.0),
        (503, [(b"retry-after", b"86400")], b"", True, MAX_BUSY_S),
        (503, [(b"retry-after", b"0")], b"", True, BUSY_S),
        (503, [(b"retry-after", b"-5")], b"", False, BUSY_S),
        (503, [(b"retry-after", b"9" * 400)], b"", True, MAX_BUSY_S),
        (503, [(b"retry-after", b"soon")], b"", False, BUSY_S),
        (503, [(b"retry-after", b"2.5")], b"", True, 2.5),
        (503, [(b"retry-after-ms", b"1500")], b"", True, 1.5),
        (503, [(b"retry-after", b"Wed, 21 Oct 2026 07:28:05 GMT")], b"", True, 5.0),
        (503, [(b"retry-after", b"Wed, 21 Oct 2026 07:27:00 GMT")], b"", True, BUSY_S),  # in the past
        (529, [], b"", True, BUSY_S),
        (529, [(b"retry-after", b"4")], ANTHROPIC, True, 4.0),
        (503, [], ANTHROPIC, True, BUSY_S),
        (503, [], b'{"error":{"type":"engine_overloaded_error","message":"try again"}}', True, BUSY_S),
        (503, [], b'{"error":{"type":"rate_limit_error","message":"try again"}}', True, BUSY_S),
        (503, [], b"Request dropped due to backpressure (num_queued_requests=9)", True, BUSY_S),
        (503, [], b"Service temporarily unavailable: All workers are busy", True, BUSY_S),
        (503, [], b'{"error":"Exceeds maximum queue size"}', True, BUSY_S),
        (
            503,
            [],
            b"upstream connect error or disconnect/reset before headers. reset reason: overflow",
            True,
            1.0,
        ),
        (503, [], b'{"error":"no slot available"}', True, BUSY_S),
        (500, [], ANTHROPIC, True, BUSY_S),
        (500, [], b'{"message":"the request queue is full"}', False, BUSY_S),  # words alone prove nothing
        (500, [(b"retry-after", b"3")], b"", False, 3.0),
        (500, [], rb'{"error":{"message":"bad prompt: {\"type\":\"overloaded_error\"}"}}', False, BUSY_S),
        (503, [], b'{"error":{"type":"RateLimitError","message":"try again"}}', True, BUSY_S),
        (503, [], b'{"error":{"type":"TooManyRequestsError","message":"try again"}}', True, BUSY_S),
        (503, [], b'{"error":{"type":"server_error","code":"slow_down","message":"x"}}', True, BUSY_S),
        (503, [], b'{"error":{"type":"error","code":429,"message":"x"}}', True, BUSY_S),
        (503, [], b'{"error":{"code": 529}}', True, BUSY_S),
        (503, [], b'{"error":{"code":4290}}', False, BUSY_S),
        (503, [], b'{"message":"No GPU capacity, try again later"}', True, BUSY_S),
        (503, [], b'{"message":"Queue already full"}', True, BUSY_S),
        (503, [], b"The server is too busy", True, BUSY_S),
        (503, [], b"the engine is loading", False, BUSY_S),
        (500, [], b'{"error":{"type":"ResourceExhausted","message":"x"}}', True, BUSY_S),
        (500, [], b'{"error":{"type":"grpc.RESOURCE_EXHAUSTED"}}', True, BUSY_S),
        (500, [], b'{"error":{"type":"QueueFullError","message":"x"}}', True, BUSY_S),
        (500, [], b'{"error":{"type":"internal_error","code":500}}', False, BUSY_S),
        (429, [], b'{"error":"Model is overloaded","error_type":"overloaded"}', True, BUSY_S),
        (429, [(b"retry-after", b"2")], b"", True, 2.0),
    ],
)
def test_saturated_engines_are_distinguished_from_failed_ones(
    status: int, headers: list[Header], body: bytes, is_busy: bool, busy_s: float
) -> None:
    assert is_refusal(status)
    refusal = refusal_of(ResponseHead(status, headers, len(body)), body, NOW_S)
    assert refusal.is_retryable == (is_busy or status == 503)
    assert (refusal.is_busy, refusal.busy_s) == (is_busy, busy_s)
    assert refusal.reason.endswith(f"({status})" if is_busy else str(status))


@pytest.mark.parametrize("status", [200, 400, 404, 501, 502, 504, 599])
def test_other_answers_are_no_refusals(status: int) -> None:
    assert not is_refusal(status)


@pytest.mark.parametrize(
    ("headers", "body", "expected"),
    [
        ([], VLLM_REQUESTS, [(b"retry-after", b"1")]),
        ([(b"retry-after", b"120")], VLLM_REQUESTS, [(b"retry-after", b"120")]),  # the engine's own
        ([], b"dead", []),
    ],
)
def test_a_client_learns_when_to_come_back(
    headers: list[Header], body: bytes, expected: list[Header]
) -> None:
    head = ResponseHead(503, headers, len(body))
    assert refusal_of(head, body, NOW_S).to_client(head).headers == expected
    assert head.headers == headers, "the worker's head is left as it is"


def test_the_table_has_every_status_of_the_family() -> None:
    assert sorted(FULL) == [429, 500, 503, 529]


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (b'data: {"error":{"message":"The request queue is full.","code":503}}\n\n', True),
        (b'data: {"type":"error","error":{"type":"overloaded_error"}}\n\n', True),
        (b'data: {"error":{"message":"KV transfer failed","code":500}}\n\n', False),
    ],
)
def test_error_events_of_saturated_engines_are_known(event: bytes, expected: bool) -> None:
    assert is_full_error(event) is expected
