"""The admin port's sources: the collector and the status view of each component of a gateway."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from aiohttp import web
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector as RegistryCollector

from gateway.admin.app import Admin
from gateway.admin.auth import add_guard, key_handlers
from gateway.admin.explain import Preview
from gateway.admin.lora import AdapterAdmin
from gateway.admin.workers import FleetAdmin
from gateway.bookings.metrics import BookingsCollector
from gateway.decide.metrics import DecideCollector
from gateway.disaggregation.metrics import DisaggregationCollector
from gateway.discovery.kubernetes.metrics import KubernetesCollector
from gateway.discovery.lifecycle_metrics import LifecycleCollector
from gateway.discovery.lora_loading import AdapterLoader
from gateway.discovery.recovery_metrics import RecoveryCollector
from gateway.epp.metrics import EppCollector
from gateway.models.metrics import ModelsCollector
from gateway.observability.cache_loss.metrics import LossCollector
from gateway.observability.collector import MetricsCollector, registry_of
from gateway.observability.verification.metrics import VerifyCollector, describe, summary
from gateway.proxy.retry_metrics import RetriesCollector
from gateway.replication.metrics import ReplicaCollector
from gateway.routing.active_policy import PolicyCollector
from gateway.routing.experiment_metrics import ExperimentsCollector
from gateway.routing.prediction_metrics import PredictionsCollector
from gateway.runtime.build import VERSION, is_compiled
from gateway.scaling.metrics import ScalingCollector
from gateway.scaling.report import describe as describe_advice
from gateway.tenancy.admission.metrics import AdmissionCollector, describe_admission
from gateway.tenancy.auth.metrics import KeysCollector

if TYPE_CHECKING:
    from gateway.app.gateway import Gateway


class _Flow(RegistryCollector):
    """Metrics of admission control, once it is on: a reload of the configuration may turn it on."""

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway

    def collect(self) -> Iterator[Metric]:
        if gate := self._gateway.dispatch.context.gate:
            yield from AdmissionCollector(gate).collect()


def collectors_of(gateway: "Gateway") -> Sequence[RegistryCollector]:
    return (
        MetricsCollector(
            gateway.metrics,
            gateway.fleet,
            gateway.router.ledger,
            gateway.index,
            gateway.assumed,
            gateway.roster.stream_counts,
            lambda: len(gateway.connections),
            (VERSION, is_compiled),
        ),
        _lifecycle_of(gateway),
        KubernetesCollector(gateway.sources.kubernetes),
        LossCollector(gateway.losses),
        VerifyCollector(gateway.verifier),
        RecoveryCollector(gateway.recovery_observer),
        DisaggregationCollector(gateway.disaggregation_stats, gateway.router),
        *_sharing_of(gateway),
        *gateway.backend.collectors,
        RetriesCollector(gateway.dispatch.context.retries, gateway.surface.bodies),
        EppCollector(gateway.grpc_ports.counts, lambda: gateway.grpc_ports.num_held),
        DecideCollector(gateway.grpc_ports.decide_counts, lambda: gateway.grpc_ports.num_open_decisions),
        ScalingCollector(gateway.planner.advices),
        PolicyCollector(gateway.active_policy),
        PredictionsCollector(gateway.router.predictions),
        ModelsCollector(gateway.catalog, gateway.worker_tokenizer.counts),
        ExperimentsCollector(gateway.active_policy.experiments),
        _Flow(gateway),
        KeysCollector(gateway.credentials),
        *gateway.collectors,
    )


def admin_of(gateway: "Gateway") -> web.Application:
    app = Admin(
        api=gateway.api,
        router=gateway.router,
        workers=_workers_of(gateway),
        records=gateway.records,
        registry=registry_of(collectors_of(gateway)),
        losses=gateway.losses,
        describe_tokenizer=lambda: {
            **gateway.prompts.describe(),
            "models": gateway.catalog.describe(),
            "remote_tokenizers": gateway.worker_tokenizer.describe(),
        },
        describe_verify=lambda: describe(gateway.verifier, gateway.metrics, gateway.prompts.decode),
        describe_admission=lambda: describe_admission(gateway.dispatch.context.gate),
        describe_advice=lambda: describe_advice(gateway.planner.advices()),
        reload=gateway.reload,
        policies=gateway.active_policy,
        traffic=gateway.traffic,
        preview=Preview(gateway.dispatch, gateway.active_policy.parts_of, gateway.credentials.authenticator),
    ).app({**key_handlers(gateway.credentials), **_adapters_of(gateway).handlers()})
    if gateway.config.server.processes == 1:  # else the supervisor asks who it is
        add_guard(app, gateway.credentials, gateway.config)
    return app


def _sharing_of(gateway: "Gateway") -> Iterator[RegistryCollector]:
    if gateway.shared:
        yield ReplicaCollector(gateway.shared)
    if gateway.bookings:
        yield BookingsCollector(gateway.bookings)


def _lifecycle_of(gateway: "Gateway") -> LifecycleCollector:
    def joining() -> list[str]:
        return [endpoint.url for endpoint in gateway.roster if endpoint.facts is None]

    return LifecycleCollector(gateway.fleet, gateway.lifecycle, joining)


def _adapters_of(gateway: "Gateway") -> AdapterAdmin:
    loading = AdapterLoader(
        gateway.fleet,
        gateway.roster,
        gateway.engines.named,
        gateway.session,
        gateway.worker_headers,
        gateway.config.admin.adapter_timeout_s,
    )
    return AdapterAdmin(loading, is_on=gateway.config.admin.load_adapters)


def _workers_of(gateway: "Gateway") -> FleetAdmin:
    return FleetAdmin(
        gateway.router,
        gateway.roster,
        gateway.lifecycle,
        gateway.sources,
        gateway.access,
        lambda worker: summary(gateway.verifier, worker),
        gateway.catalog.tokens_at,
        gateway.metrics,
    )
