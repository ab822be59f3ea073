"""The budget of retries on the metrics page."""

from prometheus_client import CollectorRegistry, generate_latest

from gateway.core.retries import Retries
from gateway.retry_metrics import RetriesCollector


def test_what_is_told() -> None:
    retries, registry = Retries(), CollectorRegistry()
    retries.num_retrying, retries.num_denied = 3, 5
    registry.register(RetriesCollector(retries))
    page = generate_latest(registry).decode()
    assert "kvgate_retries_in_flight 3.0" in page
    assert "kvgate_retries_denied_total 5.0" in page
