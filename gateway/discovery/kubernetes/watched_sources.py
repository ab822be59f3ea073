"""Kubernetes sources: every k8s:// URL with its watches, from the API's objects to members of the roster.

Changes within `MIN_GAP_S` of one another are applied together, and so are those within `REST` times what the
last application took: however many pods change, this takes 2 % of a core.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from gateway.core.errors import ConfigError
from gateway.core.worker import Role
from gateway.discovery.kubernetes.api_objects import PODS, POOLS, SLICES, EndpointSlice, InferencePool, Pod
from gateway.discovery.kubernetes.client import ApiClient
from gateway.discovery.kubernetes.cluster import ClusterAccess
from gateway.discovery.kubernetes.endpoints import selected_pod_endpoints, slice_endpoints
from gateway.discovery.kubernetes.inference_pools import PoolRule, pool_rule
from gateway.discovery.kubernetes.membership import Membership, SourceMembers
from gateway.discovery.kubernetes.queries import pods_query, pool_query, slices_query
from gateway.discovery.kubernetes.reflector import ObjectChange
from gateway.discovery.kubernetes.tables import EndpointTable
from gateway.discovery.kubernetes.watch import ObjectWatch, WatchTimes
from gateway.http.kubernetes_url import KubernetesUrl, ObjectKind

MIN_GAP_S = 0.05
"""Least time between two applications of changes; the first one is applied at once."""
REST = 75.0
"""Time between two applications, in durations of the first of them."""

Start = Callable[[str, Coroutine[Any, Any, None]], asyncio.Task[Any]]
"""Starts a named task."""
AnyWatch = ObjectWatch[Pod] | ObjectWatch[EndpointSlice] | ObjectWatch[InferencePool]


class Coalesced:
    """Calls `apply` at once, and again not before `min_gap_s` and `REST` times its duration have passed.
    `clock` is CPU seconds."""

    def __init__(
        self,
        apply: Callable[[], None],
        min_gap_s: float = MIN_GAP_S,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._apply = apply
        self._min_gap_s = min_gap_s
        self._clock = clock
        self._next_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def poke(self) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            return
        if (wait_s := self._next_at - loop.time()) > 0.0:
            self._timer = loop.call_later(wait_s, self._run)
        else:
            self._run()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _run(self) -> None:
        self._timer = None
        began_s = self._clock()
        self._apply()
        gap_s = max(self._min_gap_s, REST * (self._clock() - began_s))
        self._next_at = asyncio.get_running_loop().time() + gap_s


@dataclass(slots=True)
class KubernetesSource:
    """A k8s:// URL with its state; `members` are the URLs of its endpoints."""

    parsed: KubernetesUrl
    role: Role | None
    in_roster: SourceMembers
    has_listed: asyncio.Event = field(default_factory=asyncio.Event)
    watches: dict[str, AnyWatch] = field(default_factory=dict)
    tasks: dict[str, asyncio.Task[Any]] = field(default_factory=dict)
    refusal: str = ""
    past_relists: Counter[str] = field(default_factory=Counter)
    num_past_failures: int = 0

    @property
    def url(self) -> str:
        return self.parsed.url

    @property
    def members(self) -> Collection[str]:
        return self.in_roster.by_url

    @property
    def last_error(self) -> str | None:
        return next((w.last_error for w in self.watches.values() if w.last_error), self.refusal or None)

    @property
    def relists(self) -> Counter[str]:
        """Lists after the first one, by reason."""
        return sum((watch.reflector.relists for watch in self.watches.values()), self.past_relists)

    @property
    def num_failures(self) -> int:
        return self.num_past_failures + sum(w.reflector.num_failures for w in self.watches.values())

    def end(self, what: str) -> None:
        """End one of its watches; what it counted stays."""
        if watch := self.watches.pop(what, None):
            self.past_relists += watch.reflector.relists
            self.num_past_failures += watch.reflector.num_failures
        if task := self.tasks.pop(what, None):
            task.cancel()

    def age_s(self, now: float) -> float | None:
        """Seconds since the API confirmed the objects of all watches; None before the first list."""
        synced = [watch.reflector.synced_at for watch in self.watches.values()]
        known = [each for each in synced if each is not None]
        return now - min(known) if known and len(known) == len(synced) else None


class KubernetesSources:
    """All k8s:// URLs. `cluster` raises ConfigError outside a cluster if no API server is configured."""

    def __init__(
        self,
        membership: Membership,
        start: Start,
        *,
        cluster: Callable[[], ClusterAccess],
        times: WatchTimes,
    ) -> None:
        self._membership = membership
        self._start = start
        self._cluster = cluster
        self._times = times
        self._client: ApiClient | None = None
        self.names: dict[str, KubernetesSource] = {}

    def __repr__(self) -> str:
        return f"KubernetesSources({sorted(self.names)})"

    def refusal(self) -> str | None:
        """Explain why no API server can be asked; None where one can."""
        try:
            self._cluster()
        except ConfigError as exc:
            return str(exc)
        return None

    def add(self, url: str, role: Role | None = None) -> bool:
        """Start to follow a source; False if it is known already. Raises ConfigError without a cluster."""
        if url in self.names:
            return False
        self._client = self._client or ApiClient(self._cluster())
        parsed = KubernetesUrl.of(url)
        members = self._membership.sources[url] = SourceMembers(role, parsed.server_name)
        source = self.names[url] = KubernetesSource(parsed, role, members)
        if parsed.kind is ObjectKind.SERVICE:
            self._follow_service(source, self._client)
        elif parsed.kind is ObjectKind.PODS:
            read = partial(selected_pod_endpoints, port=parsed.port, is_tls=parsed.is_tls)
            self._follow_pods(source, self._client, EndpointTable(read), parsed.selector)
        else:
            self._follow_pool(source, self._client)
        return True

    def drop(self, url: str) -> bool:
        """Drop a source and its workers."""
        if (source := self.names.pop(url, None)) is None:
            return False
        for what in list(source.tasks):
            source.end(what)
        return self._membership.drop(url)

    def is_member(self, url: str) -> bool:
        return any(url in source.members for source in self.names.values())

    async def have_listed(self) -> None:
        """Wait until each source has been listed once."""
        for source in list(self.names.values()):
            await source.has_listed.wait()

    async def close(self) -> None:
        if self._client:
            await self._client.close()

    def ages(self) -> Iterator[tuple[str, float]]:
        now = time.monotonic()
        for source in self.names.values():
            if (age_s := source.age_s(now)) is not None:
                yield source.url, age_s

    # kinds of sources --------------------------------------------------------------------------

    def _follow_service(self, source: KubernetesSource, client: ApiClient) -> None:
        parsed = source.parsed
        read = partial(slice_endpoints, port=parsed.port, is_tls=parsed.is_tls)
        table = EndpointTable[EndpointSlice](read)
        changes = Coalesced(partial(self._apply, source, table))
        watch = ObjectWatch(
            source.url,
            client,
            slices_query(parsed),
            SLICES,
            on_list=partial(_listed, table, changes),
            on_change=partial(_changed, table, changes),
            times=self._times,
        )
        self._run(source, "slices", watch, changes)

    def _follow_pods(
        self, source: KubernetesSource, client: ApiClient, table: EndpointTable[Pod], selector: str
    ) -> None:
        changes = Coalesced(partial(self._apply, source, table))
        watch = ObjectWatch(
            source.url,
            client,
            pods_query(source.parsed.namespace, selector),
            PODS,
            on_list=partial(_listed, table, changes),
            on_change=partial(_changed, table, changes),
            times=self._times,
        )
        self._run(source, "pods", watch, changes)

    def _follow_pool(self, source: KubernetesSource, client: ApiClient) -> None:
        parsed = source.parsed
        follower = PoolFollower(source, partial(self._follow_rule, source, client), self._end_pool)
        watch = ObjectWatch(
            source.url,
            client,
            pool_query(parsed),
            POOLS,
            on_list=lambda pools: follower.take(pools.get(parsed.name)),
            on_change=lambda change: follower.take(change.object),
            times=self._times,
        )
        self._run(source, "pool", watch, None)

    def _follow_rule(self, source: KubernetesSource, client: ApiClient, rule: PoolRule) -> None:
        source.end("pods")
        self._follow_pods(source, client, EndpointTable(rule.endpoints), rule.selector)

    def _end_pool(self, source: KubernetesSource) -> None:
        """The pool is gone: so are its workers, which end what they have."""
        source.end("pods")
        self._membership.apply(source.url, {})
        source.has_listed.set()

    def _run(self, source: KubernetesSource, what: str, watch: AnyWatch, changes: Coalesced | None) -> None:
        source.watches[what] = watch
        task = source.tasks[what] = self._start(f"watch {what} of {source.url}", watch.run())
        if changes is not None:
            task.add_done_callback(lambda task: changes.stop())

    def _apply(self, source: KubernetesSource, table: EndpointTable[Any]) -> None:
        if source.url not in self.names:
            return
        self._membership.apply(source.url, table.endpoints)
        source.refusal = table.refusal
        source.has_listed.set()


@dataclass(slots=True)
class PoolFollower:
    """Follows one pool: its pods are watched again where the pool selects others. A pool that its definition
    would not allow changes nothing."""

    source: KubernetesSource
    follow: Callable[[PoolRule], None]
    end: Callable[[KubernetesSource], None]
    rule: PoolRule | None = None

    def take(self, pool: InferencePool | None) -> None:
        if pool is None or pool.metadata.deletion_timestamp:
            self.rule, self.source.refusal = None, f"there is no InferencePool {self.source.parsed.name}"
            return self.end(self.source)
        try:
            rule = pool_rule(pool, is_tls=self.source.parsed.is_tls)
        except ValueError as exc:
            self.source.refusal = str(exc)
            return None
        if rule != self.rule:
            self.rule, self.source.refusal = rule, ""
            self.follow(rule)
        return None


def _listed(table: EndpointTable[Any], changes: Coalesced, objects: Mapping[str, Any]) -> None:
    table.replace(objects)
    changes.poke()


def _changed(table: EndpointTable[Any], changes: Coalesced, change: ObjectChange[Any]) -> None:
    if table.change(change):
        changes.poke()
