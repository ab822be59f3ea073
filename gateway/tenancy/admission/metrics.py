"""Metrics of admission control, and its page of the admin API.

A bounded number of unconfigured tenants have metrics of their own; the others share one label.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.observability.metric_spec import Merge, counter, gauge, histogram
from gateway.tenancy.admission.gate import Gate
from gateway.tenancy.admission.model_queue import ModelQueue
from gateway.tenancy.admission.tenants import Tenant

MAX_TENANTS_SHOWN = 200


def describe_admission(gate: Gate | None) -> dict[str, Any]:
    """Admission state for `/admin/admission`."""
    if gate is None:
        return {"is_enabled": False, "queues": [], "tenants": [], "rejections": []}
    now = gate.now()
    tenants = sorted(gate.tenants.known(), key=lambda tenant: -tenant.num_active)
    return {
        "is_enabled": True,
        "queues": [_queue(gate, model, known, now) for model, known in sorted(gate.queues.models.items())],
        "tenants": [_tenant(tenant, now) for tenant in tenants[:MAX_TENANTS_SHOWN]],
        "rejections": list(reversed(gate.stats.latest)),
    }


def _queue(gate: Gate, model: str, known: ModelQueue, now: float) -> dict[str, Any]:
    return {
        "model": model,
        "queued_requests": len(known.queue),
        "queued_prompt_tokens": known.queue.num_tokens,
        "queued_body_bytes": known.num_bytes,
        "zero_for_s": round(now - known.zero_since_s, 3) if known.zero_since_s is not None else None,
        "predicted_wait_s": round(gate.queues.wait_s(known, model, known.queue.num_tokens), 3),
        "priorities": [
            {
                "name": str(band.priority),
                "queued_requests": band.num_waiting,
                "queued_prompt_tokens": band.num_tokens,
            }
            for band in known.queue.bands()
        ],
        "exits": dict(known.ends),
    }


def _tenant(tenant: Tenant, now: float) -> dict[str, Any]:
    return {
        "name": tenant.name,
        "in_flight": tenant.num_active,
        "remaining_requests": round(tenant.requests.level(now), 1) if tenant.requests else None,
        "remaining_tokens": round(tenant.tokens.level(now)) if tenant.tokens else None,
        "weight": tenant.limits.weight,
    }


QUEUED = gauge(
    "kvgate_queue_requests", "Requests that wait in the admission queue, by model.", "model", merge=Merge.SUM
)
QUEUED_TOKENS = gauge(
    "kvgate_queue_prompt_tokens",
    "Prompt tokens of requests that wait in the admission queue, by model.",
    "model",
    merge=Merge.SUM,
)
QUEUED_BYTES = gauge(
    "kvgate_queue_body_bytes",
    "Bytes of request bodies that wait in the admission queue, by model.",
    "model",
    merge=Merge.SUM,
)
WAIT = histogram(
    "kvgate_queue_wait_seconds",
    "Time that requests spent in the admission queue in seconds, whether sent or rejected, by model.",
    "model",
)
EXITS = counter(
    "kvgate_queue_exits_total",
    "Requests that left the admission queue, by model and result.",
    "model",
    "result",
)
ADMITTED = counter("kvgate_tenant_admitted_requests_total", "Requests admitted, by tenant.", "tenant")
REJECTED = counter(
    "kvgate_tenant_rejected_requests_total",
    "Requests rejected by admission control, by tenant and error code.",
    *("tenant", "error"),
)
TOKENS = counter(
    "kvgate_tenant_tokens_total",
    "Tokens of admitted requests, by tenant and kind of token.",
    *("tenant", "kind"),
)
IN_FLIGHT = gauge(
    "kvgate_tenant_requests_in_flight",
    "Admitted and queued requests that have not finished, by tenant.",
    "tenant",
    merge=Merge.SUM,
)

METRICS = (QUEUED, QUEUED_TOKENS, QUEUED_BYTES, WAIT, EXITS, ADMITTED, REJECTED, TOKENS, IN_FLIGHT)


class AdmissionCollector(Collector):
    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def collect(self) -> Iterator[Metric]:
        yield from self._queues()
        yield from self._tenants()

    def _queues(self) -> Iterator[Metric]:
        models = sorted(self._gate.queues.models.items())
        yield QUEUED.family((model, len(known.queue)) for model, known in models)
        yield QUEUED_TOKENS.family((model, known.queue.num_tokens) for model, known in models)
        yield QUEUED_BYTES.family((model, known.num_bytes) for model, known in models)
        yield WAIT.histograms((model, known.wait_s) for model, known in models)
        yield EXITS.family(
            ((model, result), num) for model, known in models for result, num in sorted(known.ends.items())
        )

    def _tenants(self) -> Iterator[Metric]:
        stats = self._gate.stats
        yield ADMITTED.family(sorted(stats.requests.items()))
        yield REJECTED.family(sorted(stats.refused.items()))
        yield TOKENS.family(sorted(stats.tokens.items()))
        active: Counter[str] = Counter()
        for each in self._gate.tenants.known():
            active[each.label] += each.num_active
        yield IN_FLIGHT.family(sorted(active.items()))
