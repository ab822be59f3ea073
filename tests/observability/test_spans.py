"""Spans of a request, and their attributes."""

from msgspec import structs

from gateway.core.decision import Timings
from gateway.core.value import replace
from gateway.observability.request_end import CUT, refusal
from gateway.observability.spans import attributes_of, name_of, parts_of
from tests.support.ended_requests import ended_request

TIMINGS = Timings(prompt=0.01, hash=0.001, index=0.002, policy=0.003)


def parts(**changes: object) -> list[tuple[str, float, float]]:
    request_end = ended_request(**changes)
    assert request_end.decision is not None
    request_end = structs.replace(request_end, decision=replace(request_end.decision, timings_s=TIMINGS))
    return [(part.name, round(part.begin_s, 3), round(part.end_s, 3)) for part in parts_of(request_end)]


def test_spans_of_a_stream_follow_each_other() -> None:
    assert parts() == [
        ("tokenize", 10.0, 10.01),
        ("queue", 10.01, 10.26),
        ("decide", 10.26, 10.266),
        ("prefill", 10.3, 10.5),
        ("decode", 10.5, 12.0),
    ]


def test_an_unstreamed_answer_is_one_span() -> None:
    assert parts(ttft_s=None)[3:] == [("prefill and decode", 10.3, 12.0)]
    assert parts(ttft_s=None, status=502, result="failed")[3:] == [("send", 10.3, 12.0)]


def test_no_span_ends_before_it_begins() -> None:
    for part in parts(sent_s=10.0, ttft_s=0.1, ended_s=10.2):
        assert part[1] <= part[2]


def test_a_request_rejected_in_the_queue_has_its_span() -> None:
    request_end = structs.replace(ended_request(), decision=None, result="failed", status=429)
    assert [(part.name, part.begin_s, part.end_s) for part in parts_of(request_end)] == [
        ("queue", 11.75, 12.0)
    ]
    assert parts_of(refusal(None, None, 400, 1.0)) == []


def test_attributes_follow_the_conventions() -> None:
    request_end = attributes_of(ended_request(result="aborted", fault=CUT))
    assert request_end == {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.request.stream": True,
        "gen_ai.provider.name": "vllm",
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.cache_read.input_tokens": 48,
        "gen_ai.usage.output_tokens": 9,
        "gen_ai.response.time_to_first_chunk": 0.5,
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "error.type": "answer_cut",
        "kvgate.error_origin": "worker",
        "kvgate.result": "aborted",
        "kvgate.request_id": "r1",
        "kvgate.tenant": "acme",
        "kvgate.decision_id": "d1",
        "kvgate.worker": "a:1",
        "kvgate.retries": 1,
    }
    assert name_of(ended_request()) == "chat m"
