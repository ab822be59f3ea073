"""Trace export (`--otlp-endpoint`): a trace per request by OTLP over HTTP. Needs the extra `kvgate[otel]`.

    begin: trace id, sent to the worker ─► … ─► ended ─► queue, bounded ─► thread: make spans, export
                                                           └─ full: dropped, counted

The event loop only puts a reference into a queue. An exporter that is down or slow blocks only the thread.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, Full, Queue
from typing import Any, Protocol

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.core.errors import ConfigError
from gateway.http.messages import HttpRequest
from gateway.observability.metric_spec import counter
from gateway.observability.request_end import RequestEnd
from gateway.observability.spans import SENT, attributes_of, name_of, parts_of
from gateway.observability.traceparent import PARENT, RequestTrace, SpanContext, begin, read, traced
from gateway.runtime.ids import new_id

log = logging.getLogger("kvgate.traces")

MAX_QUEUED = 2048
MAX_BATCH = 128
"""Traces per export, each of at most six spans."""
PAUSE_S = 0.5
"""Pause between two exports, so that traces are exported in batches."""
CLOSE_S = 2.0
EXPORT_TIMEOUT_S = 5.0

TRACES = counter("kvgate_traces_total", "Sampled traces of requests, by result of the export.", "result")
METRICS = (TRACES,)

Item = tuple[RequestEnd, RequestTrace, float]
"""A request, its trace, and the offset from the loop's clock to seconds since 1970."""


class Exporter(Protocol):
    def export(self, spans: Sequence[Any]) -> object: ...
    def shutdown(self) -> None: ...


def otlp_exporter(endpoint: str) -> Exporter:
    """An OTLP exporter over HTTP. Raises ConfigError if the extra is not installed."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as exc:
        raise ConfigError(f"otlp_endpoint: needs `pip install kvgate[otel]`: {exc}") from exc
    for name in ("opentelemetry", "urllib3"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # failures are counted and logged once, below
    return OTLPSpanExporter(endpoint, timeout=EXPORT_TIMEOUT_S)


class Traces(Collector):
    """Begins and exports traces. `trusts` decides by a peer's address whether its traces are continued;
    `ratio` is the share of traces begun here that is sampled."""

    def __init__(
        self,
        exporter: Exporter,
        trusts: Callable[[str | None], bool],
        ratio: float = 1.0,
        *,
        max_queued: int = MAX_QUEUED,
        rng: random.Random | None = None,
    ) -> None:
        self.trusts = trusts
        self.num_exported = self.num_failed = self.num_dropped = 0
        self._exporter = exporter
        self._ratio = ratio
        self._rng = rng or random.Random()
        self._queue: Queue[Item | None] = Queue(max_queued)
        self._thread: threading.Thread | None = None
        self._is_failing = False

    def __repr__(self) -> str:
        return f"Traces({self._queue.qsize()} queued, dropped={self.num_dropped}, failed={self.num_failed})"

    # the data path ------------------------------------------------------------------------------

    def begin(self, http: HttpRequest, peer: str | None) -> None:
        client = read(http.header(PARENT))
        is_child = client is not None and self.trusts(peer)
        if client is not None and is_child:
            own = SpanContext(client.trace_id, new_id(8), client.is_sampled)
        else:
            own = SpanContext(new_id(16), new_id(8), self._rng.random() < self._ratio)
        begin(http, own, client, is_child=is_child)

    def ended(self, end: RequestEnd) -> None:
        found = traced(end.http)
        if found is None or not found.own.is_sampled:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._export_all, name="traces", daemon=True)
            self._thread.start()
        try:
            self._queue.put_nowait((end, found, time.time() - end.ended_s))
        except Full:
            self.num_dropped += 1

    def close(self) -> None:
        """Export the queued traces, as far as the endpoint accepts them within CLOSE_S."""
        if self._thread is not None:
            try:
                self._queue.put_nowait(None)
            except Full:
                return
            self._thread.join(CLOSE_S)

    # the thread ---------------------------------------------------------------------------------

    def _export_all(self) -> None:
        is_open = True
        while is_open:
            batch = self._take()
            is_open = batch[-1] is not None
            full = [item for item in batch if item is not None]
            try:
                is_sent = bool(full) and self._export(full)
            except Exception as exc:  # noqa: BLE001  others' code, and a thread that must live
                self._say(f"{type(exc).__name__}: {exc}")
                is_sent = False
            if is_sent:
                self._is_failing = False
                self.num_exported += len(full)
            else:
                self.num_failed += len(full)
            if is_open and self._queue.qsize() < MAX_BATCH:
                time.sleep(PAUSE_S)
        self._exporter.shutdown()

    def _take(self) -> list[Item | None]:
        items = [self._queue.get()]
        while items[-1] is not None and len(items) < MAX_BATCH:
            try:
                items.append(self._queue.get_nowait())
            except Empty:
                break
        return items

    def _export(self, items: Sequence[Item]) -> bool:
        from opentelemetry.sdk.trace.export import SpanExportResult

        spans = [span for end, found, since in items for span in spans_of(end, found, since)]
        is_sent = self._exporter.export(spans) is SpanExportResult.SUCCESS
        if not is_sent:
            self._say("the endpoint failed or returned an error")
        return is_sent

    def _say(self, why: str) -> None:
        if not self._is_failing:
            self._is_failing = True
            log.warning("trace export failing: %s; lost traces are counted in kvgate_traces_total", why)

    # metrics ------------------------------------------------------------------------------------

    def collect(self) -> Iterator[Metric]:
        results = (
            ("exported", self.num_exported),
            ("failed", self.num_failed),
            ("dropped", self.num_dropped),
        )
        yield TRACES.family(results)


def spans_of(end: RequestEnd, found: RequestTrace, since: float) -> Iterator[Any]:
    """The request's spans as SDK objects. kvgate made the ids, which the worker received with the request."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import Link, SpanKind, Status, StatusCode

    resource = Resource({"service.name": "kvgate"})
    own, client = _context(found.own), found.client
    theirs = _context(client, is_remote=True) if client else None
    is_error = end.status >= 500 or end.result in ("aborted", "failed")

    def ns(seconds: float) -> int:
        return round((seconds + since) * 1e9)

    yield ReadableSpan(
        name_of(end),
        own,
        parent=theirs if found.is_child else None,
        resource=resource,
        attributes=attributes_of(end),
        links=[Link(theirs)] if theirs and not found.is_child else [],
        kind=SpanKind.SERVER,
        status=Status(StatusCode.ERROR if is_error else StatusCode.UNSET),
        start_time=ns(end.arrived_s),
        end_time=ns(end.ended_s),
    )
    for part in parts_of(end):
        yield ReadableSpan(
            part.name,
            _context(SpanContext(found.own.trace_id, new_span_id(), True)),
            parent=own,
            resource=resource,
            attributes=part.attributes,
            kind=SpanKind.CLIENT if part.name in SENT else SpanKind.INTERNAL,
            start_time=ns(part.begin_s),
            end_time=ns(part.end_s),
        )


def _context(span: SpanContext, *, is_remote: bool = False) -> Any:
    from opentelemetry.trace import SpanContext, TraceFlags

    return SpanContext(int(span.trace_id, 16), int(span.span_id, 16), is_remote, TraceFlags(1))


def new_span_id() -> str:
    """A span id made in the export thread, from a generator of its own: `new_id` belongs to the loop."""
    return f"{_random.getrandbits(64) | 1:016x}"


_random = random.SystemRandom()
