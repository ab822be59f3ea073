"""State of one endpoint URL, and checks of the process behind it. No I/O."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from gateway.core.engine import EngineMetrics, EventSource
from gateway.core.event_stream import StreamCounts, StreamState
from gateway.core.worker import Worker, WorkerId
from gateway.discovery.balancer_detection import EngineIdentity
from gateway.discovery.probe import Probe, ProbeError
from gateway.discovery.probed import Facts
from gateway.ingest.base import Feed

FAILURES_TO_DOWN = 2
LOOKS_TO_JOIN = 3
"""Probes before joining, each over a connection of its own: a load balancer may route each to another engine.
"""
FRESH_EVERY = 8
"""Every which probe uses a fresh connection: with TLS each costs a handshake."""


class SeveralEngines(ProbeError):
    """Several engines answer at one address, with caches that cannot be distinguished."""


class PlaceTaken(ValueError):
    """The KV events at a worker's place are read for another worker, which may leave."""


class StreamStatus(Protocol):
    """State of an event stream."""

    counts: StreamCounts

    @property
    def state(self) -> StreamState: ...

    @property
    def reason(self) -> str | None: ...


class EventSubscription(Protocol):
    @property
    def stream(self) -> StreamStatus: ...


@dataclass(slots=True, eq=False)
class Endpoint:
    """State of one endpoint URL.

    `sizes` are block sizes by rank that KV events showed. `wake` triggers a probe now. `num_resets` are those
    of its streams when its engine process became known, `last` the metrics of the last probe. `is_misplaced`:
    it contradicts its declared role. `began_s` and `warned_s`: monotonic times at which waiting for it began
    and was last logged. `is_late`: its last probe timed out, `late_ranks` are the metrics that came all the
    same; `num_signs` and `num_opened` count signs of life and accepted connections until the end of that
    probe. `refused` are workers with the sources of their events, which are read for other workers.
    """

    url: str
    probe: Probe
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    has_looked: asyncio.Event = field(default_factory=asyncio.Event)
    facts: Facts | None = None
    workers: tuple[Worker, ...] = ()
    feeds: dict[WorkerId, tuple[Feed, EventSubscription]] = field(default_factory=dict)
    refused: dict[WorkerId, tuple[Worker, EventSource]] = field(default_factory=dict)
    num_resets: dict[WorkerId, int] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    last: Mapping[int, EngineMetrics] = field(default_factory=dict)
    num_failures: int = 0
    num_silences: int = 0
    num_signs: int = 0
    num_opened: int = 0
    is_late: bool = False
    late_ranks: Mapping[int, EngineMetrics] = field(default_factory=dict)
    last_error: str | None = None
    began_s: float = 0.0
    warned_s: float = 0.0
    is_misplaced: bool = False
    identity: EngineIdentity = field(default_factory=EngineIdentity)
    num_looks: int = 0
    task: asyncio.Task[None] | None = None


def num_resets(endpoint: Endpoint) -> dict[WorkerId, int]:
    return {worker: read.stream.counts.num_resets for worker, (_, read) in endpoint.feeds.items()}


def num_batches(endpoint: Endpoint) -> int:
    """Return how many batches of events were applied from an endpoint's feeds."""
    return sum([read.stream.counts.num_batches for _, read in endpoint.feeds.values()])


def streams(endpoint: Endpoint) -> Iterator[tuple[Feed, int]]:
    """Yield each feed with its number of resets since the engine process became known."""
    for worker, num in num_resets(endpoint).items():
        yield endpoint.feeds[worker][0], num - endpoint.num_resets[worker]


def was_reset(stream: tuple[Feed, int]) -> bool:
    """Return True if a stream was reset with its engine. Agent feeds do not count: they are followed again
    after a restart, which their engine's start time shows."""
    feed, num = stream
    return num > 0 and feed.is_connected and not hasattr(feed, "agent")


def has_gone_back(endpoint: Endpoint, ranks: Mapping[int, EngineMetrics]) -> bool:
    """Return True if a counter fell: without a start time, counters identify a process."""
    if endpoint.facts is None or endpoint.facts.start_time_s is not None:
        return False
    for rank, metrics in ranks.items():
        last = endpoint.last.get(rank)
        now, before = metrics.prefix_cache_queries_total, last.prefix_cache_queries_total if last else None
        if now is not None and before is not None and now < before:
            return True
    return False


def is_doubtful(endpoint: Endpoint) -> bool:
    """Return True if other facts may have changed: a restart may have happened between two probes."""
    assert endpoint.facts is not None
    if endpoint.num_failures >= FAILURES_TO_DOWN and endpoint.facts.start_time_s is None:
        return True
    return endpoint.facts.sources is not None and not all(
        feed.is_connected for feed, _ in endpoint.feeds.values()
    )


def see(endpoint: Endpoint, *looks: Mapping[int, EngineMetrics]) -> None:
    """Check the engine's identity in consecutive answers. Raises SeveralEngines."""
    for ranks in looks:
        began_s = next((metrics.start_time_s for metrics in ranks.values() if metrics.start_time_s), None)
        has_fallen = began_s is None and has_gone_back(endpoint, ranks)
        endpoint.identity.saw(began_s, has_fallen=has_fallen)
    if why := endpoint.identity.reason:
        raise SeveralEngines(why)


def note_late_sizes(
    endpoint: Endpoint, ranks: Mapping[int, EngineMetrics]
) -> Iterator[tuple[WorkerId, int, int]]:
    """Keep the block sizes of metrics that came after those which events showed, and yield the workers where
    they differ, with both sizes."""
    assert endpoint.facts is not None
    known = dict(endpoint.facts.ranks)
    for worker in endpoint.workers:
        late, before = ranks.get(worker.dp_rank), known.get(worker.dp_rank, EngineMetrics())
        shown = endpoint.sizes.get(worker.dp_rank)
        if shown is None or late is None or late.block_size is None or before.block_size is not None:
            continue
        known[worker.dp_rank] = replace(before, block_size=late.block_size)
        endpoint.facts = replace(endpoint.facts, ranks=known)
        if late.block_size != shown:
            yield worker.id, shown, late.block_size
