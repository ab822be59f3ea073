"""One URL of the fleet, and what came of it; what its answers say of the process behind it. No I/O."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gateway.core.engine import EngineMetrics
from gateway.core.event_stream import StreamCounts, StreamState
from gateway.core.worker import Worker, WorkerId
from gateway.discovery.balancer_detection import Identity
from gateway.discovery.probe import Probe, ProbeError
from gateway.discovery.probed import Facts
from gateway.ingest.base import Feed

FAILURES_TO_DOWN = 2
LOOKS_TO_JOIN = 3
"""Over a connection each: a balancer may send each to another engine."""
FRESH_EVERY = 8
"""Looks over a connection of their own are so rare: with TLS each costs a handshake."""


class SeveralEngines(ProbeError):
    """Behind one address: what they hold cannot be told apart."""


class Read(Protocol):
    """What is known of a stream."""

    counts: StreamCounts
    blind_reason: str | None

    @property
    def state(self) -> StreamState: ...


class Subscribed(Protocol):
    @property
    def stream(self) -> Read: ...


@dataclass(slots=True, eq=False)
class Endpoint:
    """One URL and what came of it. `wake` asks for a probe now. `num_resets` are those of its streams when
    its engine process became known, `last` are the metrics of the last look. `is_misplaced`: it says that it
    is not what it was given as."""

    url: str
    probe: Probe
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    has_looked: asyncio.Event = field(default_factory=asyncio.Event)
    facts: Facts | None = None
    workers: tuple[Worker, ...] = ()
    feeds: dict[WorkerId, tuple[Feed, Subscribed]] = field(default_factory=dict)
    num_resets: dict[WorkerId, int] = field(default_factory=dict)
    last: Mapping[int, EngineMetrics] = field(default_factory=dict)
    num_failures: int = 0
    num_silences: int = 0
    last_error: str | None = None
    is_misplaced: bool = False
    identity: Identity = field(default_factory=Identity)
    num_looks: int = 0
    task: asyncio.Task[None] | None = None


def num_resets(endpoint: Endpoint) -> dict[WorkerId, int]:
    return {worker: read.stream.counts.num_resets for worker, (_, read) in endpoint.feeds.items()}


def streams(endpoint: Endpoint) -> Iterator[tuple[Feed, int]]:
    """Each with how often it has begun anew since its engine process became known."""
    for worker, num in num_resets(endpoint).items():
        yield endpoint.feeds[worker][0], num - endpoint.num_resets[worker]


def has_begun_anew(stream: tuple[Feed, int]) -> bool:
    """An agent is told apart by its engine's start time: it is followed anew."""
    feed, num = stream
    return num > 0 and feed.is_connected and not hasattr(feed, "agent")


def has_gone_back(endpoint: Endpoint, ranks: Mapping[int, EngineMetrics]) -> bool:
    """Counters only grow: without a start time they are a process's identity."""
    if endpoint.facts is None or endpoint.facts.start_time_s is not None:
        return False
    for rank, metrics in ranks.items():
        last = endpoint.last.get(rank)
        now, before = metrics.prefix_cache_queries_total, last.prefix_cache_queries_total if last else None
        if now is not None and before is not None and now < before:
            return True
    return False


def is_doubtful(endpoint: Endpoint) -> bool:
    """Whether it is worth asking what else may have changed: a restart may have gone by between two looks."""
    assert endpoint.facts is not None
    if endpoint.num_failures >= FAILURES_TO_DOWN and endpoint.facts.start_time_s is None:
        return True
    return endpoint.facts.sources is not None and not all(
        feed.is_connected for feed, _ in endpoint.feeds.values()
    )


def see(endpoint: Endpoint, *looks: Mapping[int, EngineMetrics]) -> None:
    """What was told, one after the other. Raises SeveralEngines."""
    for ranks in looks:
        began_s = next((metrics.start_time_s for metrics in ranks.values() if metrics.start_time_s), None)
        has_fallen = began_s is None and has_gone_back(endpoint, ranks)
        endpoint.identity.saw(began_s, has_fallen=has_fallen)
    if why := endpoint.identity.reason:
        raise SeveralEngines(why)
