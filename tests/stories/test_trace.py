"""Traces of a running gateway: from client to worker, and to a collector that may be down."""

import http.client
import json
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from urllib.parse import urlsplit

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from loadtest.day_redaction import COMPLETIONS, ECHO, Echo, TraceCollector, echo_worker
from tests.support.gateway_process import GatewayProcess
from tests.support.patience import patience, wait_until

pytestmark = pytest.mark.process

CLIENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
DEADLINE_S = patience(20.0)


class TracedEcho(Echo):
    """A worker that keeps the `traceparent` of each request."""

    traceparents: list[str] = []

    def do_POST(self) -> None:
        if self.path == COMPLETIONS:
            self.traceparents.append(self.headers["traceparent"])
        super().do_POST()


class TraceCollector(TraceCollector):
    taken: list[bytes] = []


class SilentCollector(BaseHTTPRequestHandler):
    """A collector that accepts connections and requests, and never answers."""

    def do_POST(self) -> None:
        time.sleep(60)


def ask(gateway: GatewayProcess, headers: Mapping[str, str]) -> int:
    client = http.client.HTTPConnection(urlsplit(gateway.url).netloc, timeout=patience(30))
    try:
        body = json.dumps({"model": ECHO, "prompt": "x"})
        client.request("POST", COMPLETIONS, body, {"content-type": "application/json", **headers})
        answer = client.getresponse()
        answer.read()
        return answer.status
    finally:
        client.close()


@pytest.mark.parametrize("flags", [(), ("--processes", "2")], ids=["one process", "two"])
@pytest.mark.parametrize("is_trusted", [True, False], ids=["trusted", "not"])
def test_trace_continues_from_the_client_to_the_worker(is_trusted: bool, flags: tuple[str, ...]) -> None:
    TracedEcho.traceparents.clear()
    TraceCollector.taken.clear()
    trust = ("--trust-headers-from", "127.0.0.0/8") if is_trusted else ()
    with echo_worker(TracedEcho) as worker, echo_worker(TraceCollector) as collector:
        sent_to = ("--otlp-endpoint", f"{collector}/v1/traces")
        with GatewayProcess("--worker", worker, *sent_to, *trust, *flags) as gateway:
            wait_until(lambda: [each["is_up"] for each in gateway.workers()] == [True])  # in each process
            assert ask(gateway, {"traceparent": CLIENT}) == 200
        # stopping sends the queued traces
    exports = [ExportTraceServiceRequest.FromString(each) for each in TraceCollector.taken]
    spans = [
        s for each in exports for r in each.resource_spans for scope in r.scope_spans for s in scope.spans
    ]
    (root,) = [span for span in spans if span.name == f"text_completion {ECHO}"]
    version, trace, span, flag = TracedEcho.traceparents[0].split("-")
    assert (root.trace_id.hex(), root.span_id.hex(), flag) == (trace, span, "01")
    assert (trace == CLIENT.split("-")[1]) is is_trusted and len(root.links) == (not is_trusted)
    children = [span.name for span in spans if span.parent_span_id == root.span_id]
    assert children == ["tokenize", "decide", "prefill and decode"]


@pytest.mark.parametrize("is_silent", [True, False], ids=["silent", "down"])
def test_requests_succeed_while_the_collector_is_down(is_silent: bool) -> None:
    with echo_worker(TracedEcho) as worker, echo_worker(SilentCollector) as silent:
        endpoint = f"{silent}/v1/traces" if is_silent else "http://127.0.0.1:9/v1/traces"
        with GatewayProcess("--worker", worker, "--otlp-endpoint", endpoint) as gateway:
            assert [ask(gateway, {}) for _ in range(50)] == [200] * 50
            wait_until(lambda: "trace export failing" in gateway.log())
            assert gateway.log().count("trace export failing") == 1
            assert 'kvgate_traces_total{result="exported"} 0.0' in gateway.metrics()
