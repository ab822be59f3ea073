"""Refusals of engines, in the words of each: a table."""

import pytest

from gateway.http.messages import Header, ResponseHead
from gateway.http.refusal import BUSY_S, MAX_BUSY_S, is_refusal, refusal_of

VLLM_REQUESTS = (
    b'{"error":{"message":"The engine is currently busy and cannot accept new requests. Please try '
    b'again later or on a different instance.","type":"Service Unavailable","param":null,"code":503}}'
)
VLLM_TOKENS = (
    b'{"error":{"message":"The engine has reached its prefill token backlog limit. Please try '
    b'again later or on a different instance.","type":"Service Unavailable","param":null,"code":503}}'
)
SGLANG = (
    b'{"object":"error","message":"The request queue is full.","type":"HTTPStatus.SERVICE_UNAVAILABLE",'
    b'"param":null,"code":503}'
)
OLLAMA = b'{"error":"server busy, please try again.  maximum pending requests exceeded"}'
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
        (503, [(b"retry-after", b"9" * 400)], b"", False, BUSY_S),
        (503, [(b"retry-after", b"Wed, 21 Oct 2026 07:28:00 GMT")], b"", False, BUSY_S),
        (429, [], b'{"error":"Model is overloaded","error_type":"overloaded"}', True, BUSY_S),
        (429, [(b"retry-after", b"2")], b"", True, 2.0),
    ],
)
def test_saturated_engines_are_distinguished_from_failed_ones(
    status: int, headers: list[Header], body: bytes, is_busy: bool, busy_s: float
) -> None:
    assert is_refusal(status)
    refusal = refusal_of(ResponseHead(status, headers, len(body)), body)
    assert (refusal.is_busy, refusal.busy_s) == (is_busy, busy_s)
    assert refusal.reason.endswith(f"({status})" if is_busy else str(status))


@pytest.mark.parametrize("status", [200, 400, 404, 500, 502, 504])
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
    assert refusal_of(head, body).to_client(head).headers == expected
    assert head.headers == headers, "the worker's head is left as it is"
