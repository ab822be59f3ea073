"""Roster with one joined worker, and a client of its admin API."""

from functools import partial
from typing import Any, cast

from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import CollectorRegistry

from gateway.admin.app import (
    application,
    decision_handlers,
    explain_handlers,
    index_handlers,
    metrics_handlers,
    policy_handlers,
    probe_handlers,
    reload_handlers,
    shows,
    traffic_handlers,
)
from gateway.admin.console.traffic_history import TrafficHistory
from gateway.admin.explain import Preview
from gateway.admin.workers import FleetAdmin
from gateway.config import config_of
from gateway.config.kubernetes import KubernetesSection
from gateway.core.decision import Prompt
from gateway.core.errors import ConfigError
from gateway.discovery.dns import Resolver
from gateway.discovery.kubernetes.cluster import cluster_access
from gateway.discovery.kubernetes.membership import Membership
from gateway.discovery.kubernetes.watch import WatchTimes
from gateway.discovery.kubernetes.watched_sources import KubernetesSources
from gateway.discovery.lifecycle import Lifecycle, RemainingWork
from gateway.discovery.outlier_detection import OutlierRules
from gateway.discovery.sources import Sources
from gateway.observability.cache_loss.observer import CacheLoss
from gateway.observability.collector import MetricsCollector
from gateway.policies.least_load import LeastLoad
from gateway.proxy.api import Api
from gateway.proxy.dispatch import Dispatch
from gateway.routing.active_policy import ActivePolicy
from gateway.routing.decision_log import DecisionLog
from gateway.routing.router import Router
from gateway.runtime.tasks import Tasks
from gateway.upstream.access import FleetAccess
from tests.support.worlds.roster import RosterWorld, W


class Admined:
    """Roster with one joined worker, and a client of its admin API."""

    def __init__(self, world: RosterWorld) -> None:
        self.world, self.records = world, DecisionLog()
        self.refusal: str | None = None
        self.router = Router(
            fleet=world.fleet,
            index=world.known.index,
            assumed=world.known.assumed,
            policy=LeastLoad(),
            tokenize=lambda request: Prompt(),
        )
        self.lifecycle = Lifecycle(
            world.fleet,
            RemainingWork(lambda w: self.router.ledger.load(w).num_in_flight, lambda w: 0, lambda w: 0),
            num_answered=lambda worker: 0,
            observers=self.router.observers,
            on_ejected=lambda worker, why: None,
            rules=OutlierRules(),
            slow_start_s=10.0,
        )
        self.access = FleetAccess()
        self.resolver = Resolver(
            world.roster,
            self.lifecycle,
            inherit=self.access.inherit,
            reachable=self.access.reachable,
            interval_s=1000.0,
        )
        membership = Membership(
            world.roster, self.lifecycle, inherit=self.access.inherit, reachable=self.access.reachable
        )
        cluster = partial(cluster_access, KubernetesSection(), {})
        kubernetes = KubernetesSources(membership, Tasks().start, cluster=cluster, times=WatchTimes())
        self.api = Api(cast(Dispatch, None), world.fleet, world.metrics)
        registry = CollectorRegistry()
        registry.register(
            MetricsCollector(
                world.metrics,
                world.fleet,
                self.router.ledger,
                world.known.index,
                world.known.assumed,
                world.roster.stream_counts,
                lambda: 0,
                ("0", False),
            )
        )
        self.active_policy = ActivePolicy(config_of(policy="least_load"))
        workers = FleetAdmin(
            self.router,
            world.roster,
            self.lifecycle,
            Sources(self.resolver, kubernetes),
            self.access,
            lambda worker: {"compared": 7},
            lambda url: [],
            world.metrics,
        )
        handlers = {
            **workers.handlers(),
            **probe_handlers(world.fleet, self.api),
            **metrics_handlers(registry),
            **index_handlers(world.fleet, world.known.index, world.known.assumed),
            **policy_handlers(self.active_policy),
            **decision_handlers(self.records, self.active_policy.parts_of),
            **explain_handlers(Preview(cast(Dispatch, None), lambda decision: ())),
            **reload_handlers(self._reload),
            **traffic_handlers(TrafficHistory(world.metrics)),
            "cache_loss": shows(CacheLoss(lambda model, tokens: None).describe),
            "tokenizer": shows(lambda: {"models": [{"model": "m", "encoder": "fake"}]}),
            "verify": shows(lambda: {"workers": [{"worker": W, "compared": 7}]}),
            "advice": shows(lambda: {"groups": [], "prefill_decode": []}),
            "admission": shows(lambda: {"is_enabled": True, "queues": [{"model": "m", "waiting": 3}]}),
        }
        self.client = TestClient(TestServer(application(handlers)))

    async def _reload(self) -> dict[str, int]:
        if self.refusal:
            raise ConfigError(self.refusal)
        return {"generation": 2}

    async def get(self, path: str, status: int = 200) -> Any:
        answer = await self.client.get(path)
        assert answer.status == status
        assert answer.content_type == "application/json"
        return await answer.json()
