"""Metrics of the endpoint picker."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.observability.metric_spec import Merge, counter, gauge

EVENTS = counter(
    "kvgate_epp_events_total",
    "Events of the endpoint picker, by kind: picked, rejected, malformed, unsupported_mode, spoofed_header, "
    "untrusted_header, served_elsewhere, unseen_answer.",
    "kind",
)
UNSEEN = gauge(
    "kvgate_epp_unseen_answers",
    "Requests with an answer that Envoy does not show, booked until the predicted end.",
    merge=Merge.SUM,
)

METRICS = (EVENTS, UNSEEN)


class EppCollector(Collector):
    def __init__(self, counts: Mapping[str, int], num_held: Callable[[], int]) -> None:
        self._counts, self._num_held = counts, num_held

    def collect(self) -> Iterator[Metric]:
        yield EVENTS.family(((event,), num) for event, num in self._counts.items())
        yield UNSEEN.single(self._num_held())
