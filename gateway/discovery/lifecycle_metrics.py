"""Metrics of workers' lifecycle: state, unusable models, ejections, removals."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.core.eligibility import UnusableCause
from gateway.core.fleet import STATES, Fleet
from gateway.discovery.lifecycle import Lifecycle
from gateway.observability.metric_spec import counter, gauge

STATE = gauge(
    "kvgate_worker_state",
    "Lifecycle state of the worker: 1 for the current state, 0 for the others. The label of a worker that "
    "has not answered yet is the worker's URL.",
    *("worker", "state"),
)
UNUSABLE = gauge(
    "kvgate_worker_unusable_models",
    "Models that the worker lists and that no request may use there, by reason.",
    *("worker", "reason"),
)
EJECTIONS = counter(
    "kvgate_worker_ejections_total", "Ejections of the worker as an outlier, by reason.", "worker", "reason"
)
FAULTS = counter(
    "kvgate_request_faults_total",
    "Failures that were charged to the request and to no worker, by the name of the client's API key: the "
    "request, or others of the client, failed at several workers.",
    "key",
)
LATE = gauge(
    "kvgate_worker_probes_late",
    "1 if the worker's last probe timed out, else 0. Such a worker is down unless answers, events or metrics "
    "come meanwhile.",
    "worker",
)
PANIC = gauge(
    "kvgate_models_in_panic",
    "Models with fewer healthy workers than `[lifecycle] panic_threshold_percent`, for which workers with "
    "late probes get requests too.",
)
REMOVED = counter("kvgate_endpoints_removed_total", "Endpoints removed from the fleet.")

METRICS = (STATE, UNUSABLE, EJECTIONS, FAULTS, LATE, PANIC, REMOVED)


class LifecycleCollector(Collector):
    """Metrics of workers' states; `joining` gives the URLs of endpoints that have not answered yet."""

    def __init__(self, fleet: Fleet, lifecycle: Lifecycle, joining: Callable[[], Iterable[str]]) -> None:
        self._fleet = fleet
        self._lifecycle = lifecycle
        self._joining = joining

    def collect(self) -> Iterator[Metric]:
        yield STATE.family(self._states())
        yield UNUSABLE.family(self._unusable())
        yield EJECTIONS.family(sorted(self._lifecycle.ejections.items()))
        yield FAULTS.family(sorted(self._lifecycle.faults.by_key.items()))
        yield LATE.family((m.worker.id, float(m.is_late)) for m in self._fleet)
        yield PANIC.single(len(self._fleet.late.in_panic))
        yield REMOVED.single(self._lifecycle.num_removed)

    def _states(self) -> Iterator[tuple[tuple[str, str], float]]:
        for member in self._fleet:
            for state in STATES:
                yield (member.worker.id, state), float(member.state == state)
        for url in self._joining():
            yield (url, "joining"), 1.0

    def _unusable(self) -> Iterator[tuple[tuple[str, str], float]]:
        for member in self._fleet:
            causes = Counter(each.cause for each in self._fleet.unusable(member.worker.id))
            for cause in UnusableCause:
                yield (member.worker.id, cause.value), causes[cause]
