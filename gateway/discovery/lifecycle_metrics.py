"""How workers stand with the fleet, for Prometheus."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.core.eligibility import Cause
from gateway.core.fleet import STATES, Fleet
from gateway.discovery.lifecycle import Standings


class StandingsCollector(Collector):
    """`joining` gives the URLs of endpoints that are waited for."""

    def __init__(self, fleet: Fleet, standings: Standings, joining: Callable[[], Iterable[str]]) -> None:
        self._fleet = fleet
        self._standings = standings
        self._joining = joining

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        text = "1 for the state of the worker; one that is waited for goes by its URL"
        family = GaugeMetricFamily("kvgate_worker_state", text, labels=["worker", "state"])
        for member in self._fleet:
            for state in STATES:
                family.add_metric([member.worker.id, state], float(member.state == state))
        for url in self._joining():
            family.add_metric([url, "joining"], 1.0)
        yield family
        text = "Names that the worker lists and no request may use, by why"
        unusable = GaugeMetricFamily("kvgate_worker_unusable_names", text, labels=["worker", "cause"])
        for member in self._fleet:
            causes = Counter(each.cause for each in self._fleet.unusable(member.worker.id))
            for why in Cause:
                unusable.add_metric([member.worker.id, why.value], causes[why])
        yield unusable
        ejected = CounterMetricFamily(
            "kvgate_worker_ejections", "Times that a worker was left out", labels=["worker", "cause"]
        )
        for (worker, cause), num in sorted(self._standings.ejections.items()):
            ejected.add_metric([worker, cause], num)
        yield ejected
        yield CounterMetricFamily(
            "kvgate_workers_gone", "Endpoints that were dropped", value=self._standings.num_gone
        )
