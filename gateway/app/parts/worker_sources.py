"""Workers as they are given: by URL, by a name in DNS, or by an object in Kubernetes."""

from collections.abc import Mapping, Sequence
from functools import partial

from aiohttp.typedefs import Handler
from prometheus_client.registry import Collector

from gateway.admin.workers import FleetAdmin
from gateway.app.component import Component, ConfigChange, Swap
from gateway.app.parts.lifecycle import LifecyclePart
from gateway.app.parts.prompts import PromptsPart
from gateway.app.parts.roster import RosterPart
from gateway.app.parts.verification import VerificationPart
from gateway.app.parts.worker_access import WorkerAccessPart
from gateway.config import Config
from gateway.config.worker_specs import parse_spec
from gateway.core.worker import Role
from gateway.discovery.dns import Resolver
from gateway.discovery.kubernetes import metrics as kubernetes
from gateway.discovery.kubernetes.cluster import cluster_access
from gateway.discovery.kubernetes.membership import Membership
from gateway.discovery.kubernetes.metrics import KubernetesCollector
from gateway.discovery.kubernetes.watch import WatchTimes
from gateway.discovery.kubernetes.watched_sources import KubernetesSources
from gateway.discovery.sources import Sources
from gateway.http.address import names_several
from gateway.observability.metrics import Metrics
from gateway.routing.router import Router
from gateway.runtime.tasks import Tasks


class WorkerSourcesPart(Component):
    """Adds the configured workers at its start, and others on request."""

    metric_sections = (("Workers in Kubernetes", kubernetes.METRICS),)

    def __init__(
        self,
        config: Config,
        workers: WorkerAccessPart,
        roster: RosterPart,
        lifecycle: LifecyclePart,
        router: Router,
        metrics: Metrics,
        verification: VerificationPart,
        prompts: PromptsPart,
    ) -> None:
        self._workers, self._roster = workers, roster.roster
        states, reachable, inherit = lifecycle.lifecycle, workers.access.reachable, workers.inherit
        membership = Membership(roster.roster, states, inherit=inherit, reachable=reachable)
        options, interval_s = config.kubernetes, config.lifecycle.dns_interval_s
        self.sources = Sources(
            Resolver(roster.roster, states, inherit=inherit, reachable=reachable, interval_s=interval_s),
            KubernetesSources(
                membership,
                self.tasks.start,
                cluster=partial(cluster_access, options),
                times=WatchTimes(options.relist_s, options.silence_s),
            ),
        )
        self._admin = FleetAdmin(
            router,
            roster.roster,
            states,
            self.sources,
            workers.access,
            verification.summary,
            prompts.catalog.tokens_at,
            metrics,
        )

    async def start(self, tasks: Tasks) -> None:
        for url in self._workers.urls:
            self.add(url, self._workers.declared.roles.get(url))
        tasks.start("resolve names", self.sources.resolver.run())

    async def stop(self) -> None:
        await self.sources.kubernetes.close()

    async def reconfigure(self, change: ConfigChange) -> Swap | None:
        def swap() -> None:
            for spec in change.dropped:
                self.drop(parse_spec(spec)[0])
            for spec in change.added:
                self.add(*parse_spec(spec))

        return swap

    def add(self, url: str, role: Role | None = None) -> bool:
        """Begin to wait for a worker, or for those of a name; False if that is so already."""
        adds = self.sources.add if names_several(url) else self._roster.add
        return adds(url, role)

    def drop(self, url: str) -> bool:
        """Forget a worker, or a name and its workers: they get nothing new, and end what they have."""
        return self._roster.drop(url) or self.sources.drop(url)

    def collectors(self) -> Sequence[Collector]:
        return [KubernetesCollector(self.sources.kubernetes)]

    def admin_handlers(self) -> Mapping[str, Handler]:
        return self._admin.handlers()
