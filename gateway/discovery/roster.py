"""Roster of the fleet's endpoints: awaited, probed, watched, dropped.

waiting ──answers──► joined: its workers are in fleet and index, their events subscribed
   ▲                    │ health fails: workers down (their blocks are kept); a probe that times out is no
   │                    │ failure while bytes of answers, events or other pages come
   │                    │ answers again: up; as another process: probed again
   └──── dropped: forgotten altogether
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gateway.core.blocks import root_hash
from gateway.core.engine import EngineMetrics, EventSource
from gateway.core.event_stream import StreamCounts, StreamState
from gateway.core.fleet import Fleet, Member
from gateway.core.spelling import shortened
from gateway.core.worker import Role, Worker, WorkerId
from gateway.discovery.declared import DeclaredSettings, WrongRole
from gateway.discovery.endpoint import (
    FAILURES_TO_DOWN,
    FRESH_EVERY,
    LOOKS_TO_JOIN,
    Endpoint,
    EventSubscription,
    PlaceTaken,
    SeveralEngines,
    has_gone_back,
    is_doubtful,
    note_late_sizes,
    num_resets,
    see,
    streams,
    was_reset,
)
from gateway.discovery.probe import Probe, ProbeError, ProbeTimeout
from gateway.discovery.probed import Facts, has_changed, reported
from gateway.discovery.refused import (
    log_block_size,
    log_block_sizes,
    log_figures,
    log_sizeless,
    log_unfollowed,
    log_unusable,
)
from gateway.discovery.served_models import ServedNames
from gateway.discovery.signs_of_life import Heard, has_refused, health_of, num_signs, pages_of_late
from gateway.http.address import Address
from gateway.index.assumed import AssumedIndex
from gateway.index.base import BlockSets
from gateway.ingest.base import Feed
from gateway.observability.metrics import Metrics
from gateway.runtime.descriptors import MAX_FEEDS
from gateway.runtime.rate_limited_log import RateLimitedLog
from gateway.runtime.tasks import Tasks

log = logging.getLogger("kvgate.roster")

EVENT_GRACE_S = 1.0
"""Time that assumed blocks stand for a worker with events after its request: the event comes within."""
REMIND_S = 60.0
"""Time between two warnings about an endpoint that has not joined."""
DEFAULT_CACHE_BLOCKS = 16_384
"""Assumed cache size of a worker that does not report its own."""


OpenFeed = Callable[[Worker, EventSource], tuple[Feed, EventSubscription]]
"""Starts a feed; the roster's caller knows transports and engines. Raises ValueError for a bad endpoint."""


@dataclass(frozen=True, slots=True)
class RosterOptions:
    """Options of a roster; `max_feeds` are the ranks of one endpoint with events that are followed."""

    probe_interval_s: float = 2.0
    assumed_keep_s: float = 600.0
    use_events: bool = True
    events_port: int = 5557
    replay_port: int = 0
    max_feeds: int = MAX_FEEDS


async def _unchanged(probe: Probe, facts: Facts) -> Facts:
    return facts


class Roster:
    def __init__(
        self,
        *,
        fleet: Fleet,
        index: BlockSets,
        assumed: AssumedIndex,
        metrics: Metrics,
        make_probe: Callable[[str], Probe],
        open_feed: OpenFeed,
        on_gone: Callable[[str, Collection[WorkerId]], None],
        on_down: Callable[[WorkerId, str], None],
        options: RosterOptions,
        declared: DeclaredSettings | None = None,
        complete: Callable[[Probe, Facts], Awaitable[Facts]] = _unchanged,
        on_joined: Iterable[Callable[[Sequence[Worker]], None]] = (),
        on_restarted: Callable[[Sequence[Worker]], None] = lambda workers: None,
        on_left: Iterable[Callable[[WorkerId], None]] = (),
        names: ServedNames | None = None,
        on_look: Callable[[WorkerId, EngineMetrics | None], None] = lambda worker, metrics: None,
        heard: Heard = Heard(),  # noqa: B008  it is frozen
    ) -> None:
        """Create a roster. `on_gone` gets a dropped endpoint's URL and workers, `on_down` a silent worker and
        why, `on_look` an answering worker's metrics (None if they failed), `on_joined` an endpoint's workers,
        `on_restarted` those with another process, `on_left` what left. `complete` adds other facts."""
        self._fleet = fleet
        self._index = index
        self._assumed = assumed
        self._metrics = metrics
        self._make_probe = make_probe
        self._open_feed = open_feed
        self._on_gone = on_gone
        self._on_down = on_down
        self._on_look, self._heard = on_look, heard
        self._on_joined, self._on_restarted, self._on_left = on_joined, on_restarted, on_left
        self._names = ServedNames(fleet) if names is None else names
        self._options = options
        self.declared = DeclaredSettings() if declared is None else declared
        self._complete = complete
        self._endpoints: dict[str, Endpoint] = {}
        self._tasks, self._log = Tasks(), RateLimitedLog(log)

    def __iter__(self) -> Iterator[Endpoint]:
        return iter(list(self._endpoints.values()))

    def add(self, url: str, role: Role | None = None) -> bool:
        """Start waiting for an endpoint, with a declared role if given; False if it is known already."""
        if url in self._endpoints:
            return False
        if role:
            self.declared.roles[url] = role
        endpoint = Endpoint(url, self._make_probe(url), began_s=time.monotonic())
        self._endpoints[url] = endpoint
        endpoint.task = self._tasks.start(f"probe {url}", self._watch(endpoint))
        endpoint.task.add_done_callback(lambda task: endpoint.has_looked.set())  # dropped: stop waiting
        return True

    def drop(self, name: str) -> bool:
        """Drop an endpoint, given by its URL or one of its workers' ids."""
        url = self._url_of(name)
        if url is None:
            return False
        endpoint = self._endpoints.pop(url)
        self.declared.roles.pop(url, None)
        if endpoint.task:
            endpoint.task.cancel()
        workers = endpoint.workers
        for worker in workers:
            self._metrics.drop_worker(worker.id)
        self._leave(endpoint)
        self._on_gone(url, [worker.id for worker in workers])
        log.info("worker %s dropped", url)
        return True

    def look_every(self, seconds: float) -> None:
        self._options = replace(self._options, probe_interval_s=seconds)

    def has(self, url: str) -> bool:
        return url in self._endpoints

    def find(self, name: str) -> Endpoint | None:
        """Return an endpoint by URL or worker id."""
        url = self._url_of(name)
        return self._endpoints[url] if url is not None else None

    async def ask_names(self, endpoint: Endpoint) -> None:
        """Request the model names now, after a change."""
        self._names.doubt(endpoint.url)
        await self._names.ask(endpoint)

    def has_all_joined(self) -> bool:
        return all(endpoint.facts is not None for endpoint in self._endpoints.values())

    async def first_look(self) -> None:
        """Wait until each endpoint has been probed once, whether it answered or not."""
        for endpoint in self:
            await endpoint.has_looked.wait()

    async def stop(self) -> None:
        await self._tasks.stop()
        for endpoint in self._endpoints.values():
            self._close_feeds(endpoint)

    def suspect(self, worker: WorkerId, reason: str, *, is_refused: bool) -> None:
        """Probe a worker at once after a failed request; one that refuses connections is down until then."""
        member = self._fleet.get(worker)
        if member is None:
            return
        member.num_failures += 1
        endpoint = self._endpoints.get(member.worker.url)
        if endpoint is None:
            return
        self._names.doubt(endpoint.url)
        if is_refused:
            self._set_up(endpoint, False, reason)
        endpoint.wake.set()

    def start_time_s(self, url: str) -> float | None:
        """Return the start time of the engine process behind an endpoint, if known."""
        endpoint = self._endpoints.get(url)
        return endpoint.facts.start_time_s if endpoint and endpoint.facts else None

    def stream_counts(self) -> Iterable[tuple[WorkerId, StreamCounts]]:
        for endpoint in self._endpoints.values():
            for worker, (_, subscription) in endpoint.feeds.items():
                yield worker, subscription.stream.counts

    def stream_changed(self, worker: WorkerId, state: StreamState) -> None:
        """Set a worker's stream state. Without an EXACT stream events may be missing, so assumed blocks are
        kept longer."""
        if member := self._fleet.get(worker):
            member.stream = state
            keep_s = EVENT_GRACE_S if state is StreamState.EXACT else self._options.assumed_keep_s
            self._assumed.set_keep(worker, keep_s)

    def block_size_shown(self, worker: WorkerId, size: int) -> None:
        """Use the block size that a worker's events show. No block of another size is known of it then."""
        if (member := self._fleet.get(worker)) is None:
            return
        endpoint, known = self._endpoints[member.worker.url], member.worker
        before = endpoint.sizes.get(known.dp_rank)
        now = self._fleet.resize(worker, size)
        endpoint.workers = tuple(now if now and w.id == worker else w for w in endpoint.workers)
        endpoint.sizes[known.dp_rank] = size
        self._index.add_worker(worker, root_hash(member.worker.served[0].root), size)
        self._assumed.reset_worker(worker)
        log_block_size(self._log, worker, size, known.block_size, before=before)

    # life of one endpoint ----------------------------------------------------------------------

    async def _watch(self, endpoint: Endpoint) -> None:
        while True:
            endpoint.wake.clear()  # before the probe: a wake-up during it wants another
            try:
                await self._look(endpoint)
            except ProbeTimeout as exc:
                self._timed_out(endpoint, exc)
            except ProbeError as exc:
                endpoint.is_misplaced = isinstance(exc, WrongRole | SeveralEngines)
                self._failed(endpoint, str(exc))
            endpoint.num_signs = num_signs(endpoint, self._heard)
            endpoint.num_opened = self._heard.opened(endpoint.url)
            endpoint.has_looked.set()
            try:
                async with asyncio.timeout(self._options.probe_interval_s):
                    await endpoint.wake.wait()
            except TimeoutError:
                pass

    async def _look(self, endpoint: Endpoint) -> None:
        ranks = await self._pages(endpoint)
        if endpoint.facts is None:
            facts = await self._complete(endpoint.probe, await endpoint.probe.facts())
            await self._see_one(endpoint, facts)
            return self._join(endpoint, facts)
        try:
            see(endpoint, ranks)
        except SeveralEngines:
            self._leave(endpoint)
            raise
        if has_changed(endpoint.facts, ranks, endpoint.sizes) or has_gone_back(endpoint, ranks):
            await self._handle_restart(endpoint, endpoint.facts)
        elif is_doubtful(endpoint):
            await self._ask_again(endpoint, endpoint.facts)
        await self._names.ask(endpoint)
        for worker_id, shown, late in note_late_sizes(endpoint, ranks):
            log_block_size(self._log, worker_id, shown, late)
        for worker, source in list(endpoint.refused.values()):
            self._follow(endpoint, worker, source)
        endpoint.last = ranks or endpoint.last
        self._note_load(endpoint, ranks)
        self._set_up(endpoint, True, "answers again")
        return None

    async def _pages(self, endpoint: Endpoint) -> Mapping[int, EngineMetrics]:
        """Check the health, and return the metrics. Where health was late, metrics are requested beside it:
        they are a sign of life of their own."""
        endpoint.late_ranks = {}
        if endpoint.facts is None or not endpoint.is_late:
            await endpoint.probe.check_health()
            return {} if endpoint.facts is None else await self._load(endpoint)
        return await pages_of_late(endpoint, self._load)

    def _note_load(self, endpoint: Endpoint, ranks: Mapping[int, EngineMetrics]) -> None:
        for worker in endpoint.workers:
            if (member := self._fleet.get(worker.id)) and worker.dp_rank in ranks:
                member.reported = reported(ranks[worker.dp_rank])
            self._on_look(worker.id, ranks.get(worker.dp_rank))

    async def _handle_restart(self, endpoint: Endpoint, known: Facts) -> None:
        """Handle another engine process. Event streams that were reset with it are kept: they may know its
        cache from the start, which a new subscription without replays would not."""
        facts = await self._complete(endpoint.probe, await endpoint.probe.facts())
        if facts.is_like(known) and endpoint.feeds and all(map(was_reset, streams(endpoint))):
            self._log.info("worker %s: engine restarted, its event streams already reset", endpoint.url)
            endpoint.facts, endpoint.num_resets = facts, num_resets(endpoint)
            return self._on_restarted(endpoint.workers)
        self._log.info("worker %s: engine restarted, probing again", endpoint.url)
        return self._rejoin(endpoint, facts)

    async def _ask_again(self, endpoint: Endpoint, known: Facts) -> None:
        """Probe again after an outage without a known start time (events would show a restart), or while
        events are unavailable, which may be published elsewhere by now."""
        facts = await self._complete(endpoint.probe, await endpoint.probe.facts())
        was_down = endpoint.num_failures >= FAILURES_TO_DOWN
        if (was_down and not endpoint.feeds) or not facts.is_like(known):
            self._log.info("worker %s: configuration changed, probing again", endpoint.url)
            self._rejoin(endpoint, facts)

    async def _see_one(self, endpoint: Endpoint, facts: Facts) -> None:
        """Probe repeatedly over other connections. Raises SeveralEngines."""
        seen = [facts.ranks]
        if facts.start_time_s is not None:
            seen += [await endpoint.probe.metrics(is_last=True) for _ in range(LOOKS_TO_JOIN - 1)]
        see(endpoint, *seen)

    async def _load(self, endpoint: Endpoint) -> Mapping[int, EngineMetrics]:
        """Return the metrics; a busy engine may be late with them and healthy all the same."""
        try:
            endpoint.num_looks += 1
            ranks = await endpoint.probe.metrics(is_last=endpoint.num_looks % FRESH_EVERY == 0)
        except ProbeError as exc:
            log.debug("worker %s: metrics failed, keeping the last: %s", endpoint.url, exc)
            return {}
        log_figures(self._log, endpoint.url, ranks)
        return ranks

    def _join(self, endpoint: Endpoint, facts: Facts) -> None:
        if not facts.models:
            raise ProbeError(f"{endpoint.url} serves no model")
        workers = self.declared.workers_of(facts)
        endpoint.facts, endpoint.num_failures, endpoint.last_error = facts, 0, None
        endpoint.workers = workers
        endpoint.probe.wait_longer(False)
        with self._fleet.batch():
            for worker in endpoint.workers:
                self._add_worker(endpoint, worker)
        names = shortened(served.name for served in endpoint.workers[0].served)
        self._log.info(
            "worker %s joined: %s, %s, %d rank(s)", endpoint.url, facts.engine, names, len(endpoint.workers)
        )
        log_unusable(self._log, self._fleet, workers[0])
        log_block_sizes(self._log, workers, facts)
        log_sizeless(self._log, workers, endpoint.feeds.keys())
        log_unfollowed(self._log, workers, len(endpoint.feeds), self._options.max_feeds)
        for joined in self._on_joined:
            joined(workers)

    def _rejoin(self, endpoint: Endpoint, facts: Facts) -> None:
        """Join again as another process: its cache is empty, its settings may differ."""
        self._leave(endpoint)
        self._join(endpoint, facts)

    def _add_worker(self, endpoint: Endpoint, worker: Worker) -> None:
        options = self._options
        assert endpoint.facts is not None
        member, ranks = self._fleet.add(worker), endpoint.facts.ranks
        if worker.dp_rank in ranks:
            member.reported = reported(ranks[worker.dp_rank])
        self._index.add_worker(worker.id, root_hash(worker.served[0].root), worker.block_size)
        self._assumed.add_worker(
            worker.id, keep_s=options.assumed_keep_s, max_blocks=worker.num_blocks or DEFAULT_CACHE_BLOCKS
        )
        self._on_look(worker.id, ranks.get(worker.dp_rank))
        ports = options.events_port, options.replay_port
        source = self.declared.event_source(endpoint.facts, worker.dp_rank, ports)
        has_room = len(endpoint.feeds) < options.max_feeds
        # A publisher that is reported shows the block size; at the default port anything may listen.
        is_sized = worker.block_size or (endpoint.facts.sources and source and not source.is_polled)
        if options.use_events and is_sized and source and has_room:
            self._follow(endpoint, worker, source)

    def _follow(self, endpoint: Endpoint, worker: Worker, source: EventSource) -> None:
        """Read a worker's events, or try again with each look where they are read for another one."""
        was_refused = endpoint.refused.pop(worker.id, None) is not None
        try:
            feed, subscription = self._open_feed(worker, source)
        except ValueError as exc:
            if isinstance(exc, PlaceTaken):
                endpoint.refused[worker.id] = worker, source
            text = "worker %s: no KV events (%s); its cache is assumed from sent prompts"
            return log.log(logging.DEBUG if was_refused else logging.WARNING, text, worker.id, exc)
        if was_refused:
            log.info("worker %s: KV events followed now; no other worker claims their port", worker.id)
        endpoint.feeds[worker.id] = feed, subscription
        endpoint.num_resets[worker.id] = subscription.stream.counts.num_resets
        self.stream_changed(worker.id, subscription.stream.state)

    def _leave(self, endpoint: Endpoint) -> None:
        self._close_feeds(endpoint)
        with self._fleet.batch():
            for worker in endpoint.workers:
                for left in self._on_left:
                    left(worker.id)
                self._fleet.drop(worker.id)
                self._index.drop_worker(worker.id)
                self._assumed.drop_worker(worker.id)
        endpoint.workers, endpoint.facts, endpoint.last = (), None, {}

    def _close_feeds(self, endpoint: Endpoint) -> None:
        for feed, _ in endpoint.feeds.values():
            feed.stop()
        endpoint.feeds.clear()
        endpoint.refused.clear()
        endpoint.num_resets.clear()
        endpoint.sizes.clear()

    def _failed(self, endpoint: Endpoint, reason: str) -> None:
        """Count a failed probe. Requests in flight stay with a worker that refuses: it may be finishing
        them."""
        endpoint.num_failures += 1
        endpoint.num_silences, endpoint.is_late = 0, False
        if endpoint.facts is None:
            self._warn_waiting(endpoint, reason)
        endpoint.last_error = reason
        if endpoint.num_failures >= FAILURES_TO_DOWN:
            self._set_up(endpoint, False, reason)

    def _timed_out(self, endpoint: Endpoint, timeout: ProbeTimeout) -> None:
        """Count a probe that timed out, unless there was another sign of life. Requests in flight do not stay
        with a silent worker, where they would wait for long."""
        reason = str(timeout)
        if endpoint.facts is None:
            endpoint.probe.wait_longer()
            return self._failed(endpoint, reason)
        endpoint.is_late, endpoint.last_error = True, reason
        members = [member for worker in endpoint.workers if (member := self._fleet.get(worker.id))]
        is_out = has_refused(members)
        if num_signs(endpoint, self._heard) != endpoint.num_signs:
            endpoint.num_silences = 0
            return None if is_out else self._live_on(endpoint, members, reason)
        endpoint.num_failures += 1
        endpoint.num_silences += 1
        if endpoint.num_failures >= FAILURES_TO_DOWN:
            accepts = timeout.is_accepted or self._heard.opened(endpoint.url) != endpoint.num_opened
            self._set_up(endpoint, False, reason, is_late=not is_out, is_accepting=accepts)
        if endpoint.num_silences >= FAILURES_TO_DOWN:
            for worker in endpoint.workers:
                self._on_down(worker.id, reason)
        return None

    def _live_on(self, endpoint: Endpoint, members: Sequence[Member], reason: str) -> None:
        """Keep a late worker up, since there was another sign of life."""
        if not all([member.is_late for member in members]):
            text = "worker %s: probe timed out (%s), but answers, events or metrics arrive; it stays up"
            self._log.warning(text, endpoint.url, reason)
        if all([member.is_up for member in members]):
            endpoint.num_failures = 0  # else its facts are requested again with the next page in time
        self._set_up(endpoint, True, "answers, events or metrics arrive; its probes time out", is_late=True)
        self._note_load(endpoint, endpoint.late_ranks)

    def _warn_waiting(self, endpoint: Endpoint, reason: str) -> None:
        """Log an endpoint that has not joined: at once, where the reason changes, and every minute."""
        now = time.monotonic()
        if endpoint.last_error == reason and now - endpoint.warned_s < REMIND_S:
            return
        level = logging.ERROR if endpoint.is_misplaced else logging.WARNING
        since = f" for {now - endpoint.began_s:.0f} s" if endpoint.last_error else ""
        log.log(level, "waiting for worker %s%s: %s", endpoint.url, since, reason)
        endpoint.warned_s = now

    def _set_up(
        self,
        endpoint: Endpoint,
        is_up: bool,
        reason: str,
        *,
        is_late: bool = False,
        is_accepting: bool = True,
    ) -> None:
        if is_up and not is_late:
            endpoint.num_failures, endpoint.num_silences, endpoint.last_error = 0, 0, None
            endpoint.is_late = False
        for worker in endpoint.workers:
            member = self._fleet.get(worker.id)
            if member is None or (is_up, is_late, is_accepting) == health_of(member):
                continue
            level, word = (logging.INFO, "up") if is_up else (logging.WARNING, "down")
            if member.is_up is not is_up:
                log.log(level, "worker %s is %s: %s", worker.id, word, reason)
            self._fleet.set_up(worker.id, is_up, is_late, is_accepting)

    def _url_of(self, name: str) -> str | None:
        if name in self._endpoints:
            return name
        for endpoint in self._endpoints.values():
            if name == Address.of(endpoint.url).netloc or any(w.id == name for w in endpoint.workers):
                return endpoint.url
        return None
