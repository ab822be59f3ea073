"""Metrics of retries and of buffered request bodies."""

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.observability.metric_spec import Merge, counter, gauge
from gateway.proxy.retries import RetryBudget
from gateway.server.body_budget import BodyBudget

RETRYING = gauge("kvgate_retries_in_flight", "Retried requests that have not finished.", merge=Merge.SUM)
DENIED = counter(
    "kvgate_retries_denied_total", "Requests not retried because the retry budget was exhausted."
)
BODY_BYTES = gauge(
    "kvgate_buffered_body_bytes", "Bytes of request bodies that are buffered in memory.", merge=Merge.SUM
)
BODY_LIMIT = gauge(
    "kvgate_buffered_body_limit_bytes",
    "Limit on bytes of buffered request bodies (--body-memory-bytes).",
    merge=Merge.SUM,
)
BODY_REJECTIONS = counter(
    "kvgate_buffered_body_rejections_total",
    "Requests rejected because the limit on buffered request bodies was reached.",
)

METRICS = (RETRYING, DENIED, BODY_BYTES, BODY_LIMIT, BODY_REJECTIONS)


class RetriesCollector(Collector):
    def __init__(self, retries: RetryBudget, bodies: BodyBudget) -> None:
        self._retries, self._bodies = retries, bodies

    def collect(self) -> Iterator[Metric]:
        yield RETRYING.single(self._retries.num_retrying)
        yield DENIED.single(self._retries.num_denied)
        yield BODY_BYTES.single(self._bodies.num_bytes)
        yield BODY_LIMIT.single(self._bodies.max_bytes)
        yield BODY_REJECTIONS.single(self._bodies.num_refused)
