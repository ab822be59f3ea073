"""Signs of life of an endpoint beside its health page: answers, events, other pages, accepted connections."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from gateway.core.engine import EngineMetrics
from gateway.core.fleet import Member
from gateway.discovery.endpoint import Endpoint, num_batches
from gateway.discovery.probe import ProbeError


@dataclass(frozen=True, slots=True)
class Heard:
    """Signs of life of an endpoint on the data path, by its URL: counts that grow. `reads`: bytes of answers
    came; `opened`: connections were accepted."""

    reads: Callable[[str], int] = lambda url: 0
    opened: Callable[[str], int] = lambda url: 0


def num_signs(endpoint: Endpoint, heard: Heard) -> int:
    """Return the signs of life so far: a number that changes with each."""
    return heard.reads(endpoint.url) + endpoint.probe.num_answers + num_batches(endpoint)


async def pages_of_late(
    endpoint: Endpoint, load: Callable[[Endpoint], Awaitable[Mapping[int, EngineMetrics]]]
) -> Mapping[int, EngineMetrics]:
    """Return the metrics of a late endpoint, which are requested beside its health: they are a sign of life
    of their own, kept in `late_ranks`. Raises ProbeError for its health."""

    async def health_error() -> ProbeError | None:
        try:
            await endpoint.probe.check_health()
        except ProbeError as exc:
            return exc
        return None

    error, endpoint.late_ranks = await asyncio.gather(health_error(), load(endpoint))
    if error is not None:
        raise error
    return endpoint.late_ranks


def health_of(member: Member) -> tuple[bool, bool, bool]:
    """Return the health of a worker, as `Fleet.set_up` takes it."""
    return member.is_up, member.is_late, member.is_accepting


def has_refused(members: Sequence[Member]) -> bool:
    """Return True for workers that are down for another reason than late probes: they said so."""
    return any([not member.is_up and not member.is_late for member in members])
