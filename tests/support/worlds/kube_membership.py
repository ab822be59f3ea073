"""Members of a fleet that come and go with pods."""

from collections.abc import Sequence

from gateway.core.worker import Worker
from gateway.discovery.kubernetes.endpoints import KubernetesEndpoint
from gateway.discovery.kubernetes.membership import Membership, SourceMembers
from gateway.discovery.lifecycle import Lifecycle
from gateway.http.networks import Reachable
from tests.support.worlds.lifecycle import LifecycleWorld
from tests.support.worlds.roster import RosterWorld

SOURCE, OTHER = "k8s://llm/pods?app=a&port=1", "k8s://llm/pods?app=b&port=1"
URL, TWO = "http://10.0.0.1:1", "http://10.0.0.2:1"


class MembershipWorld:
    def __init__(self) -> None:
        self.world = RosterWorld()
        self.lifecycle: Lifecycle = LifecycleWorld().lifecycle
        self.inherited: list[tuple[str, str, str]] = []
        self.membership = Membership(
            self.world.roster,
            self.lifecycle,
            inherit=lambda *call: self.inherited.append(call),
            reachable=Reachable(),
        )
        self.membership.sources[SOURCE] = SourceMembers(server_name="vllm.llm.svc")

    async def apply(self, *endpoints: KubernetesEndpoint, source: str = SOURCE) -> None:
        self.membership.apply(source, {each.url: each for each in endpoints})
        await self.world.roster.first_look()

    @property
    def urls(self) -> list[str]:
        return sorted(endpoint.url for endpoint in self.world.roster)

    def why(self, url: str = URL) -> str | None:
        return self.lifecycle.why(url)

    def workers(self, url: str) -> Sequence[Worker]:
        endpoint = self.world.roster.find(url)
        return endpoint.workers if endpoint else ()

    def finish_drains(self) -> None:
        for url in self.lifecycle.to_drop(self.workers):
            self.world.roster.drop(url)
            self.lifecycle.dropped(url, ())
