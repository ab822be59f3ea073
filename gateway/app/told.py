"""What a gateway tells on its admin port: each part's collector, each part's description."""

from typing import TYPE_CHECKING

from aiohttp import web
from prometheus_client.registry import Collector as RegistryCollector

from gateway.admin import Admin
from gateway.choosing import PolicyCollector
from gateway.flow.told import FlowCollector, describe_flow
from gateway.ingest.metrics import HealerCollector
from gateway.ingest.tree_metrics import TreeCollector
from gateway.loss.metrics import LossCollector
from gateway.metrics import Collector, registry_of
from gateway.models.metrics import ModelsCollector
from gateway.preview import Preview
from gateway.split_metrics import SplitsCollector
from gateway.trials.metrics import TrialsCollector
from gateway.verify.metrics import VerifyCollector, describe, summary

if TYPE_CHECKING:
    from gateway.app.gateway import Gateway


def admin_of(gateway: "Gateway") -> web.Application:
    gate = gateway.proxy.gate
    return Admin(
        api=gateway.api,
        router=gateway.router,
        roster=gateway.roster,
        records=gateway.records,
        registry=registry_of(_collectors(gateway)),
        losses=gateway.losses,
        describe_tokenizer=lambda: {
            **gateway.prompts.describe(),
            "models": gateway.catalog.describe(),
            "asked_of_workers": gateway.worker_tokenizer.describe(),
        },
        describe_verify=lambda: describe(gateway.verifier, gateway.metrics, gateway.prompts.decode),
        verified=lambda worker: summary(gateway.verifier, worker),
        tokens_at=gateway.catalog.tokens_at,
        describe_flow=lambda: describe_flow(gate),
        policies=gateway.choosing,
        preview=Preview(gateway.proxy, gateway.choosing.parts_of),
    ).app()


def _collectors(gateway: "Gateway") -> tuple[RegistryCollector, ...]:
    gate = gateway.proxy.gate
    return (
        Collector(
            gateway.metrics,
            gateway.fleet,
            gateway.router.ledger,
            gateway.index,
            gateway.assumed,
            gateway.roster.stream_counts,
            lambda: len(gateway.connections),
        ),
        LossCollector(gateway.losses),
        VerifyCollector(gateway.verifier),
        HealerCollector(gateway.healer),
        SplitsCollector(gateway.splits, gateway.router),
        *[sharing.collector() for sharing in gateway.sharing],
        *([TreeCollector(gateway.tree)] if gateway.tree else []),
        PolicyCollector(gateway.choosing),
        ModelsCollector(gateway.catalog, gateway.worker_tokenizer.counts),
        TrialsCollector(gateway.choosing.trials),
        *([FlowCollector(gate)] if gate else []),
    )
