"""Proofs that workers give before they join: of tenants' caches kept apart, and of unknown names refused."""

from collections.abc import Callable, Mapping, Sequence

from gateway.app.component import Component
from gateway.app.parts.worker_access import WorkerAccessPart
from gateway.core.eligibility import Eligibility
from gateway.core.fleet import Fleet
from gateway.discovery.name_prober import NameProber
from gateway.discovery.probed import Facts
from gateway.discovery.salt_prober import SaltProber, keep_proving
from gateway.runtime.tasks import Tasks


class ProofsPart(Component):
    """Probers of salts and names. `known` has the endpoints to be asked again; the part that keeps them sets
    it."""

    known: Callable[[], Sequence[Facts | None]] = staticmethod(lambda: ())

    def __init__(self, fleet: Fleet, eligibility: Eligibility, workers: WorkerAccessPart) -> None:
        self._fleet, self._eligibility, self._workers = fleet, eligibility, workers
        self.salts = SaltProber(eligibility, self._ask)
        self.names = NameProber(eligibility, workers.post)

    async def start(self, tasks: Tasks) -> None:
        if self._eligibility.needs_salt:
            proving = keep_proving(self.salts, lambda: self.known(), self._fleet.judge_again)
            tasks.start("prove salts", proving)

    async def prove(self, facts: Facts) -> None:
        """Have an endpoint prove what it does with salts and with unknown names, before it joins."""
        if any([await self.salts.prove(facts), await self.names.prove(facts)]):
            self._fleet.judge_again()

    def drop(self, url: str) -> None:
        self.salts.drop(url)
        self.names.drop(url)

    async def _ask(self, url: str, path: str, body: object, headers: Mapping[str, str]) -> bytes | None:
        return await self._workers.session.post(url, path, body, {**self._workers.headers, **headers})
