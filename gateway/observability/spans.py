"""OpenTelemetry spans of a request: names and numbers by the GenAI conventions, no content.

    chat MODEL (server) ─┬─ tokenize ─ queue ─ decide      from the request's arrival on
                         └─ prefill ─ decode               from sending on; the first token separates them

An answer that is not streamed shows no first token, so it has a single span, `prefill and decode`. Where a
worker made the tokens, `tokenize` is the time before sending that was neither queue nor decision.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from gateway.core.route_table import route_of
from gateway.observability.access_log import MAX_NAME_CHARS
from gateway.observability.request_end import RequestEnd, error_origin

Value = str | int | float | bool

ELSEWHERE = "worker"
"""Token source of prompts that a worker tokenized (`Prompt.source`)."""


SENT = frozenset({"prefill", "decode", "prefill and decode", "send"})
"""Names of the spans that take place at a worker."""


class TimedSpan(NamedTuple):
    """A span of time on the loop's clock."""

    name: str
    begin_s: float
    end_s: float
    attributes: Mapping[str, Value]


def name_of(end: RequestEnd) -> str:
    model = end.request.model[:MAX_NAME_CHARS] if end.request else ""
    return f"{operation_of(end)} {model}".strip()


def operation_of(end: RequestEnd) -> str:
    route = end.route or ""
    return route_of(route).operation or route.rpartition("/")[2] or "request"


def attributes_of(end: RequestEnd) -> dict[str, Value]:
    """Attributes of the request's root span."""
    request, decision, usage = end.request, end.decision, end.usage
    attributes: dict[str, Value | None] = {
        "gen_ai.operation.name": operation_of(end),
        "gen_ai.request.model": request.model[:MAX_NAME_CHARS] if request else None,
        "gen_ai.request.stream": request.stream if request else None,
        "gen_ai.provider.name": decision.worker.engine if decision else None,
        "gen_ai.usage.input_tokens": usage.prompt_tokens if usage else None,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens if usage else None,
        "gen_ai.usage.output_tokens": usage.completion_tokens if usage else None,
        "gen_ai.response.time_to_first_chunk": end.ttft_s,
        "http.request.method": end.http.method if end.http else None,
        "http.route": end.route,
        "http.response.status_code": end.status or None,
        "error.type": end.fault or (str(end.status) if end.status >= 500 else None),
        "kvgate.error_origin": error_origin(end),
        "kvgate.result": end.result,
        "kvgate.request_id": end.request_id[:MAX_NAME_CHARS].decode("latin-1"),
        "kvgate.tenant": end.tenant,
        "kvgate.decision_id": decision.id if decision else None,
        "kvgate.worker": decision.worker.id if decision else None,
        "kvgate.retries": end.retries,
    }
    return {name: value for name, value in attributes.items() if value is not None}


def parts_of(end: RequestEnd) -> Sequence[TimedSpan]:
    return list(_parts(end))


def _parts(end: RequestEnd) -> Iterator[TimedSpan]:
    decision, request = end.decision, end.request
    queued_s = request.queued_s if request else 0.0
    if decision is None:
        if queued_s:
            yield TimedSpan("queue", end.ended_s - queued_s, end.ended_s, {})
        return
    timings = decision.timings_s
    decide_s = timings.hash + timings.index + timings.policy
    tokenize_s = timings.prompt
    if decision.prompt_from == ELSEWHERE and end.retries == 0:
        tokenize_s = max(end.sent_s - end.arrived_s - queued_s - decide_s, tokenize_s)
    at = end.arrived_s + tokenize_s
    by: dict[str, Value] = {
        "kvgate.tokenized_by": decision.prompt_from,
        "kvgate.prompt_tokens": decision.num_tokens,
    }
    yield TimedSpan("tokenize", end.arrived_s, at, by)
    if queued_s:
        yield TimedSpan("queue", at, at + queued_s, {})
        at += queued_s
    chosen: dict[str, Value] = {
        "kvgate.policy": decision.policy,
        "kvgate.candidates": len(decision.candidates),
        "kvgate.predicted_cached_tokens": decision.overlap_tokens,
    }
    yield TimedSpan("decide", at, at + decide_s, chosen)
    yield from _answer(end, max(at + decide_s, end.arrived_s))


def _answer(end: RequestEnd, decided_s: float) -> Iterator[TimedSpan]:
    decision = end.decision
    assert decision is not None
    computing = decision.prefill or decision.worker
    began_s = decided_s if decision.prefill else max(end.sent_s, decided_s)
    on = {"kvgate.worker": decision.worker.id}
    if end.ttft_s is None:
        yield TimedSpan(
            "prefill and decode" if end.status == 200 else "send", began_s, max(end.ended_s, began_s), on
        )
        return
    first_s = max(end.arrived_s + end.ttft_s, began_s)
    yield TimedSpan("prefill", began_s, first_s, {"kvgate.worker": computing.id})
    yield TimedSpan("decode", first_s, max(end.ended_s, first_s), on)
