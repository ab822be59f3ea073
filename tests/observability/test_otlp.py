"""Trace export: bounded and counted, without delaying requests."""

import logging
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.trace import SpanKind, StatusCode
from prometheus_client import CollectorRegistry, generate_latest

from gateway.observability.otlp import Traces
from gateway.observability.request_end import RequestEnd
from gateway.observability.traceparent import PARENT, read
from tests.support.ended_requests import TRACEPARENT, ended_request


class Exporter:
    """Exporter with a given result, which waits until released."""

    def __init__(self, says: object = SpanExportResult.SUCCESS) -> None:
        self.says = says
        self.spans: list[Any] = []
        self.is_let = threading.Event()
        self.is_let.set()
        self.was_shut = False

    def export(self, spans: Sequence[Any]) -> object:
        self.is_let.wait()
        if isinstance(self.says, Exception):
            raise self.says
        self.spans += spans
        return self.says

    def shutdown(self) -> None:
        self.was_shut = True


def one(traces: Traces, *headers: tuple[bytes, bytes], peer: str = "10.0.0.1", **changes: Any) -> RequestEnd:
    request_end = ended_request(*headers, **changes)
    assert request_end.http is not None
    traces.begin(request_end.http, peer)
    traces.ended(request_end)
    return request_end


@pytest.mark.parametrize("is_trusted", [True, False])
def test_a_trusted_clients_trace_is_followed_and_another_linked_to(is_trusted: bool) -> None:
    exporter = Exporter()
    traces = Traces(exporter, lambda peer: is_trusted)
    request_end = one(traces, TRACEPARENT, result="aborted", fault="answer_cut")
    traces.close()
    root, *parts = exporter.spans
    client, worker = read(TRACEPARENT[1]), read(request_end.http.header(PARENT)) if request_end.http else None
    assert client is not None and worker is not None and exporter.was_shut
    assert (
        f"{root.context.trace_id:032x}" == worker.trace_id
        and f"{root.context.span_id:016x}" == worker.span_id
    )
    assert (worker.trace_id == client.trace_id) is is_trusted
    if is_trusted:
        assert f"{root.parent.span_id:016x}" == client.span_id and not root.links
    else:
        assert root.parent is None and f"{root.links[0].context.trace_id:032x}" == client.trace_id
    assert (root.name, root.kind, root.status.status_code) == ("chat m", SpanKind.SERVER, StatusCode.ERROR)
    assert [part.name for part in parts] == ["tokenize", "queue", "decide", "prefill", "decode"]
    assert all(part.parent == root.context and part.start_time <= part.end_time for part in parts)
    assert (root.end_time - root.start_time) == pytest.approx(2e9, abs=1000)
    assert traces.num_exported == 1


def test_a_trusted_client_decides_on_sampling() -> None:
    exporter = Exporter()
    traces = Traces(exporter, lambda peer: True)
    one(traces, (PARENT, TRACEPARENT[1][:-2] + b"00"))
    one(Traces(exporter, lambda peer: False, ratio=0.0), TRACEPARENT)
    assert not exporter.spans and repr(traces) == "Traces(0 queued, dropped=0, failed=0)"


def test_a_stalled_exporter_drops_traces_only() -> None:
    exporter = Exporter()
    exporter.is_let.clear()
    traces = Traces(exporter, lambda peer: False, max_queued=4)
    for _ in range(200):
        one(traces)
    assert traces.num_dropped >= 200 - 4 - 128 - 1
    traces._queue.queue.clear()
    exporter.is_let.set()
    traces.close()
    assert traces.num_exported + traces.num_dropped <= 200


@pytest.mark.parametrize("says", [SpanExportResult.FAILURE, ConnectionError("refused")])
def test_a_failing_exporter_is_logged_once_and_counted(
    says: object, caplog: pytest.LogCaptureFixture
) -> None:
    traces = Traces(Exporter(says), lambda peer: False)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            one(traces)
        traces.close()
    assert caplog.text.count("trace export failing") == 1
    registry = CollectorRegistry()
    registry.register(traces)
    assert 'kvgate_traces_total{result="failed"} 3.0' in generate_latest(registry).decode()


def test_a_request_without_a_trace_is_not_exported() -> None:
    exporter = Exporter()
    traces = Traces(exporter, lambda peer: False)
    traces.ended(ended_request())
    traces.close()
    assert not exporter.spans
