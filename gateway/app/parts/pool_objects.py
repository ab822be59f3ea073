"""Priorities of objectives and rewrites of model names: from the configuration, and from Kubernetes."""

from collections.abc import Mapping
from typing import Any

from aiohttp.typedefs import Handler

from gateway.admin.app import shows
from gateway.admin.endpoint_table import AdminRoute
from gateway.admin.pool_fields import PoolObjectsView
from gateway.app.component import Component
from gateway.config import Config
from gateway.config.epp import objective_priorities
from gateway.core.pool_objects import PoolObjects, merged
from gateway.discovery.kubernetes.client import ApiClient
from gateway.discovery.kubernetes.cluster import cluster_access
from gateway.discovery.kubernetes.pool_objects import WatchedPoolObjects
from gateway.discovery.kubernetes.watch import WatchTimes
from gateway.runtime.tasks import Tasks


class PoolObjectsPart(Component):
    """Objectives and rewrites in use: an object counts more than the configuration, and of several pools the
    first one."""

    admin_routes = (
        AdminRoute(
            "GET",
            "/admin/pool-objects",
            "pool_objects",
            "priorities of inference objectives, and rewrites of model names",
            PoolObjectsView,
        ),
    )

    def __init__(self, config: Config) -> None:
        """Make the watches of the pools. Raises ConfigError where no API server can be asked."""
        options = config.kubernetes
        self._configured = objective_priorities(config.epp.objectives)
        self.objects = PoolObjects(self._configured)
        self._client: ApiClient | None = None
        self._pools: list[WatchedPoolObjects] = []
        if options.pool_objects:
            self._client = ApiClient(cluster_access(options, needed_by="kubernetes_pool_objects"))
            times = WatchTimes(options.relist_s, options.silence_s)
            for name in dict.fromkeys(options.pool_objects):
                namespace, _, pool = name.partition("/")
                self._pools.append(WatchedPoolObjects(namespace, pool, self._client, self._use, times))

    async def start(self, tasks: Tasks) -> None:
        for pool in self._pools:
            pool.start(tasks.start)

    async def stop(self) -> None:
        for pool in self._pools:
            pool.stop()
        if self._client is not None:
            await self._client.close()

    def admin_handlers(self) -> Mapping[str, Handler]:
        return {"pool_objects": shows(self._describe)}

    def _use(self) -> None:
        found: dict[str, int] = {}
        for pool in self._pools:
            found = {**pool.priorities, **found}
        self.objects.objectives = self._configured | found
        self.objects.rewrites = merged(pool.found.rewrites for pool in self._pools)

    def _describe(self) -> dict[str, Any]:
        pools = []
        for pool in self._pools:
            rewrites = pool.found.rewrites
            pools.append(
                {
                    "pool": pool.name,
                    "objectives": pool.priorities,
                    "rewrites": {name: models.weights for name, models in rewrites.by_name.items()},
                    "others": rewrites.others and rewrites.others.weights,
                    "last_error": pool.last_error,
                }
            )
        return {"objectives": self.objects.objectives, "pools": pools}
