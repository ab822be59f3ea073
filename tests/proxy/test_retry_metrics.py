"""Metrics of the retry budget."""

from prometheus_client import CollectorRegistry, generate_latest

from gateway.proxy.retries import RetryBudget
from gateway.proxy.retry_metrics import RetriesCollector
from gateway.server.body_budget import BodyBudget


def test_retries_and_budget_are_exposed() -> None:
    retries, registry = RetryBudget(), CollectorRegistry()
    retries.num_retrying, retries.num_denied = 3, 5
    bodies = BodyBudget(100)
    bodies.num_bytes, bodies.num_refused = 7, 2
    registry.register(RetriesCollector(retries, bodies))
    page = generate_latest(registry).decode()
    assert "kvgate_retries_in_flight 3.0" in page
    assert "kvgate_retries_denied_total 5.0" in page
    assert "kvgate_buffered_body_bytes 7.0" in page
    assert "kvgate_buffered_body_limit_bytes 100.0" in page
    assert "kvgate_buffered_body_rejections_total 2.0" in page
