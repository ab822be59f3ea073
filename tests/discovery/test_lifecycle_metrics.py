from prometheus_client import CollectorRegistry, generate_latest

from gateway.discovery.lifecycle_metrics import LifecycleCollector
from tests.support.worlds.lifecycle import A, B, LifecycleWorld, worker_of


def page(world: LifecycleWorld, *joining: str) -> set[str]:
    registry = CollectorRegistry()
    registry.register(LifecycleCollector(world.fleet, world.lifecycle, lambda: joining))
    return {line for line in generate_latest(registry).decode().splitlines() if not line.endswith(" 0.0")}


def test_each_worker_has_one_state() -> None:
    world = LifecycleWorld()
    world.join(A, B)
    world.lifecycle.drain("http://a:1", [worker_of(A)], "asked for")
    states = {line for line in page(world, "http://late:1") if line.startswith("kvgate_worker_state")}
    assert states == {
        'kvgate_worker_state{state="draining",worker="a:1"} 1.0',
        'kvgate_worker_state{state="active",worker="b:1"} 1.0',
        'kvgate_worker_state{state="joining",worker="http://late:1"} 1.0',
    }


def test_late_probes_and_models_in_panic_are_shown() -> None:
    world = LifecycleWorld()
    world.join(A, B)
    for name in (A, B):
        world.fleet.set_up(name, False, is_late=True)
    assert {'kvgate_worker_probes_late{worker="a:1"} 1.0', "kvgate_models_in_panic 1.0"} <= page(world)
    world.fleet.set_up(A, True)
    assert not [line for line in page(world) if "panic" in line and not line.startswith("#")]


def test_failures_that_are_charged_to_requests_are_counted_by_key() -> None:
    world = LifecycleWorld()
    world.join(A, B)
    world.lifecycle.faults.by_key["team-a"] += 2
    assert 'kvgate_request_faults_total{key="team-a"} 2.0' in page(world)


def test_ejections_and_removed_endpoints_are_counted() -> None:
    world = LifecycleWorld()
    world.join(A, B)
    for _ in range(2):
        world.lifecycle.failed(A, "it refused")
    assert 'kvgate_worker_ejections_total{reason="failures",worker="a:1"} 1.0' in page(world)
    world.lifecycle.dropped("http://a:1", [A])
    assert "kvgate_endpoints_removed_total 1.0" in page(world)
    assert not [line for line in page(world) if line.startswith("kvgate_worker_ejections_total{")]
