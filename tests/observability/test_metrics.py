"""What Prometheus reads, through its own parser."""

import re
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from gateway.core.event_stream import StreamCounts, StreamState
from gateway.core.fleet import Fleet
from gateway.core.kv_events import BlocksRemoved
from gateway.core.ledger import Ledger
from gateway.core.usage import Usage, read_usage
from gateway.core.worker import Reported, WorkerId
from gateway.observability.metrics import Collector, Histogram, Metrics, WorkerMetrics, registry_of
from tests.support.fakes import Known, worker

A = WorkerId("a:1")

NAMES = set(
    """
recorded_requests unrecorded_requests refused_usages
assumed_blocks booked_prompt_tokens client_connections client_disconnects compared_predicted_tokens
completion_tokens decision_seconds errors gc_pause_seconds gc_pause_seconds_max index_blocks index_mismatched
index_orphans index_removed index_stored index_unknown_events index_unknown_removals itl_seconds
loop_lag_cpu_seconds loop_lag_cpu_seconds_max loop_lag_seconds loop_lag_seconds_max pinned_blocks
predicted_cached_tokens recorded_requests unrecorded_requests
prediction_error_tokens prompt_failures prompt_mismatches prompt_tokens prompts reported_cached_tokens
reported_prompt_tokens reported_requests requests requests_failed requests_in_flight responses retries
stream_batches stream_drifts stream_gaps stream_repeats stream_samples
stream_cuts stream_resets stream_state stream_undecodable tls_loads ttft_seconds
tunnel_bytes tunnels
worker_kv_usage_ratio worker_requests_running worker_requests_waiting worker_up
""".split()  # noqa: SIM905  a list of forty lines tells less
)


class World:
    """One worker with a stream, as the gateway holds it, and its page as Prometheus reads it."""

    def __init__(self, *workers: str) -> None:
        self.metrics, self.fleet, self.ledger, self.known = Metrics(), Fleet(), Ledger(), Known(*workers)
        self.streams: dict[WorkerId, StreamCounts] = {}
        for name in workers:
            self.fleet.add(worker(name))
            self.streams[WorkerId(name)] = StreamCounts()
        self.registry = CollectorRegistry()
        self.registry.register(
            Collector(
                self.metrics,
                self.fleet,
                self.ledger,
                self.known.index,
                self.known.assumed,
                lambda: self.streams.items(),
                lambda: 3,
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


def test_every_metric_is_exported_with_a_help_text_and_a_type() -> None:
    families = World("a:1").families()
    assert families.keys() == {f"kvgate_{name}" for name in NAMES}
    for family in families.values():
        assert family.documentation
        assert family.type in ("counter", "gauge", "histogram")


def test_names_carry_units_and_counters_their_suffix() -> None:
    for family in World("a:1").families().values():
        if family.type == "histogram":
            assert family.name.endswith("_seconds")
        if family.type == "counter":
            assert all(sample.name.endswith("_total") for sample in family.samples)
        assert not re.search(r"_(ms|us|s|kb|mb)$", family.name)


def test_an_empty_process_has_a_readable_page() -> None:
    families = World().families()
    assert len(families) == len(NAMES)
    assert families["kvgate_client_connections"].samples[0].value == 3


def test_process_counts() -> None:
    world = World()
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
    m.tls_loads["refused"] += 8
    assert world.value("responses_total", code="200") == 2
    assert world.value("retries_total", cause="worker_failed") == 1
    assert world.value("prompts_total", source="ids") == 4
    assert world.value("prompt_failures_total", model="") == 1
    assert world.value("client_disconnects_total") == 5
    assert world.value("recorded_requests_total") == 7
    assert world.value("unrecorded_requests_total") == 3
    assert world.value("tunnels") == 6
    assert world.value("tunnel_bytes_total", sender="client") == 7
    assert world.value("tls_loads_total", result="refused") == 8
    assert world.value("decision_seconds_count", stage="index") == 1
    assert world.value("decision_seconds_bucket", stage="index", le="0.0001") == 1
    assert world.value("decision_seconds_bucket", stage="index", le="5e-05") == 0


def test_a_label_that_needs_escaping_survives() -> None:
    world = World()
    name = 'a "model"\\ of\nmine'
    world.metrics.prompt_failures[name] += 1
    assert world.value("prompt_failures_total", model=name) == 1


def test_a_workers_traffic() -> None:
    world = World("a:1")
    m = world.metrics.worker(A)
    m.num_requests, m.num_failed, m.prompt_tokens, m.predicted_cached_tokens = 3, 1, 300, 200
    m.report(usage(100, 64, 7), predicted_tokens=80)
    m.report(usage(100, 96, 7), predicted_tokens=80)
    m.report(usage(50, None, 9), predicted_tokens=48)  # tells no cached tokens: not compared
    m.ttft_s.observe(0.3)
    values = {
        "requests_total": 3,
        "requests_failed_total": 1,
        "prompt_tokens_total": 300,
        "predicted_cached_tokens_total": 200,
        "completion_tokens_total": 23,
        "reported_requests_total": 2,
        "reported_prompt_tokens_total": 200,
        "reported_cached_tokens_total": 160,
        "compared_predicted_tokens_total": 160,
        "prediction_error_tokens_total": 32,
        "ttft_seconds_count": 1,
        "ttft_seconds_sum": 0.3,
    }
    assert {name: world.value(name, worker="a:1") for name in values} == values


def test_what_is_known_of_a_worker() -> None:
    world = World("a:1")
    member = world.fleet.get(A)
    assert member is not None
    member.is_up, member.stream, member.reported = False, StreamState.BLIND, Reported(2, 3, 0.5)
    world.ledger.book(A, 40, 100)
    world.known.assumed.pin(A, [1, 2])  # type: ignore[list-item]
    world.known.index.apply(A, BlocksRemoved([1]))
    world.streams[A].num_gaps = 4
    values = {
        "worker_up": 0,
        "worker_requests_running": 2,
        "worker_requests_waiting": 3,
        "worker_kv_usage_ratio": 0.5,
        "requests_in_flight": 1,
        "booked_prompt_tokens": 40,
        "assumed_blocks": 0,
        "pinned_blocks": 2,
        "index_blocks": 0,
        "index_unknown_removals_total": 1,
        "stream_gaps_total": 4,
    }
    assert {name: world.value(name, worker="a:1") for name in values} == values
    states = {s.value: world.value("stream_state", worker="a:1", state=s.value) for s in StreamState}
    assert states == {"exact": 0, "catching_up": 0, "blind": 1}


def test_a_dropped_worker_disappears_from_the_page() -> None:
    world = World("a:1", "b:1")
    for name in ("a:1", "b:1"):
        world.metrics.worker(WorkerId(name)).num_requests += 1
    world.metrics.drop_worker(A)
    world.metrics.drop_worker(A)
    world.fleet.drop(A)
    del world.streams[A]
    labels = [s.labels.get("worker") for f in world.families().values() for s in f.samples]
    assert "a:1" not in labels
    assert "b:1" in labels


def test_a_worker_is_counted_in_one_place() -> None:
    metrics = Metrics()
    assert metrics.worker(A) is metrics.worker(A)
    assert isinstance(metrics.worker(A), WorkerMetrics)
    assert [worker for worker, _ in metrics.items()] == [A]


# histograms ------------------------------------------------------------------------------------


def test_a_value_on_a_bound_counts_below_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 99.0):
        histogram.observe(value)
    assert histogram.buckets() == [("1.0", 2), ("2.0", 4), ("+Inf", 5)]
    assert histogram.sum == 104.0


@given(st.lists(st.floats(0, 100)))
def test_buckets_are_cumulative_and_count_all(values: list[float]) -> None:
    histogram = Histogram((0.01, 0.1, 1.0, 10.0))
    for value in values:
        histogram.observe(value)
    buckets = histogram.buckets()
    expected = [sum(v <= bound for v in values) for bound in histogram.bounds]
    assert [count for _, count in buckets] == [*expected, len(values)]
    assert histogram.sum == pytest.approx(sum(values))


def test_exported_buckets_rise_to_the_count() -> None:
    world = World("a:1")
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


def test_a_registry_has_what_the_process_tells_of_itself() -> None:
    page = generate_latest(registry_of([])).decode()
    assert "process_resident_memory_bytes" in page and "python_info" in page
