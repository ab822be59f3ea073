"""What is counted, and how Prometheus sees it.

Recording on the data path is attribute arithmetic on slotted objects (prometheus-client's own
counters cost microseconds each); its library writes the exposition at scrape time. Names carry
units. To add a metric: a field where it is recorded, a line in `collect`.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector as RegistryCollector

from gateway.core.decision import Decision, Timings
from gateway.core.event_stream import StreamCounts, StreamState
from gateway.core.fleet import Fleet, Member
from gateway.core.ledger import Ledger
from gateway.core.usage import Usage
from gateway.core.worker import WorkerId
from gateway.index.assumed import AssumedIndex
from gateway.index.base import Index

TTFT_BOUNDS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
ITL_BOUNDS_S = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0)
STAGE_BOUNDS_S = (2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 5e-2, 0.2)

PAUSE_BOUNDS_S = (1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5, 1.0)


class Histogram:
    """Counts per bucket; the last is everything above the highest bound."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative, as the exposition format wants them."""
        total = 0
        out: list[tuple[str, float]] = []
        for bound, count in zip([*map(str, self.bounds), "+Inf"], self.counts, strict=True):
            total += count
            out.append((bound, total))
        return out


class Pauses(Histogram):
    """Times in which nobody was served, and the worst of them since it was last asked for."""

    __slots__ = ("_worst_s",)

    def __init__(self) -> None:
        super().__init__(PAUSE_BOUNDS_S)
        self._worst_s = 0.0

    def observe(self, value: float) -> None:
        super().observe(value)
        if value > self._worst_s:
            self._worst_s = value

    def take_worst_s(self) -> float:
        worst, self._worst_s = self._worst_s, 0.0
        return worst


@dataclass(slots=True, eq=False)
class WorkerMetrics:
    """One worker's traffic. Token sums of `reported_*` and `compared_*` cover the same requests:
    those whose answer told its cached tokens."""

    num_requests: int = 0
    num_failed: int = 0
    num_answered: int = 0
    prompt_tokens: int = 0
    predicted_cached_tokens: int = 0
    completion_tokens: int = 0
    num_refused_usages: int = 0
    num_reported: int = 0
    reported_prompt_tokens: int = 0
    reported_cached_tokens: int = 0
    compared_predicted_tokens: int = 0
    prediction_error_tokens: int = 0
    ttft_s: Histogram = field(default_factory=lambda: Histogram(TTFT_BOUNDS_S))
    itl_s: Histogram = field(default_factory=lambda: Histogram(ITL_BOUNDS_S))

    def report(self, usage: Usage, predicted_tokens: int) -> None:
        """The engine's own figures for a request, beside what we predicted."""
        self.completion_tokens += usage.completion_tokens or 0
        if usage.cached_tokens is None:
            return
        self.num_reported += 1
        self.reported_prompt_tokens += usage.prompt_tokens
        self.reported_cached_tokens += usage.cached_tokens
        self.compared_predicted_tokens += predicted_tokens
        self.prediction_error_tokens += abs(usage.cached_tokens - predicted_tokens)


StreamCountsOf = Callable[[], Iterable[tuple[WorkerId, StreamCounts]]]


class Metrics:
    """Everything that is counted in this process."""

    def __init__(self) -> None:
        self._workers: dict[WorkerId, WorkerMetrics] = {}
        self.responses: Counter[int] = Counter()
        self.retries: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.prompt_sources: Counter[str] = Counter()
        self.prompt_failures: Counter[str] = Counter()
        self.prompt_mismatches: Counter[str] = Counter()
        self.num_client_disconnects = 0
        self.num_recorded = self.num_unqueued = self.num_unwritten = 0
        """Of finished requests (`recorder.py`); what is lost is counted by the loop and by the thread."""
        self.stages_s = {stage: Histogram(STAGE_BOUNDS_S) for stage in Timings.__struct_fields__}
        self.loop_lag_s = Pauses()
        self.loop_lag_cpu_s = Pauses()
        self.gc_pause_s = Pauses()
        self.num_tunnels_open = 0
        self.tunnel_bytes: Counter[str] = Counter()
        self.tls_loads: Counter[str] = Counter()

    def worker(self, worker: WorkerId) -> WorkerMetrics:
        metrics = self._workers.get(worker)
        if metrics is None:
            metrics = self._workers[worker] = WorkerMetrics()
        return metrics

    def decided(self, decision: Decision) -> WorkerMetrics:
        """A request goes to a worker; its metrics, for what follows."""
        metrics = self.worker(decision.worker.id)
        metrics.num_requests += 1
        metrics.prompt_tokens += decision.num_tokens
        metrics.predicted_cached_tokens += decision.overlap_tokens
        self.prompt_sources[decision.prompt_from] += 1
        stages, timings = self.stages_s, decision.timings_s
        stages["prompt"].observe(timings.prompt)
        stages["hash"].observe(timings.hash)
        stages["index"].observe(timings.index)
        stages["policy"].observe(timings.policy)
        return metrics

    def drop_worker(self, worker: WorkerId) -> None:
        self._workers.pop(worker, None)

    def items(self) -> Iterable[tuple[WorkerId, WorkerMetrics]]:
        return self._workers.items()


class Collector:
    """Reads the metrics, and the state of those who keep their own, at scrape time."""

    def __init__(
        self,
        metrics: Metrics,
        fleet: Fleet,
        ledger: Ledger,
        index: Index,
        assumed: AssumedIndex,
        streams: StreamCountsOf,
        num_connections: Callable[[], int],
    ) -> None:
        self._metrics = metrics
        self._fleet = fleet
        self._ledger = ledger
        self._index = index
        self._assumed = assumed
        self._streams = streams
        self._num_connections = num_connections

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        yield from self._process()
        yield from self._pauses()
        yield from self._traffic()
        yield from self._members()
        yield from self._stream_counts()
        yield from self._index_counts()

    def _process(self) -> Iterator[Metric]:
        m = self._metrics
        yield _counter("responses", "Answers to clients by status code", ["code"], m.responses.items())
        errors = m.errors.items()
        yield _counter("errors", "Answers that the gateway gave itself, by what was wrong", ["code"], errors)
        yield _counter("retries", "Requests sent to another worker", ["cause"], m.retries.items())
        sources = m.prompt_sources.items()
        yield _counter("prompts", "Requests by who tokenized the prompt", ["source"], sources)
        failures = m.prompt_failures.items()
        yield _counter("prompt_failures", "Prompts routed on load for want of tokens", ["model"], failures)
        wrong = m.prompt_mismatches.items()
        yield _counter("prompt_mismatches", "Failed checks of reused prompt text", ["model"], wrong)
        gone = [("", m.num_client_disconnects)]
        yield _counter("client_disconnects", "Clients that left before their answer ended", [], gone)
        yield _counter("recorded_requests", "Lines written to --record", [], [("", m.num_recorded)])
        lost = [("", m.num_unqueued + m.num_unwritten)]
        yield _counter("unrecorded_requests", "Requests that --record had no room for", [], lost)
        yield _gauge("client_connections", "Open client connections", [], [("", self._num_connections())])
        yield _gauge("tunnels", "Open WebSockets", [], [("", m.num_tunnels_open)])
        moved = m.tunnel_bytes.items()
        yield _counter("tunnel_bytes", "Bytes of WebSockets by who sent them", ["sender"], moved)
        loads = m.tls_loads.items()
        yield _counter(
            "tls_loads", "Changed certificate files that were loaded or refused", ["result"], loads
        )
        stages = sorted(m.stages_s.items())
        yield _histogram("decision_seconds", "Time of a decision by stage", ["stage"], stages)

    def _pauses(self) -> Iterator[Metric]:
        """The worst of each is that since the last scrape."""
        for name, text, pauses in (
            ("loop_lag", "How late the event loop came to what was due", self._metrics.loop_lag_s),
            ("loop_lag_cpu", "Of that, computed by the loop itself", self._metrics.loop_lag_cpu_s),
            ("gc_pause", "Time that the garbage collector held everything", self._metrics.gc_pause_s),
        ):
            yield _histogram(f"{name}_seconds", text, [], [("", pauses)])
            worst = [("", pauses.take_worst_s())]
            yield _gauge(f"{name}_seconds_max", f"{text}: the worst since the last scrape", [], worst)

    def _traffic(self) -> Iterator[Metric]:
        rows = sorted(self._metrics.items())
        for name, text, read in _TRAFFIC:
            yield _counter(name, text, ["worker"], [(worker, read(w)) for worker, w in rows])
        ttft = [(worker, w.ttft_s) for worker, w in rows]
        yield _histogram(
            "ttft_seconds",
            "Time to first token of streamed answers, from the request's arrival",
            ["worker"],
            ttft,
        )
        itl = [(worker, w.itl_s) for worker, w in rows]
        yield _histogram("itl_seconds", "Time between streamed pieces", ["worker"], itl)

    def _members(self) -> Iterator[Metric]:
        members = list(self._fleet)
        for name, text, read in _MEMBERS:
            yield _gauge(name, text, ["worker"], [(m.worker.id, read(m)) for m in members])
        in_flight = [(m.worker.id, self._ledger.here(m.worker.id).num_in_flight) for m in members]
        yield _gauge("requests_in_flight", "Requests sent and not finished", ["worker"], in_flight)
        booked = [(m.worker.id, self._ledger.here(m.worker.id).booked_tokens) for m in members]
        yield _gauge("booked_prompt_tokens", "Uncached prompt tokens not yet prefilled", ["worker"], booked)
        family = GaugeMetricFamily("kvgate_stream_state", "1 for the state", labels=["worker", "state"])
        for m in members:
            for state in StreamState:
                family.add_metric([m.worker.id, state.value], float(m.stream is state))
        yield family

    def _stream_counts(self) -> Iterator[Metric]:
        rows = list(self._streams())
        for name, text, read in _STREAMS:
            yield _counter(name, text, ["worker"], [(worker, read(counts)) for worker, counts in rows])

    def _index_counts(self) -> Iterator[Metric]:
        ids = [m.worker.id for m in self._fleet]
        blocks = [(i, self._index.num_blocks(i)) for i in ids]
        yield _gauge("index_blocks", "Blocks known from events", ["worker"], blocks)
        kept = [(i, self._assumed.num_kept(i)) for i in ids]
        yield _gauge("assumed_blocks", "Blocks assumed from requests that have ended", ["worker"], kept)
        pinned = [(i, self._assumed.num_pinned(i)) for i in ids]
        yield _gauge("pinned_blocks", "Blocks that requests in flight will leave", ["worker"], pinned)
        for name in ("stored", "removed", "orphans", "unknown_removals", "mismatched", "unknown_events"):
            values = [(i, getattr(self._index.applied(i), f"num_{name}")) for i in ids]
            yield _counter(f"index_{name}", f"Events applied: {name}", ["worker"], values)


_TRAFFIC: tuple[tuple[str, str, Callable[[WorkerMetrics], float]], ...] = (
    ("requests", "Requests sent to the worker", lambda w: w.num_requests),
    ("requests_failed", "Requests that the worker did not answer to the end", lambda w: w.num_failed),
    ("prompt_tokens", "Prompt tokens sent", lambda w: w.prompt_tokens),
    ("predicted_cached_tokens", "Prompt tokens predicted as cached", lambda w: w.predicted_cached_tokens),
    ("completion_tokens", "Generated tokens, where reported", lambda w: w.completion_tokens),
    ("refused_usages", "Answers with token counts that cannot be", lambda w: w.num_refused_usages),
    ("reported_requests", "Answers that told their cached tokens", lambda w: w.num_reported),
    ("reported_prompt_tokens", "Prompt tokens of those answers", lambda w: w.reported_prompt_tokens),
    ("reported_cached_tokens", "Cached tokens reported by the engine", lambda w: w.reported_cached_tokens),
    ("compared_predicted_tokens", "Predicted for those answers", lambda w: w.compared_predicted_tokens),
    ("prediction_error_tokens", "Sum of |reported - predicted|", lambda w: w.prediction_error_tokens),
)

_MEMBERS: tuple[tuple[str, str, Callable[[Member], float]], ...] = (
    ("worker_up", "1 if the worker answers its probes", lambda m: float(m.is_up)),
    ("worker_requests_running", "Running, as the engine reports", lambda m: m.reported.num_running),
    ("worker_requests_waiting", "Waiting, as the engine reports", lambda m: m.reported.num_waiting),
    ("worker_kv_usage_ratio", "KV cache in use, as the engine reports", lambda m: m.reported.kv_usage),
)

_STREAMS: tuple[tuple[str, str, Callable[[StreamCounts], float]], ...] = (
    ("stream_batches", "Event batches applied", lambda c: c.num_batches),
    ("stream_gaps", "Gaps seen in the sequence", lambda c: c.num_gaps),
    ("stream_resets", "Times that all blocks were forgotten", lambda c: c.num_resets),
    ("stream_repeats", "Batches dropped as known already", lambda c: c.num_repeats),
    ("stream_undecodable", "Batches that could not be decoded", lambda c: c.num_undecodable),
    ("stream_cuts", "Times that events were no longer read, for their number or size", lambda c: c.num_cuts),
    ("stream_samples", "Comparisons of the index with what an agent holds", lambda c: c.num_samples),
    ("stream_drifts", "Of those, how many found a difference", lambda c: c.num_drifts),
)


def registry_of(collectors: Iterable[RegistryCollector]) -> CollectorRegistry:
    """Of these, and what the process tells of itself."""
    registry = CollectorRegistry()
    for collector in (PROCESS_COLLECTOR, PLATFORM_COLLECTOR, GC_COLLECTOR, *collectors):
        registry.register(collector)
    return registry


def _counter(name: str, text: str, labels: list[str], rows: Iterable[tuple[object, float]]) -> Metric:
    family = CounterMetricFamily(f"kvgate_{name}", text, labels=labels)
    for key, value in rows:
        family.add_metric([str(key)] if labels else [], value)
    return family


def _gauge(name: str, text: str, labels: list[str], rows: Iterable[tuple[object, float]]) -> Metric:
    family = GaugeMetricFamily(f"kvgate_{name}", text, labels=labels)
    for key, value in rows:
        family.add_metric([str(key)] if labels else [], value)
    return family


def _histogram(name: str, text: str, labels: list[str], rows: Iterable[tuple[str, Histogram]]) -> Metric:
    family = HistogramMetricFamily(f"kvgate_{name}", text, labels=labels)
    for key, histogram in rows:
        family.add_metric([key] if labels else [], histogram.buckets(), histogram.sum)
    return family
