"""Counters and histograms that the data path records into.

Recording is attribute arithmetic on slotted objects; prometheus-client's own counters cost microseconds each.
`observability/collector.py` reads them at each scrape. To add a metric: a field here, a declaration there.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from gateway.core.decision import Decision, Timings
from gateway.core.prediction import compared
from gateway.core.usage import Usage
from gateway.core.worker import WorkerId

Bounds = tuple[float, ...]
"""Upper bounds of buckets; not inferred, since mypyc loses a tuple of floats."""

TTFT_BOUNDS_S: Final[Bounds] = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
ITL_BOUNDS_S: Final[Bounds] = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0)
STAGE_BOUNDS_S: Final[Bounds] = (2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 5e-2, 0.2)
_LONG_S: Final[Bounds] = (10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
REQUEST_BOUNDS_S: Final[Bounds] = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, *_LONG_S)
"""Bounds for a whole request: embeddings take milliseconds, long generations minutes."""

PAUSE_BOUNDS_S: Final[Bounds] = (1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5, 1.0)


class Histogram:
    """Counts per bucket; the last bucket is everything above the highest bound."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts by upper bound, as the exposition format requires."""
        total = 0
        out: list[tuple[str, float]] = []
        for bound, count in zip([*map(str, self.bounds), "+Inf"], self.counts, strict=True):
            total += count
            out.append((bound, total))
        return out


class PauseHistogram(Histogram):
    """Durations of pauses of the process, and the longest one since `take_worst_s` was last called."""

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
    """Traffic of one worker. Token sums of `reported_*` and `compared_*` cover the same requests:
    those with an answer that reported cached tokens."""

    num_requests: int = 0
    num_failed: int = 0
    num_rejected: int = 0
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
    unknown_cached_tokens: int = 0
    ttft_s: Histogram = field(default_factory=lambda: Histogram(TTFT_BOUNDS_S))
    itl_s: Histogram = field(default_factory=lambda: Histogram(ITL_BOUNDS_S))

    def report(self, usage: Usage, decision: Decision) -> None:
        """Count the token usage that the engine reported for a request, beside the prediction."""
        self.completion_tokens += usage.completion_tokens or 0
        if usage.cached_tokens is None:
            return
        error, unknown = compared(decision, usage)
        self.num_reported += 1
        self.reported_prompt_tokens += usage.prompt_tokens
        self.reported_cached_tokens += usage.cached_tokens
        self.compared_predicted_tokens += decision.overlap_tokens
        self.prediction_error_tokens += abs(error)
        self.unknown_cached_tokens += unknown


UNSERVED: Final = frozenset(
    {"no_worker", "model_not_found", "queue_full", "queue_timeout", "slo_unreachable"}
)
"""Codes of errors of requests that more workers would have answered in time."""
UNKNOWN_MODEL: Final = "unknown"
"""Label value for any model that no worker serves: a client's string never becomes a label."""


class Metrics:
    """Everything that is counted in this process. `knows_model` bounds the values of `model` labels."""

    def __init__(self, knows_model: Callable[[str], bool] = lambda model: True) -> None:
        self._knows_model = knows_model
        self._workers: dict[WorkerId, WorkerMetrics] = {}
        self.responses: Counter[int] = Counter()
        self.retries: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.on_unserved: Callable[[str], None] | None = None
        """Called with the model of each request that more workers would have answered."""
        self.prompt_sources: Counter[str] = Counter()
        self.prompt_failures: Counter[str] = Counter()
        self.prompt_mismatches: Counter[str] = Counter()
        self.num_client_disconnects = 0
        self.num_recorded = self.num_unqueued = self.num_unwritten = 0
        """Finished requests that `recorder.py` wrote, did not queue, or did not write. The event loop counts
        the second, the recorder's thread the others."""
        self.requests: Counter[tuple[str, str, str]] = Counter()  # model, route kind, status class
        self.request_s: dict[tuple[str, str], Histogram] = {}  # route kind, status class
        self.stages_s = {stage: Histogram(STAGE_BOUNDS_S) for stage in Timings.__match_args__}
        self.loop_lag_s = PauseHistogram()
        self.loop_lag_cpu_s = PauseHistogram()
        self.gc_pause_s = PauseHistogram()
        self.num_tunnels_open = 0
        self.tunnel_bytes: Counter[str] = Counter()
        self.tls_loads: Counter[str] = Counter()

    def worker(self, worker: WorkerId) -> WorkerMetrics:
        metrics = self._workers.get(worker)
        if metrics is None:
            metrics = self._workers[worker] = WorkerMetrics()
        return metrics

    def decided(self, decision: Decision) -> WorkerMetrics:
        """Count a request that is sent to a worker; returns the worker's metrics."""
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

    def ended(self, model: str, route_kind: str, status: int, lasted_s: float) -> None:
        """Count a request that has ended, whatever its outcome; `model` is a name that some worker served."""
        status_class = f"{status // 100}xx"
        self.requests[model, route_kind, status_class] += 1
        key = route_kind, status_class
        histogram = self.request_s.get(key)
        if histogram is None:
            histogram = self.request_s[key] = Histogram(REQUEST_BOUNDS_S)
        histogram.observe(lasted_s)

    def failed(self, code: str, model: str | None) -> None:
        """Count an error in place of an answer; `model` is None where the request was not read."""
        self.errors[code] += 1
        if model is not None and code in UNSERVED and self.on_unserved is not None:
            self.on_unserved(model)

    def model_label(self, model: str) -> str:
        """The model's name if some worker serves it, else a fixed value."""
        return model if self._knows_model(model) else UNKNOWN_MODEL

    def drop_worker(self, worker: WorkerId) -> None:
        self._workers.pop(worker, None)

    def items(self) -> Iterable[tuple[WorkerId, WorkerMetrics]]:
        return self._workers.items()
