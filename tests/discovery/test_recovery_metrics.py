from prometheus_client import CollectorRegistry, generate_latest

from gateway.discovery.recovery_metrics import RecoveryCollector
from gateway.ingest.blind_recovery import RecoveryObserver
from tests.support.fakes import Known, worker


def test_each_worker_has_its_recovery_figures() -> None:
    known = Known("a", "b")
    recovery_observer = RecoveryObserver(known.index, keep_s=60)
    healings = [recovery_observer.open(worker(name, block_size=4), can_report=True) for name in "ab"]
    healings[1].counts.num_placed = 7
    registry = CollectorRegistry()
    registry.register(RecoveryCollector(recovery_observer))
    page = generate_latest(registry).decode()
    assert 'kvgate_recovery_adopted_orphan_blocks_total{worker="a"} 0.0' in page
    assert 'kvgate_recovery_adopted_orphan_blocks_total{worker="b"} 7.0' in page
    assert 'kvgate_recovery_proven_blocks{worker="a"} 0.0' in page
    assert page.count("# TYPE kvgate_recovery_") == 5
