import pytest
from prometheus_client import CollectorRegistry, generate_latest

from engines.vllm import Vllm
from gateway.core.worker import WorkerId
from gateway.disaggregation.metrics import DisaggregationCollector
from gateway.disaggregation.stats import DisaggregationStats
from gateway.discovery.probed import reported
from gateway.routing.router import Router
from tests import DATA
from tests.support import fakes
from tests.support.worlds.disaggregated import (
    DisaggregatedWorld,
    disaggregation_stats,
    prefilled,
    split_decision,
)
from tests.support.worlds.exchanges import END, EVENT, HEAD, ExchangeWorld, chunk


def page_of(counted: DisaggregationStats, router: Router) -> str:
    registry = CollectorRegistry()
    registry.register(DisaggregationCollector(counted, router))
    return generate_latest(registry).decode()


def test_counts_are_exposed(monkeypatch: pytest.MonkeyPatch) -> None:
    counted, split = disaggregation_stats(), split_decision(is_split=True)
    counted.decided(split)
    counted.decided(split_decision(is_split=False))
    counted.decided(fakes.decision())  # in a fleet without prefill workers
    counted.prefilled(0.3)
    counted.began(split, 0.5)
    counted.transferred(split, 0.2, 0.0)
    counted.failed("died")
    page = page_of(counted, ExchangeWorld(monkeypatch).router)
    for line in (
        'kvgate_disaggregation_plans_total{plan="prefill_decode",'
        'reason="lower predicted TTFT with a transfer"} 1.0',
        'kvgate_disaggregation_plans_total{plan="direct",'
        'reason="lower predicted TTFT without a transfer"} 1.0',
        'kvgate_disaggregation_failures_total{reason="died"} 1.0',
        'kvgate_disaggregation_ttft_seconds_sum{plan="prefill_decode"} 0.5',
        "kvgate_prefill_leg_duration_seconds_sum 0.3",
        "kvgate_kv_transfer_duration_seconds_sum 0.2",
        f"kvgate_kv_transfer_tokens_total {float(split.uncached_tokens)}",
        "kvgate_disaggregation_prompt_mismatches_total 0.0",
    ):
        assert line in page, line
    assert "failures={'died': 1}" in repr(counted)


def waiting(world: DisaggregatedWorld) -> dict[str, dict[str, float]]:
    """Figures by prefill worker: waiting legs and tokens, pinned blocks and tokens."""
    found: dict[str, dict[str, float]] = {}
    for line in page_of(world.disaggregation_stats, world.router).splitlines():
        if line.startswith(("kvgate_prefill_legs_", "kvgate_prefill_pinned_")):
            name, _, rest = line.removeprefix("kvgate_prefill_").partition("{")
            worker, _, value = rest.partition("} ")
            found.setdefault(worker.split('"')[1], {})[name] = float(value)
    return found


def test_waiting_legs_and_pinned_blocks_of_prefill_workers_are_exposed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ("legs_in_flight", "legs_in_flight_tokens", "pinned_blocks", "pinned_tokens")
    none = dict.fromkeys(names, 0.0)
    world = DisaggregatedWorld(monkeypatch, "p:1", "d:1")
    assert waiting(world) == {"p:1": none}
    world.ask()
    assert waiting(world) == {"p:1": none | {"legs_in_flight": 1, "legs_in_flight_tokens": 3}}
    prefilled(world)
    assert waiting(world) == {"p:1": none | {"pinned_blocks": 1, "pinned_tokens": 3}}
    world.transport("d:1").feed(HEAD, chunk(EVENT))
    assert waiting(world) == {"p:1": none}
    world.transport("d:1").feed(END)
    assert world.is_clean()


def test_transfers_counted_by_engines_are_exposed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = DisaggregatedWorld(monkeypatch, "p:1", "d:1")
    member = world.router.fleet.get(WorkerId("d:1"))
    assert member is not None
    assert "kvgate_engine_kv_transfer_bytes_total{" not in page_of(world.disaggregation_stats, world.router)
    metrics = Vllm().parse_metrics((DATA / "vllm_captures" / "metrics_decode.txt").read_text())[0]
    member.reported = reported(metrics)
    page = page_of(world.disaggregation_stats, world.router)
    assert 'kvgate_engine_kv_transfer_seconds_total{worker="d:1"} 0.68447' in page
    (sample,) = [
        line for line in page.splitlines() if line.startswith("kvgate_engine_kv_transfer_bytes_total{")
    ]
    assert float(sample.rpartition(" ")[2]) == metrics.transfer_bytes_total > 0
