"""Sources of workers in Kubernetes, with an API server of the test."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.discovery.kubernetes.cluster import ClusterAccess
from gateway.discovery.kubernetes.watch import WatchTimes
from gateway.discovery.kubernetes.watched_sources import KubernetesSources
from gateway.runtime.tasks import Tasks
from tests.support.kube_api import KubeApi
from tests.support.worlds.kube_membership import MembershipWorld

BY_LABEL = "k8s://llm/pods?app=vllm&port=http"


class SourcesWorld:
    def __init__(self, api: KubeApi) -> None:
        self.api, self.members, self.tasks = api, MembershipWorld(), Tasks()
        self.sources = KubernetesSources(
            self.members.membership,
            self.tasks.start,
            cluster=lambda: ClusterAccess(api.url),
            times=WatchTimes(),
        )

    def urls(self, source: str) -> list[str]:
        return sorted(self.sources.names[source].members)

    def error(self, source: str) -> str | None:
        return self.sources.names[source].last_error


@asynccontextmanager
async def sources_world() -> AsyncIterator[SourcesWorld]:
    api = await KubeApi().start()
    made = SourcesWorld(api)
    try:
        yield made
    finally:
        await made.tasks.stop()
        await made.sources.close()
        await made.members.world.roster.stop()
        await api.stop()
