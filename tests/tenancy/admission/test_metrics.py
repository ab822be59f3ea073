"""Admission statistics for operators: the admin page and the metrics."""

from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from gateway.config.tenant_limits import TenantLimits
from gateway.tenancy.admission.metrics import AdmissionCollector, describe_admission
from gateway.tenancy.admission.saturation import Saturation
from tests.support.worlds.gate import GateWorld


def busy() -> GateWorld:
    world = GateWorld(
        Saturation(max_in_flight=1),
        "a:1",
        tenants={"t": TenantLimits(requests_per_s=100, tokens_per_min=60_000, weight=2.0)},
        timeout_s=1.0,
    )
    world.ask("t", 100)
    world.ask("t", 100)
    world.loop.advance(1.1)  # the second has waited too long
    world.ask("t", 100)
    world.ask("u", 50, priority=3)
    return world


def test_the_page_shows_queues_tenants_and_reasons_of_rejections() -> None:
    page = describe_admission(busy().gate)
    (queue,) = page["queues"]
    assert (queue["model"], queue["queued_requests"], queue["queued_prompt_tokens"]) == ("m", 2, 278)
    assert [(band["name"], band["queued_requests"]) for band in queue["priorities"]] == [("0", 1), ("3", 1)]
    assert queue["exits"] == {"timeout": 1} and queue["predicted_wait_s"] > 0
    shown = [(tenant["name"], tenant["in_flight"], tenant["weight"]) for tenant in page["tenants"]]
    assert shown == [("t", 2, 2.0), ("u", 1, 1.0)]
    (refusal,) = page["rejections"]
    assert (refusal["tenant"], refusal["status"], refusal["error"]) == ("t", 429, "queue_timeout")
    assert "saturated" in refusal["message"]


def test_without_a_gate_the_page_is_off() -> None:
    page: dict[str, Any] = describe_admission(None)
    assert page == {"is_enabled": False, "queues": [], "tenants": [], "rejections": []}


def test_metrics() -> None:
    registry = CollectorRegistry()
    registry.register(AdmissionCollector(busy().gate))
    lines = generate_latest(registry).decode().splitlines()
    assert [
        line
        for line in (
            'kvgate_queue_requests{model="m"} 2.0',
            'kvgate_queue_prompt_tokens{model="m"} 278.0',
            'kvgate_queue_wait_seconds_count{model="m"} 1.0',
            'kvgate_queue_exits_total{model="m",result="timeout"} 1.0',
            'kvgate_tenant_admitted_requests_total{tenant="t"} 3.0',
            'kvgate_tenant_rejected_requests_total{error="queue_timeout",tenant="t"} 1.0',
            'kvgate_tenant_requests_in_flight{tenant="t"} 2.0',
        )
        if line not in lines
    ] == []
