"""Metrics of predicted TTFTs (`predictions.py`)."""

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.observability.metric_spec import Merge, gauge, histogram
from gateway.routing.predictions import Predictions

ERRORS = histogram(
    "kvgate_ttft_prediction_error_ratio",
    "Difference between predicted and measured time to first token, divided by the measured one, or by 0.1 s "
    "where that is more.",
)
DOUBTED = gauge(
    "kvgate_ttft_predictions_doubted",
    "1 while predicted times to first token are far off and requests are routed by prefix overlap, else 0.",
    merge=Merge.MAX,
)
METRICS = (ERRORS, DOUBTED)


class PredictionsCollector(Collector):
    def __init__(self, predictions: Predictions) -> None:
        self._predictions = predictions

    def collect(self) -> Iterator[Metric]:
        yield ERRORS.histograms([((), self._predictions.errors)])
        yield DOUBTED.single(not self._predictions.holds)
