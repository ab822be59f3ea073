"""Roster of workers with scripted probes and feeds."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import cast

from gateway.core.blocks import BlockHash
from gateway.core.engine import EngineMetrics, EventSource, ModelInfo
from gateway.core.event_stream import StreamState
from gateway.core.fleet import Fleet, Member
from gateway.core.worker import Worker, WorkerId
from gateway.discovery.endpoint import Endpoint
from gateway.discovery.probe import Probe, ProbeError, ProbeTimeout
from gateway.discovery.probed import Facts
from gateway.discovery.roster import Roster, RosterOptions
from gateway.discovery.signs_of_life import Heard
from gateway.ingest.base import Feed
from gateway.ingest.block_size import SizeEvidence
from gateway.ingest.subscription import Subscription
from gateway.observability.metrics import Metrics
from tests.support.fakes import BLOCK_SIZE, FakeEngine, Known, payload, seq_frame

URL = "http://w:1"
W = WorkerId("w:1")
RANK = EngineMetrics(1, 2, 0.5, block_size=BLOCK_SIZE, num_gpu_blocks=100, start_time_s=1000.0)


@dataclass
class FakeProbe:
    """Probe with scripted answers; a str is the reason of a ProbeError. `is_late`: its health page times out,
    and `is_accepted` says if the connection was accepted."""

    url: str
    health: str | None = None
    ranks: dict[int, EngineMetrics] | str = field(default_factory=lambda: {0: RANK})
    served: tuple[ModelInfo, ...] = (ModelInfo("m", "root"),)
    sources: tuple[EventSource, ...] | None = (EventSource(0, "tcp://*:1", "tcp://*:2"),)
    num_facts: int = 0
    before_health: Callable[[], None] = lambda: None
    is_late: bool = False
    is_accepted: bool = True
    num_answers: int = 0
    waits: list[bool] = field(default_factory=list)

    def wait_longer(self, is_longer: bool = True) -> None:
        self.waits.append(is_longer)

    async def check_health(self) -> None:
        self.before_health()
        if self.is_late:
            raise ProbeTimeout("/health did not answer in time", is_accepted=self.is_accepted)
        self.num_answers += 1
        if self.health is not None:
            raise ProbeError(self.health)

    async def metrics(self, *, is_last: bool = False) -> dict[int, EngineMetrics]:
        if isinstance(self.ranks, str):
            raise ProbeError(self.ranks)
        self.num_answers += 1
        return dict(self.ranks)

    async def models(self) -> tuple[ModelInfo, ...]:
        return self.served

    async def facts(self) -> Facts:
        self.num_facts += 1
        return Facts(self.url, "fake", self.served, await self.metrics(), self.sources, "1")


@dataclass
class FakeFeed:
    endpoint: str
    replay_endpoint: str | None
    is_connected: bool = True
    is_stopped: bool = False

    def stop(self) -> None:
        self.is_stopped = True


class RosterWorld:
    """Roster with the test's probes and feeds; it probes only when the test does."""

    def __init__(self, **options: object) -> None:
        self.fleet, self.known, self.metrics = Fleet(), Known(), Metrics()
        self.probes: dict[str, FakeProbe] = {}
        self.feeds: list[FakeFeed] = []
        self.gone: list[str] = []
        self.down: list[tuple[WorkerId, str]] = []
        self.num_reads = self.num_opened = 0
        self.joined: list[list[WorkerId]] = []
        self.restarted: list[WorkerId] = []
        self.left: list[WorkerId] = []
        self.feed_error: str | ValueError | None = None
        self.looks: list[tuple[WorkerId, EngineMetrics | None]] = []
        self.roster = Roster(
            fleet=self.fleet,
            index=self.known.index,
            assumed=self.known.assumed,
            metrics=self.metrics,
            make_probe=lambda url: cast(Probe, self.probe(url)),
            open_feed=self._open_feed,
            on_gone=lambda url, workers: self.gone.append(url),
            on_down=lambda worker, why: self.down.append((worker, why)),
            heard=Heard(lambda url: self.num_reads, lambda url: self.num_opened),
            options=RosterOptions(probe_interval_s=1000.0, **options),  # type: ignore[arg-type]
            on_look=lambda worker, metrics: self.looks.append((worker, metrics)),
            on_joined=[lambda workers: self.joined.append([worker.id for worker in workers])],
            on_restarted=lambda workers: self.restarted.extend(worker.id for worker in workers),
            on_left=[self.left.append],
        )

    def probe(self, url: str = URL) -> FakeProbe:
        return self.probes.setdefault(url, FakeProbe(url))

    def _open_feed(self, worker: Worker, source: EventSource) -> tuple[Feed, Subscription]:
        if self.feed_error:
            error = self.feed_error
            raise error if isinstance(error, ValueError) else ValueError(error)
        feed = FakeFeed(source.endpoint, source.replay_endpoint)
        self.feeds.append(feed)
        subscription = Subscription(
            worker.id,
            engine=FakeEngine(),
            index=self.known.index,
            assumed=self.known.assumed,
            can_replay=source.replay_endpoint is not None,
            on_state=self.roster.stream_changed,
            size=SizeEvidence(worker.block_size, partial(self.roster.block_size_shown, worker.id)),
        )
        return feed, subscription

    async def add(self, url: str = URL) -> None:
        assert self.roster.add(url)
        await self.roster.first_look()

    async def look(self, url: str = URL, *, times: int = 1) -> None:
        for _ in range(times):
            endpoint = self.endpoint(url)
            endpoint.has_looked.clear()
            endpoint.wake.set()
            await endpoint.has_looked.wait()

    def endpoint(self, url: str = URL) -> Endpoint:
        return next(endpoint for endpoint in self.roster if endpoint.url == url)

    def member(self, name: WorkerId = W) -> Member:
        member = self.fleet.get(name)
        assert member is not None
        return member

    def subscription(self, name: WorkerId = W, url: str = URL) -> Subscription:
        return self.endpoint(url).feeds[name][1]

    def sent(self, *blocks: int) -> None:
        """Send a request with these blocks, which ran at the worker and ended at time 0."""
        hashes = list(map(BlockHash, blocks))
        self.known.assumed.pin(W, hashes)
        self.known.assumed.unpin(W, hashes, now=0.0, was_run=True)

    def assumed_overlap(self, *blocks: int, now: float) -> int:
        held: dict[WorkerId, int] = {}
        self.known.assumed.extend(list(map(BlockHash, blocks)), held, now)
        return held.get(W, 0)

    def store(self, *blocks: int) -> None:
        """Publish these blocks from the worker's engine, from its start."""
        subscription = self.subscription()
        subscription.connected()
        subscription.replayed([b"", b"", seq_frame(0), payload(*blocks)])
        subscription.replayed([b"", b"", b"\xff" * 8, b""])
        assert self.member().stream is StreamState.EXACT
