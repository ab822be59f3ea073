"""Membership: the endpoints of Kubernetes sources join the roster, drain, and leave it.

| endpoint                       | then                                                                 |
|--------------------------------|----------------------------------------------------------------------|
| ready                          | joins; a drain that began here is undone                             |
| not ready                      | gets no new requests; its blocks stay known                          |
| terminating, or no longer there| gets no new requests, and is dropped when nothing is left            |
| of another pod, or role        | the engine before is forgotten at once; the new one joins as any     |
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from gateway.core.worker import Role, Worker
from gateway.discovery.kubernetes.endpoints import EndpointState, KubernetesEndpoint
from gateway.discovery.lifecycle import Lifecycle
from gateway.discovery.roster import Roster
from gateway.http.address import Address
from gateway.http.networks import Reachable
from gateway.runtime.rate_limited_log import RateLimitedLog

log = logging.getLogger("kvgate.kubernetes")

MAX_ENDPOINTS = 4096
"""Endpoints of one source, each of which is probed."""
NOT_READY = "its pod is not ready"
TERMINATING = "its pod is terminating"
NO_LONGER_LISTED = "its pod is no longer listed"
OWN_REASONS = (NOT_READY, TERMINATING, NO_LONGER_LISTED)


@dataclass(slots=True)
class SourceMembers:
    """Endpoints of one source by URL, with those that left it and have requests still."""

    role: Role | None = None
    server_name: str = ""
    by_url: dict[str, KubernetesEndpoint] = field(default_factory=dict)


class Membership:
    """Applies endpoints to the roster. `inherit` copies a source's settings to a member; arguments: the
    member's URL, the source's, the name in its certificate."""

    def __init__(
        self,
        roster: Roster,
        lifecycle: Lifecycle,
        *,
        inherit: Callable[[str, str, str], None],
        reachable: Reachable,
    ) -> None:
        self._roster = roster
        self._lifecycle = lifecycle
        self._inherit = inherit
        self._reachable = reachable
        self._log = RateLimitedLog(log)
        self.sources: dict[str, SourceMembers] = {}

    def apply(self, source: str, found: Mapping[str, KubernetesEndpoint]) -> None:
        """Put the roster in step with all endpoints of a source."""
        members, now = self.sources[source], self._bounded(source, found)
        for url, endpoint in list(now.items()):
            before = members.by_url.get(url)
            if before == endpoint and self._roster.has(url):
                continue
            if refusal := self._reachable.refusal(Address.of(url).host):
                self._log.warning("Kubernetes %s: %s", source, refusal)
                del now[url]
                continue
            if before is not None and _is_other(before, endpoint):
                log.info("worker %s: address belongs to another pod now; probing it as a new worker", url)
                self._roster.drop(url)
            self._place(source, members, endpoint)
        left = {
            url: replace(each, state=EndpointState.DRAINING)
            for url, each in members.by_url.items()
            if url not in now and self._roster.has(url)
        }
        for url in left:
            if not self._is_ready_elsewhere(source, url):
                self._drain(url, NO_LONGER_LISTED, is_last=True)
        members.by_url = left | now

    def drop(self, source: str) -> bool:
        """Drop a source and its workers."""
        if (members := self.sources.pop(source, None)) is None:
            return False
        for url in members.by_url:
            if not self._is_ready_elsewhere(source, url):
                self._roster.drop(url)
        return True

    def _bounded(self, source: str, found: Mapping[str, KubernetesEndpoint]) -> dict[str, KubernetesEndpoint]:
        if len(found) <= MAX_ENDPOINTS:
            return dict(found)
        self._log.warning("Kubernetes %s: %d endpoints, using %d", source, len(found), MAX_ENDPOINTS)
        return {url: found[url] for url in sorted(found)[:MAX_ENDPOINTS]}  # the same ones the next time

    def _place(self, source: str, members: SourceMembers, endpoint: KubernetesEndpoint) -> None:
        url = endpoint.url
        if endpoint.state is EndpointState.READY:
            if not self._roster.has(url):
                self._inherit(url, source, members.server_name)
                self._roster.add(url, members.role or endpoint.role)
            if self._lifecycle.why(url) in OWN_REASONS:
                self._lifecycle.undo(url, self._workers(url))
        elif self._is_ready_elsewhere(source, url):
            return
        elif endpoint.state is EndpointState.DRAINING:
            self._drain(url, TERMINATING, is_last=True)
        elif self._lifecycle.why(url) in (None, *OWN_REASONS):
            self._drain(url, NOT_READY, is_last=False)

    def _drain(self, url: str, why: str, *, is_last: bool) -> None:
        if self._roster.has(url) and self._lifecycle.why(url) != why:
            self._lifecycle.drain(url, self._workers(url), why, is_last=is_last, is_derived=True)

    def _is_ready_elsewhere(self, source: str, url: str) -> bool:
        """Return True if another source has the endpoint, and it is ready there."""
        return any(
            (found := members.by_url.get(url)) is not None and found.state is EndpointState.READY
            for name, members in self.sources.items()
            if name != source
        )

    def _workers(self, url: str) -> tuple[Worker, ...]:
        endpoint = self._roster.find(url)
        return endpoint.workers if endpoint else ()


def _is_other(before: KubernetesEndpoint, now: KubernetesEndpoint) -> bool:
    """Return True if another engine has the address: a pod of another uid, or one with another role."""
    is_other_pod = bool(before.uid and now.uid and before.uid != now.uid)
    return is_other_pod or before.role is not now.role
