"""Workers behind a name, which resolves to the addresses that the test gives."""

from collections.abc import Sequence

from gateway.core.worker import Worker
from gateway.discovery.dns import Resolver
from gateway.http.networks import Reachable
from tests.support.worlds.lifecycle import LifecycleWorld
from tests.support.worlds.roster import RosterWorld

NAME = "dns+https://engines:8000/v"
ONE, TWO = "https://10.0.0.1:8000/v", "https://10.0.0.2:8000/v"


class NamedWorld:
    def __init__(self) -> None:
        self.world, self.lifecycle = RosterWorld(), LifecycleWorld().lifecycle
        self.answer: Sequence[str] | Exception = ["10.0.0.1", "10.0.0.2"]
        self.inherited: list[tuple[str, str, str]] = []
        self.asked: list[tuple[str, int]] = []
        self.resolver = Resolver(
            self.world.roster,
            self.lifecycle,
            inherit=lambda *call: self.inherited.append(call),
            reachable=Reachable(),
            interval_s=1000.0,
            resolve=self._resolve,
        )

    async def _resolve(self, host: str, port: int) -> Sequence[str]:
        self.asked.append((host, port))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def look(self, *answer: str) -> None:
        self.answer = answer or self.answer
        await self.resolver.look()
        await self.world.roster.first_look()

    @property
    def urls(self) -> list[str]:
        return sorted(endpoint.url for endpoint in self.world.roster)

    @property
    def draining(self) -> list[str]:
        return sorted(self.lifecycle.draining)

    def workers(self, url: str) -> tuple[Worker, ...]:
        endpoint = self.world.roster.find(url)
        return endpoint.workers if endpoint else ()
