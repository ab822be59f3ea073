"""The page of metrics, read with Prometheus's own parser."""

from collections.abc import Iterable
from platform import python_version

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from gateway.core.event_stream import StreamCounts, StreamState
from gateway.core.fleet import Fleet
from gateway.core.kv_events import BlocksRemoved
from gateway.core.ledger import Ledger
from gateway.core.usage import Usage
from gateway.core.usage_reading import read_usage
from gateway.core.value import replace
from gateway.core.worker import LOAD_FIGURES, ReportedLoad, WorkerId
from gateway.observability.collector import METRICS, MetricsCollector, registry_of
from gateway.observability.metrics import Metrics
from tests.support.fakes import Known, decision, worker

A = WorkerId("a:1")


class CollectorWorld:
    """A gateway with one worker and its event stream, and the page that Prometheus reads."""

    def __init__(self, *workers: str) -> None:
        self.metrics, self.fleet, self.ledger, self.known = Metrics(), Fleet(), Ledger(), Known(*workers)
        self.streams: dict[WorkerId, StreamCounts] = {}
        for name in workers:
            self.fleet.add(worker(name))
            self.streams[WorkerId(name)] = StreamCounts()
        self.registry = CollectorRegistry()
        self.registry.register(
            MetricsCollector(
                self.metrics,
                self.fleet,
                self.ledger,
                self.known.index,
                self.known.assumed,
                lambda: self.streams.items(),
                lambda: 3,
                ("1.2", True),
            )
        )

    def families(self) -> dict[str, Metric]:
        text = generate_latest(self.registry).decode()
        return {family.name: family for family in text_string_to_metric_families(text)}

    def value(self, name: str, **labels: str) -> float | None:
        for family in self.families().values():
            for sample in family.samples:
                if sample.name == f"kvgate_{name}" and sample.labels == labels:
                    return float(sample.value)
        return None


def usage(prompt: int, cached: int | None, completion: int | None = None) -> Usage:
    details = "" if cached is None else f',"prompt_tokens_details":{{"cached_tokens":{cached}}}'
    done = "" if completion is None else f',"completion_tokens":{completion}'
    found = read_usage(b'{"usage":{"prompt_tokens":%d%b%b}}' % (prompt, done.encode(), details.encode()))
    assert found is not None
    return found


def test_every_declared_metric_is_exported() -> None:
    names = {spec.name.removesuffix("_total") for spec in METRICS}
    assert CollectorWorld("a:1").families().keys() == names


def test_build_info_names_versions() -> None:
    (sample,) = CollectorWorld().families()["kvgate_build_info"].samples
    assert sample.labels == {"version": "1.2", "python": python_version(), "compiled": "true"}
    assert sample.value == 1


def test_an_empty_process_has_a_readable_page() -> None:
    families = CollectorWorld().families()
    assert len(families) == len(METRICS)
    assert families["kvgate_client_connections"].samples[0].value == 3


def test_process_counts() -> None:
    world = CollectorWorld()
    m = world.metrics
    m.responses[200] += 2
    m.retries["worker_failed"] += 1
    m.prompt_sources["ids"] += 4
    m.prompt_failures[""] += 1
    m.num_client_disconnects = 5
    m.num_recorded, m.num_unqueued, m.num_unwritten = 7, 2, 1
    m.stages_s["index"].observe(1e-4)
    m.num_tunnels_open = 6
    m.tunnel_bytes["client"] += 7
    m.tls_loads["rejected"] += 8
    assert world.value("responses_total", code="200") == 2
    assert world.value("retries_total", reason="worker_failed") == 1
    assert world.value("prompts_total", source="ids") == 4
    assert world.value("prompt_tokenization_failures_total", model="") == 1
    assert world.value("client_disconnects_total") == 5
    assert world.value("recorder_written_requests_total") == 7
    assert world.value("recorder_dropped_requests_total") == 3
    assert world.value("websocket_tunnels") == 6
    assert world.value("websocket_tunnel_bytes_total", sender="client") == 7
    assert world.value("tls_certificate_reloads_total", result="rejected") == 8
    assert world.value("decision_stage_duration_seconds_count", stage="index") == 1
    assert world.value("decision_stage_duration_seconds_bucket", stage="index", le="0.0001") == 1
    assert world.value("decision_stage_duration_seconds_bucket", stage="index", le="5e-05") == 0


def test_requests_by_model_route_and_status() -> None:
    world = CollectorWorld("a:1")
    world.metrics.ended("m", "chat", 200, 0.3)
    world.metrics.ended("unknown", "chat", 404, 0.001)
    assert world.value("requests_total", model="m", route="chat", status="2xx") == 1
    assert world.value("requests_total", model="unknown", route="chat", status="4xx") == 1
    assert world.value("request_duration_seconds_bucket", route="chat", status="2xx", le="0.5") == 1
    assert world.value("request_duration_seconds_bucket", route="chat", status="2xx", le="0.25") == 0


def test_a_label_that_needs_escaping_survives() -> None:
    world = CollectorWorld()
    name = 'a "model"\\ of\nmine'
    world.metrics.prompt_failures[name] += 1
    assert world.value("prompt_tokenization_failures_total", model=name) == 1


def test_a_workers_traffic() -> None:
    world = CollectorWorld("a:1")
    m = world.metrics.worker(A)
    m.num_requests, m.num_failed, m.prompt_tokens, m.predicted_cached_tokens = 3, 1, 300, 200
    exact, guessed = decision(), replace(decision(), candidates=())  # 64 tokens predicted
    m.report(usage(100, 48, 7), exact)
    m.report(usage(100, 80, 7), exact)
    m.report(usage(50, None, 9), exact)  # reports no cached tokens: not compared
    m.report(usage(100, 96, 1), guessed)  # of a cache that is not known exactly: no error
    m.report(usage(100, 57, 1), guessed)  # and without blocks: right to a block
    m.ttft_s.observe(0.3)
    values = {
        "worker_requests_total": 3,
        "worker_failed_requests_total": 1,
        "worker_prompt_tokens_total": 300,
        "worker_predicted_cached_tokens_total": 200,
        "worker_output_tokens_total": 25,
        "worker_reported_answers_total": 4,
        "worker_reported_prompt_tokens_total": 400,
        "worker_reported_cached_tokens_total": 281,
        "prediction_compared_tokens_total": 256,
        "prediction_error_tokens_total": 32,
        "prediction_unknown_tokens_total": 32,
        "ttft_seconds_count": 1,
        "ttft_seconds_sum": 0.3,
    }
    assert {name: world.value(name, worker="a:1") for name in values} == values


def test_load_that_the_engine_does_not_report_is_absent() -> None:
    world = CollectorWorld("a:1")
    member = world.fleet.get(A)
    assert member is not None
    names = "engine_running_requests", "engine_waiting_requests", "engine_kv_cache_usage_ratio"
    for unknown in (LOAD_FIGURES, LOAD_FIGURES[2:]):
        member.reported = ReportedLoad(2, 3, unknown=frozenset(unknown))
        values = [world.value(name, worker="a:1") for name in names]
        assert values == ([None, None, None] if unknown == LOAD_FIGURES else [2, 3, None])


def test_metrics_of_a_worker() -> None:
    world = CollectorWorld("a:1")
    member = world.fleet.get(A)
    assert member is not None
    member.is_up, member.stream, member.reported = False, StreamState.BLIND, ReportedLoad(2, 3, 0.5)
    world.ledger.book(A, 40, 100)
    world.known.assumed.pin(A, [1, 2])  # type: ignore[list-item]
    world.known.index.apply(A, BlocksRemoved([1]))
    world.streams[A].num_gaps = 4
    values = {
        "worker_up": 0,
        "engine_running_requests": 2,
        "engine_waiting_requests": 3,
        "engine_kv_cache_usage_ratio": 0.5,
        "worker_requests_in_flight": 1,
        "worker_booked_prompt_tokens": 40,
        "index_assumed_blocks": 0,
        "index_pinned_blocks": 2,
        "index_blocks": 0,
        "index_unknown_removals_total": 1,
        "event_stream_gaps_total": 4,
    }
    assert {name: world.value(name, worker="a:1") for name in values} == values
    states = {s.value: world.value("event_stream_state", worker="a:1", state=s.value) for s in StreamState}
    assert states == {"exact": 0, "catching_up": 0, "blind": 1, "unproven": 0}


def test_a_dropped_worker_disappears_from_the_page() -> None:
    world = CollectorWorld("a:1", "b:1")
    for name in ("a:1", "b:1"):
        world.metrics.worker(WorkerId(name)).num_requests += 1
    world.metrics.drop_worker(A)
    world.metrics.drop_worker(A)
    world.fleet.drop(A)
    del world.streams[A]
    labels = [s.labels.get("worker") for f in world.families().values() for s in f.samples]
    assert "a:1" not in labels
    assert "b:1" in labels


def test_exported_buckets_rise_to_the_count() -> None:
    world = CollectorWorld("a:1")
    for value in (0.001, 0.3, 1000.0):
        world.metrics.worker(A).ttft_s.observe(value)
    samples: Iterable[tuple[str, float]] = [
        (s.labels["le"], s.value)
        for s in world.families()["kvgate_ttft_seconds"].samples
        if s.name.endswith("_bucket")
    ]
    counts = [value for _, value in samples]
    assert counts == sorted(counts)
    assert dict(samples)["+Inf"] == world.value("ttft_seconds_count", worker="a:1") == 3


def test_a_registry_includes_metrics_of_the_process() -> None:
    page = generate_latest(registry_of([])).decode()
    assert "process_resident_memory_bytes" in page and "python_info" in page
