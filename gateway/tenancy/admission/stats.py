"""Statistics of admission control: counts, recent rejections with their reasons, metrics and the admin API.

A bounded number of unconfigured tenants have metrics of their own; the others share one label.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.core.errors import GatewayError
from gateway.core.requests.request import InferenceRequest
from gateway.http.messages import HttpRequest
from gateway.runtime.ids import new_id
from gateway.tenancy.admission.tenants import Tenant

if TYPE_CHECKING:
    from gateway.tenancy.admission.gate import Gate
    from gateway.tenancy.admission.queues import ModelQueue

MAX_REFUSALS = 100
MAX_TENANTS_SHOWN = 200


class AdmissionStats:
    """Admission counts, keyed by the tenant's metric label."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.refused: Counter[tuple[str, str]] = Counter()  # and code
        self.tokens: Counter[tuple[str, str]] = Counter()  # and kind
        self.latest: deque[dict[str, Any]] = deque(maxlen=MAX_REFUSALS)

    def reject(
        self, request: InferenceRequest, tenant: Tenant, error: GatewayError, http: HttpRequest
    ) -> None:
        request_id = (http.header(b"x-request-id") or b"")[:128].decode("latin-1")
        self.refused[tenant.label, error.code] += 1
        self.latest.append(
            {
                "id": new_id(8),
                "request_id": request_id,
                "model": request.model,
                "tenant": tenant.name,
                "priority": request.priority or 0,
                "status": error.status,
                "code": error.code,
                "reason": error.message,
                "retry_after_s": error.retry_after_s,
                "queued_s": round(request.queued_s, 3),
            }
        )


def describe_admission(gate: "Gate | None") -> dict[str, Any]:
    """Admission state for `/admin/flow`."""
    if gate is None:
        return {"is_on": False, "queues": [], "tenants": [], "refusals": []}
    now = gate.now()
    tenants = sorted(gate.tenants.known(), key=lambda tenant: -tenant.num_active)
    return {
        "is_on": True,
        "queues": [_queue(gate, model, known, now) for model, known in sorted(gate.queues.models.items())],
        "tenants": [_tenant(tenant, now) for tenant in tenants[:MAX_TENANTS_SHOWN]],
        "refusals": list(reversed(gate.stats.latest)),
    }


def _queue(gate: "Gate", model: str, known: "ModelQueue", now: float) -> dict[str, Any]:
    return {
        "model": model,
        "queued": len(known.queue),
        "queued_tokens": known.queue.num_tokens,
        "drained_in_s": round(gate.queues.wait_s(known, model, known.queue.num_tokens), 3),
        "bands": [
            {"name": str(band.priority), "queued": band.num_waiting, "queued_tokens": band.num_tokens}
            for band in known.queue.bands()
        ],
        "ends": dict(known.ends),
    }


def _tenant(tenant: Tenant, now: float) -> dict[str, Any]:
    return {
        "name": tenant.name,
        "under_way": tenant.num_active,
        "requests_left": round(tenant.requests.level(now), 1) if tenant.requests else None,
        "tokens_left": round(tenant.tokens.level(now)) if tenant.tokens else None,
        "weight": tenant.limits.weight,
    }


class AdmissionCollector(Collector):
    def __init__(self, gate: "Gate") -> None:
        self._gate = gate

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        yield from self._is_queueing()
        yield from self._tenants()

    def _is_queueing(self) -> Iterator[Metric]:
        models = sorted(self._gate.queues.models.items())
        waiting = GaugeMetricFamily(
            "kvgate_queue_requests", "Requests queued in this gateway", labels=["model"]
        )
        tokens = GaugeMetricFamily(
            "kvgate_queue_tokens", "Prompt tokens of the queued requests", labels=["model"]
        )
        wait = HistogramMetricFamily(
            "kvgate_queue_wait_seconds",
            "Time that requests were queued, whatever the outcome",
            labels=["model"],
        )
        ends = CounterMetricFamily(
            "kvgate_queue_ends", "Requests that were queued, by outcome", labels=["model", "how"]
        )
        for model, known in models:
            waiting.add_metric([model], len(known.queue))
            tokens.add_metric([model], known.queue.num_tokens)
            wait.add_metric([model], known.wait_s.buckets(), known.wait_s.sum)
            for how, num in sorted(known.ends.items()):
                ends.add_metric([model, how], num)
        yield from (waiting, tokens, wait, ends)

    def _tenants(self) -> Iterator[Metric]:
        stats = self._gate.stats
        requests = CounterMetricFamily("kvgate_tenant_requests", "Requests admitted", labels=["tenant"])
        for tenant, num in sorted(stats.requests.items()):
            requests.add_metric([tenant], num)
        refused = CounterMetricFamily("kvgate_tenant_refused", "Requests rejected", labels=["tenant", "code"])
        for (tenant, code), num in sorted(stats.refused.items()):
            refused.add_metric([tenant, code], num)
        tokens = CounterMetricFamily(
            "kvgate_tenant_tokens", "Tokens of admitted requests", labels=["tenant", "kind"]
        )
        for (tenant, kind), num in sorted(stats.tokens.items()):
            tokens.add_metric([tenant, kind], num)
        active: Counter[str] = Counter()
        for each in self._gate.tenants.known():
            active[each.label] += each.num_active
        in_flight = GaugeMetricFamily(
            "kvgate_tenant_requests_in_flight",
            "Requests admitted and not yet ended, including queued ones",
            labels=["tenant"],
        )
        for tenant, num in sorted(active.items()):
            in_flight.add_metric([tenant], num)
        yield from (requests, refused, tokens, in_flight)
