"""Salt prober: workers prove that they keep tenants' caches apart, before they join and after each restart.

A worker that cannot prove it (it reports no cached tokens, or is late) is judged by its engine's version, and
asked again every `RETRY_S`.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from gateway.core.eligibility import Eligibility, Isolation
from gateway.discovery.probed import Facts
from gateway.discovery.salt_proof import PATH, requests_of, verdict_of

log = logging.getLogger("kvgate.roster")

RETRY_S = 30.0
"""Time between two tries with a worker that proved nothing, and the least between two of one process."""

Post = Callable[[str, str, object], Awaitable[bytes | None]]
"""Posts a body to a path of an endpoint; returns None unless the status is 200."""


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
        self._tried: dict[str, _Tried] = {}

    def __repr__(self) -> str:
        return f"SaltProber({len(self._tried)} endpoints)"

    async def prove(self, facts: Facts) -> bool:
        """Have an endpoint prove that it keeps tenants' caches apart, unless its process has lately. Returns
        True if its proof changed."""
        if not self._eligibility.needs_salt or self._is_known(facts):
            return False
        proof = verdict_of(await self._answers(facts))
        self._tried[facts.url] = _Tried(_process(facts), self._clock())
        before, self._eligibility.proofs[facts.url] = self._eligibility.proofs.get(facts.url), proof
        if proof == before:
            return False
        level = logging.INFO if proof.isolation is Isolation.APART else logging.WARNING
        words = WORDS[proof.isolation]
        log.log(level, "worker %s: tenants' caches %s (%s)", facts.url, words, proof.reason)
        return True

    def drop(self, url: str) -> None:
        self._tried.pop(url, None)
        self._eligibility.proofs.pop(url, None)

    def unproven(self, each: Iterable[Facts | None]) -> list[Facts]:
        """The endpoints that are to be asked again."""
        proofs = self._eligibility.proofs
        found = [facts for facts in each if facts is not None and facts.url in proofs]
        return [facts for facts in found if proofs[facts.url].isolation is Isolation.UNKNOWN]

    def _is_known(self, facts: Facts) -> bool:
        tried = self._tried.get(facts.url)
        if tried is None or tried.process != _process(facts):
            return False
        proof = self._eligibility.proofs[facts.url]
        is_same = facts.start_time_s is not None and proof.isolation is not Isolation.UNKNOWN
        return is_same or self._clock() - tried.at_s < RETRY_S

    async def _answers(self, facts: Facts) -> list[bytes | None]:
        """The answers as far as they came: what follows a failure is not asked."""
        answers: list[bytes | None] = []
        for body in requests_of(facts, self._rng):
            answers.append(await self._post(facts.url, PATH, body))
            if answers[-1] is None:
                break
        return answers


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
    """Ask workers again that have proved nothing."""
    while True:
        await asyncio.sleep(interval_s)
        changed = [await prober.prove(facts) for facts in prober.unproven(list(known()))]
        if any(changed):
            judge_again()
