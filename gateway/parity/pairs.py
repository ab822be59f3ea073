"""Token parity of pairs: two workers must fit (`core/pd_pairs.py`), and make the same tokens of one prompt.

    joined ─ tokenizes ─ like all its partners ─► nothing
                       └ differs ─► both tokenize again, at once ─ still differ ─► banned pair, in the log

Without parity an answer would be made from another prompt's cache, and nothing else would notice. The check
runs beside all requests: once per worker, and again where it differs, since some templates contain the date.
A worker without `/tokenize` is not checked.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Protocol

from gateway.core.fleet import Fleet
from gateway.core.pd_pairs import are_pair, kind_of, misfits
from gateway.core.worker import Worker, WorkerId
from gateway.parity.comparison import Made, parity_difference
from gateway.parity.prober import Prober
from gateway.runtime.rate_limited_log import RateLimitedLog

log = logging.getLogger("kvgate.roster")

Start = Callable[[str, Coroutine[None, None, None]], object]


class PairBans(Protocol):
    """Keeps banned pairs."""

    def ban(self, prefill: WorkerId, decode: WorkerId, why: str) -> bool: ...


class PairParity:
    """Checks the token parity of pairs; `start` runs a task in the background."""

    def __init__(self, fleet: Fleet, bans: PairBans, prober: Prober, start: Start) -> None:
        self._fleet = fleet
        self._bans = bans
        self._prober = prober
        self._start = start
        self._log = RateLimitedLog(log)
        self._made: dict[WorkerId, tuple[Worker, Made]] = {}
        """The prompts of the first rank of each endpoint: all ranks are one server."""

    def __repr__(self) -> str:
        return f"PairParity({len(self._made)} asked)"

    def joined(self, workers: Sequence[Worker]) -> None:
        """Compare the workers of an endpoint that has joined with their partners."""
        ours = {worker.id for worker in workers}
        for prefill, decode, why in misfits(member.worker for member in self._fleet):
            if not ours.isdisjoint((prefill, decode)):
                self._log.warning("workers %s and %s: not used as a pair (%s)", prefill, decode, why)
        if kind_of(workers[0]):
            self._start(f"compare prompts of {workers[0].id}", self._compare(workers[0]))

    async def _compare(self, worker: Worker) -> None:
        await self._ask(worker)
        self._made = {name: made for name, made in self._made.items() if self._is_here(made[0])}
        for other, _ in list(self._made.values()):
            if self._differ(worker, other):
                await self._doubt(worker, other)

    async def _doubt(self, one: Worker, other: Worker) -> None:
        await asyncio.gather(self._ask(one), self._ask(other))
        why = self._differ(one, other)
        for prefill, decode in ((one, other), (other, one)):
            if why and are_pair(prefill, decode):
                self._log.error(
                    "workers %s and %s: prompts differ (%s); not used as a pair until one of them is "
                    "restarted with the model and the chat template of the other",
                    prefill.id, decode.id, why,
                )  # fmt: skip
                self._ban(prefill.url, decode.url, why)

    def _ban(self, prefill_url: str, decode_url: str, why: str) -> None:
        ranks = [member.worker for member in self._fleet if member.worker.url in (prefill_url, decode_url)]
        for prefill in ranks:
            for decode in ranks:
                if (prefill.url, decode.url) == (prefill_url, decode_url):
                    self._bans.ban(prefill.id, decode.id, why)

    def _differ(self, one: Worker, other: Worker) -> str | None:
        """Return how the prompts of a pair differ, or None; also None where either worker has left."""
        if not are_pair(one, other) and not are_pair(other, one):
            return None
        return parity_difference(self._made_by(one), self._made_by(other))

    def _made_by(self, worker: Worker) -> Made:
        known, made = self._made.get(worker.id, (None, {}))
        return made if known is worker and self._is_here(worker) else {}

    async def _ask(self, worker: Worker) -> None:
        made = await self._prober.made_by(worker.url, worker.served[0].name)
        if self._is_here(worker):
            self._made[worker.id] = worker, made

    def _is_here(self, worker: Worker) -> bool:
        """True if the worker is in the fleet, as the same process as when it joined."""
        member = self._fleet.get(worker.id)
        return member is not None and member.worker is worker
