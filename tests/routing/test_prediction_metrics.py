from prometheus_client import CollectorRegistry, generate_latest

from gateway.routing.prediction_metrics import PredictionsCollector
from gateway.routing.predictions import FEWEST, Predictions


def test_errors_and_doubts_are_exposed() -> None:
    predictions, registry = Predictions(), CollectorRegistry()
    registry.register(PredictionsCollector(predictions))
    for _ in range(FEWEST):
        predictions.came(0.5, 2.0)
    text = generate_latest(registry).decode()
    assert f'kvgate_ttft_prediction_error_ratio_bucket{{le="1.0"}} {FEWEST}.0\n' in text
    assert 'kvgate_ttft_prediction_error_ratio_bucket{le="0.5"} 0.0\n' in text
    assert "kvgate_ttft_predictions_doubted 1.0\n" in text
