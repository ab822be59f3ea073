"""Access log: a line per request, as JSON for machines or text for people. Never the prompt."""

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from gateway.core.printable import printable_json
from gateway.core.route_table import CHAT, COMPLETIONS, RESPONSES
from gateway.observability.request_end import RequestEnd, error_origin
from gateway.observability.traceparent import PARENT, read

log = logging.getLogger("kvgate.requests")

MAX_NAME_CHARS = 128
"""Limit on strings that clients choose: request ids, models."""

GENERATING = frozenset({CHAT, COMPLETIONS, RESPONSES, "/v1/messages"})
"""Routes with a first token and a prompt's cached tokens."""

Write = Callable[[bytes], None]


class RequestLine(msgspec.Struct):
    """A line of the access log. Every field is always present, null where unknown or absent; see
    docs/operations/operating.md."""

    time: datetime
    level: str
    logger: str
    request_id: str
    decision_id: str | None
    trace_id: str | None
    client: str | None
    tenant: str | None
    route: str | None
    model: str | None
    adapter: str | None
    stream: bool | None
    policy: str | None
    worker: str | None
    prefill_worker: str | None
    prompt_tokens: int | None
    predicted_cached_tokens: int | None
    reported_cached_tokens: int | None
    output_tokens: int | None
    queued_s: float
    ttft_s: float | None
    total_s: float
    status: int | None
    result: str
    error: str | None
    error_origin: str | None
    retries: int


_encode = msgspec.json.Encoder().encode


class JsonLines:
    """Writes each request as a line of JSON, encoded at once so that the request can be freed."""

    def __init__(self, write: Write, clock: Callable[[], float] = time.time) -> None:
        self._write = write
        self._clock = clock

    def __call__(self, end: RequestEnd) -> None:
        self._write(printable_json(_encode(line_of(end, self._clock()))) + b"\n")


class TextLines:
    """Logs each request as text, among the program's own messages."""

    def __call__(self, end: RequestEnd) -> None:
        line = line_of(end, 0.0)
        error = f"{line.error or line.status} by the {line.error_origin}" if line.error_origin else None
        if line.worker is None:
            what = line.model or line.route or "a request"
            log.info(
                "%s %s: status %s  %s  after %s  tenant %s  [%s]%s",
                what,
                "client disconnected" if end.result == "client_disconnected" else "rejected",
                line.status or "-",
                error,
                _ms(line.total_s),
                line.tenant or "-",
                line.request_id or "-",
                _from(line),
            )
            return
        generates = line.route in GENERATING or line.route is None
        reason = end.decision.reason if end.decision else ""
        log.info(
            "%s -> %s  status %s%s%s%s total %s  %s  [%s, request %s]%s",
            line.model,
            f"{line.prefill_worker} -> {line.worker}" if line.prefill_worker else line.worker,
            line.status or "-",
            "" if generates else f"  {line.route}",
            _cached_words(line) if generates and line.prompt_tokens else "",
            _first_token_words(line) if generates else " ",
            _ms(line.total_s),
            ", ".join(filter(None, [end.result if end.result != "ended" else reason, error])),
            line.decision_id,
            line.request_id or "-",
            _from(line),
        )


def _first_token_words(line: RequestLine) -> str:
    return f"  TTFT {_ms(line.ttft_s)}," if line.ttft_s is not None else "  not streamed,"


def _cached_words(line: RequestLine) -> str:
    cached = line.reported_cached_tokens
    return (
        f"  {line.predicted_cached_tokens} of {line.prompt_tokens} prompt tokens predicted cached (engine: "
        f"{'?' if cached is None else cached} cached)"
    )


def line_of(end: RequestEnd, now: float) -> RequestLine:
    """The access log line of a request that ended; `now` is seconds since 1970."""
    request, decision, usage = end.request, end.decision, end.usage
    query = decision.query if decision else None
    prefill = decision.prefill if decision else None
    num_tokens = (usage.prompt_tokens if usage else 0) or (decision.num_tokens if decision else 0)
    return RequestLine(
        time=datetime.fromtimestamp(now, UTC),
        level="info",
        logger="kvgate.requests",
        request_id=end.request_id[:MAX_NAME_CHARS].decode("latin-1"),
        decision_id=decision.id if decision else None,
        trace_id=trace_of(end),
        client=client_of(end),
        tenant=end.tenant,
        route=end.route,
        model=request.model[:MAX_NAME_CHARS] if request else None,
        adapter=query.adapter if query else None,
        stream=request.stream if request else None,
        policy=decision.policy if decision else None,
        worker=decision.worker.id if decision else None,
        prefill_worker=prefill.id if prefill else None,
        prompt_tokens=num_tokens or None,
        predicted_cached_tokens=decision.overlap_tokens if decision else None,
        reported_cached_tokens=usage.cached_tokens if usage else None,
        output_tokens=usage.completion_tokens if usage else None,
        queued_s=round(request.queued_s, 6) if request else 0.0,
        ttft_s=None if end.ttft_s is None else round(end.ttft_s, 6),
        total_s=round(end.lasted_s, 6),
        status=end.status or None,
        result=end.result,
        error=end.fault or None,
        error_origin=error_origin(end),
        retries=end.retries,
    )


def client_of(end: RequestEnd) -> str | None:
    """The client's address: the connection's peer, or as trusted proxies reported it (`--trusted-proxies`);
    None over a Unix socket."""
    return (end.http.client or None) if end.http else None


def _from(line: RequestLine) -> str:
    return f"  from {line.client}" if line.client else ""


def trace_of(end: RequestEnd) -> str | None:
    """The trace id: kvgate's own, or the client's where tracing is off (W3C Trace Context)."""
    span = read(end.http.header(PARENT)) if end.http else None
    return span.trace_id if span else None


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"
