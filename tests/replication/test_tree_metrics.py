from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from gateway.replication.tree_metrics import TreeCollector


def test_all_metrics_are_exposed() -> None:
    service: Any = SimpleNamespace(
        is_open=True,
        num_lost=2,
        num_broken=6,
        failed_lookups={"timeout": 3, "error": 0, "away": 4},
        index=SimpleNamespace(publication=SimpleNamespace(num_queued=5)),
    )
    registry = CollectorRegistry()
    registry.register(TreeCollector(service))
    service.observe(0.0004)
    lines = generate_latest(registry).decode().splitlines()
    for line in (
        "kvgate_redis_tree_up 1.0",
        "kvgate_redis_tree_connection_losses_total 2.0",
        'kvgate_redis_tree_lookup_duration_seconds_bucket{le="0.0005"} 1.0',
        'kvgate_redis_tree_failed_lookups_total{reason="timeout"} 3.0',
        'kvgate_redis_tree_failed_lookups_total{reason="away"} 4.0',
        "kvgate_redis_tree_undecodable_edges_total 6.0",
        "kvgate_redis_tree_queued_changes 5.0",
    ):
        assert line in lines
