"""Salt prober: workers prove that they keep tenants' caches apart, before they join and after each restart.

Each rank of an endpoint has a cache, and proves it alone: the requests name it in a header, since answers of
several ranks prove nothing together. A worker that cannot prove it (it reports no cached tokens, or is late)
is judged by its engine's version, and asked again every `RETRY_S`. One that is suspected, because an answer
had cached tokens that no event explains (`observability/verification/salt_alarm.py`), proves it again.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from gateway.core.eligibility import CacheOwner, Eligibility, Isolation, SaltProof
from gateway.discovery.probed import Facts
from gateway.discovery.salt_proof import PATH, requests_of, verdict_of

log = logging.getLogger("kvgate.roster")

RETRY_S = 30.0
"""Time between two tries with a worker that proved nothing, and the least between two of one process."""

MAX_RANKS_AT_ONCE = 16
"""Ranks of an endpoint that are asked side by side: hundreds one after the other would join late."""
RANK_HEADER = "x-data-parallel-rank"


class Post(Protocol):
    """Posts a body to a path of an endpoint, with headers; returns None unless the status is 200."""

    def __call__(
        self, url: str, path: str, body: object, headers: Mapping[str, str], /
    ) -> Awaitable[bytes | None]: ...


@dataclass(frozen=True, slots=True)
class _Tried:
    process: tuple[str | None, float | None]
    at_s: float


class SaltProber:
    """Keeps the proofs of `eligibility`. `clock` is monotonic seconds."""

    def __init__(
        self,
        eligibility: Eligibility,
        post: Post,
        *,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._eligibility = eligibility
        self._post = post
        self._rng = rng or random.Random()
        self._clock = clock
        self._tried: dict[CacheOwner, _Tried] = {}
        self.doubted = asyncio.Event()
        """Set when a rank came into doubt."""

    def __repr__(self) -> str:
        return f"SaltProber({len(self._tried)} ranks)"

    async def prove(self, facts: Facts) -> bool:
        """Have each rank of an endpoint prove that it keeps tenants' caches apart, unless its process has
        lately. Returns True if a proof changed."""
        if not self._eligibility.needs_salt or not self._eligibility.takes_lists(facts.engine):
            return False  # the requests have token ids, which would end such an engine
        turns = asyncio.Semaphore(MAX_RANKS_AT_ONCE)
        ranks = sorted(facts.ranks) or [0]
        return any(await asyncio.gather(*[self._prove_rank(facts, rank, turns) for rank in ranks]))

    def doubt(self, url: str, rank: int) -> bool:
        """Forget that a rank has proved it, so that `unproven` names its endpoint, and `prove` asks again.
        The proof stays until then. False where it is in doubt already, or was asked less than `RETRY_S`
        ago."""
        tried = self._tried.get((url, rank))
        if tried is None or self._clock() - tried.at_s < RETRY_S:
            return False
        del self._tried[url, rank]
        self.doubted.set()
        return True

    def drop(self, url: str) -> None:
        for owner in [owner for owner in self._eligibility.proofs if owner[0] == url]:
            del self._eligibility.proofs[owner]
            self._tried.pop(owner, None)

    def unproven(self, each: Iterable[Facts | None]) -> list[Facts]:
        """Endpoints with ranks that must be asked again."""
        proofs = self._eligibility.proofs
        asked = {
            url
            for (url, rank), proof in proofs.items()
            if proof.isolation is Isolation.UNKNOWN or (url, rank) not in self._tried
        }
        return [facts for facts in each if facts is not None and facts.url in asked]

    async def _prove_rank(self, facts: Facts, rank: int, turns: asyncio.Semaphore) -> bool:
        owner = facts.url, rank
        if self._is_known(facts, owner):
            return False
        async with turns:
            proof = verdict_of(await self._answers(facts, rank))
        self._tried[owner] = _Tried(_process(facts), self._clock())
        before, self._eligibility.proofs[owner] = self._eligibility.proofs.get(owner), proof
        if proof == before:
            return False
        self._log(facts, rank, proof)
        return True

    def _is_known(self, facts: Facts, owner: CacheOwner) -> bool:
        tried = self._tried.get(owner)
        if tried is None or tried.process != _process(facts):
            return False
        proof = self._eligibility.proofs[owner]
        is_same = facts.start_time_s is not None and proof.isolation is not Isolation.UNKNOWN
        return is_same or self._clock() - tried.at_s < RETRY_S

    async def _answers(self, facts: Facts, rank: int) -> list[bytes | None]:
        """The answers as far as they came: what follows a failure is not asked."""
        headers = {RANK_HEADER: str(rank)} if len(facts.ranks) > 1 else {}
        answers: list[bytes | None] = []
        for body in requests_of(facts, self._rng):
            answers.append(await self._post(facts.url, PATH, body, headers))
            if answers[-1] is None:
                break
        return answers

    def _log(self, facts: Facts, rank: int, proof: SaltProof) -> None:
        level = logging.INFO if proof.isolation is Isolation.APART else logging.WARNING
        name = f"{facts.url}#{rank}" if len(facts.ranks) > 1 else facts.url
        log.log(level, "worker %s: tenants' caches %s (%s)", name, WORDS[proof.isolation], proof.reason)


WORDS = {
    Isolation.APART: "are kept apart",
    Isolation.SHARED: "are shared; it gets no tenant's request",
    Isolation.UNKNOWN: "are not proven to be kept apart; its version decides",
}


def _process(facts: Facts) -> tuple[str | None, float | None]:
    return facts.version, facts.start_time_s


async def keep_proving(
    prober: SaltProber,
    known: Callable[[], Iterable[Facts | None]],
    judge_again: Callable[[], None],
    interval_s: float = RETRY_S,
) -> None:
    """Ask workers again that have proved nothing, or are in doubt: at once after `doubted` is set."""
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(interval_s):
                await prober.doubted.wait()
        prober.doubted.clear()
        changed = [await prober.prove(facts) for facts in prober.unproven(list(known()))]
        if any(changed):
            judge_again()
