from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from gateway.observability.metrics import Histogram
from gateway.replication.leader import ReplicaCounts
from gateway.replication.metrics import ReplicaCollector
from gateway.replication.redis_link import DELAY_BOUNDS_S


def test_all_metrics_are_exposed() -> None:
    delays = Histogram(DELAY_BOUNDS_S)
    delays.observe(0.003)
    holds = SimpleNamespace(leader=SimpleNamespace(num_queued=4), counts=ReplicaCounts(1, 2, 3, 5))
    follows = SimpleNamespace(leader=None, counts=ReplicaCounts())
    shared: Any = SimpleNamespace(
        is_lost=False,
        error_reporter=False,
        tail=SimpleNamespace(num_losses=6),
        delays_s=delays,
        feeds={"w:1": holds, "w:2": follows},
    )
    registry = CollectorRegistry()
    registry.register(ReplicaCollector(shared))
    lines = generate_latest(registry).decode().splitlines()
    for line in (
        "kvgate_redis_up 1.0",
        "kvgate_redis_connection_losses_total 6.0",
        'kvgate_replica_delay_seconds_bucket{le="0.005"} 1.0',
        'kvgate_replica_leader{worker="w:1"} 1.0',
        'kvgate_replica_leader{worker="w:2"} 0.0',
        'kvgate_replica_queued_batches{worker="w:1"} 4.0',
        'kvgate_replica_takeovers_total{worker="w:1"} 1.0',
        'kvgate_replica_fenced_writes_total{worker="w:1"} 2.0',
        'kvgate_replica_log_rewrites_total{worker="w:1"} 3.0',
        'kvgate_replica_resyncs_total{worker="w:1"} 5.0',
    ):
        assert line in lines
