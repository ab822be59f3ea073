"""The admin API of workers: their status, and add, drain, remove."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from gateway.admin.audit import caller_of
from gateway.admin.console.traffic_history import by_range
from gateway.config.worker_specs import spec_of
from gateway.core.decode_errors import UNREADABLE
from gateway.core.fleet import Member
from gateway.core.speed import TYPICAL
from gateway.core.worker import Role, WorkerId
from gateway.discovery.dns import resolve
from gateway.discovery.endpoint import Endpoint, EventSubscription
from gateway.discovery.lifecycle import Lifecycle
from gateway.discovery.probed import endpoint_url
from gateway.discovery.roster import Roster
from gateway.discovery.sources import Sources
from gateway.http.address import DNS, Address, names_several
from gateway.http.kubernetes_url import KUBERNETES
from gateway.ingest.base import Feed
from gateway.observability.metrics import Metrics, WorkerMetrics
from gateway.routing.router import Router
from gateway.upstream.access import FleetAccess


class _NewWorkerRequest(msgspec.Struct, forbid_unknown_fields=True):
    url: str
    role: Literal["prefill", "decode"] | None = None


class _DrainRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a drain; with `remove` the worker is removed once it has nothing left."""

    remove: bool = False


class FleetAdmin:
    """Handlers of the endpoints for workers. `verified` summarizes the accuracy of a worker's predictions,
    `tokens_at` returns the token source of an endpoint; `metrics` counts its traffic."""

    def __init__(
        self,
        router: Router,
        roster: Roster,
        lifecycle: Lifecycle,
        sources: Sources,
        access: FleetAccess,
        verified: Callable[[WorkerId], Mapping[str, Any]],
        tokens_at: Callable[[str], Sequence[Mapping[str, str]]],
        metrics: Metrics,
    ) -> None:
        self._router = router
        self._fleet = router.fleet
        self._roster = roster
        self._lifecycle = lifecycle
        self._sources = sources
        self._access = access
        self._verified = verified
        self._tokens_at = tokens_at
        self._metrics = metrics

    def handlers(self) -> dict[str, Handler]:
        return {
            "workers": self._workers,
            "add_worker": self._add,
            "drain": self._drain,
            "undo_drain": self._undo,
            "remove_worker": self._remove,
        }

    async def _workers(self, request: web.Request) -> web.Response:
        removed = [
            {"url": each.url, "state": "removed", "reason": each.why, "at": each.at}
            for each in self._lifecycle.removed
        ]
        endpoints = [self._endpoint(endpoint) for endpoint in self._roster]
        sources = [
            {
                "url": source.url,
                "spec": spec_of(source.url, source.role),
                "members": sorted(source.members),
                "last_error": source.last_error,
            }
            for source in self._sources
        ]
        drains = self._lifecycle.specs
        in_panic = {model: len(late) for model, late in self._fleet.late.in_panic.items()}
        return as_json(
            {
                "endpoints": endpoints,
                "sources": sources,
                "drains": drains,
                "removed": removed,
                "in_panic": in_panic,
            }
        )

    async def _add(self, request: web.Request) -> web.Response:
        """Add a worker; takes JSON only, which a page in an operator's browser cannot send unasked."""
        if request.content_type != "application/json":
            return as_error(
                415, 'send a body of type application/json, such as {"url": "http://10.0.0.3:8000"}'
            )
        try:
            new = msgspec.json.decode(await request.read(), type=_NewWorkerRequest)
            url = endpoint_url(new.url)
        except UNREADABLE as exc:
            return as_error(400, str(exc))
        if refusal := await self._refusal(url):
            return as_error(403, f"{url}: {refusal}")
        adds = self._sources.add if names_several(url) else self._roster.add
        is_new = adds(url, Role(new.role) if new.role else None)
        return as_json({"url": url, "added": is_new}, 201 if is_new else 200)

    async def _refusal(self, url: str) -> str | None:
        """Return why no worker may be at an address, by what it resolves to now. The connected address is
        looked at again."""
        if url.startswith(KUBERNETES):
            return self._sources.refusal(url)
        address = Address.of(url.removeprefix(DNS))
        if address.unix_path is not None:
            return self._access.socket_refusal(address.unix_path)
        if refusal := self._access.refusal(address.url):
            return refusal
        try:
            found = await resolve(address.host, address.port)
        except (OSError, UnicodeError):
            return None
        return next(filter(None, map(self._access.reachable.refusal, found)), None)

    async def _remove(self, request: web.Request) -> web.Response:
        name = _name(request)
        if not (self._roster.drop(name) or self._sources.drop(name)):
            return _unknown(name)
        return as_json({"removed": name})

    async def _drain(self, request: web.Request) -> web.Response:
        """Drain a worker; the body is optional. A page in a browser sends its origin, and must send JSON."""
        if request.content_type != "application/json" and (
            request.can_read_body or "Origin" in request.headers
        ):
            return as_error(415, "send a body of type application/json, such as {}")
        try:
            wanted = msgspec.json.decode(await request.read() or b"{}", type=_DrainRequest)
        except UNREADABLE as exc:
            return as_error(400, str(exc))
        if (endpoint := self._roster.find(name := _name(request))) is None:
            return _unknown(name)
        caller = caller_of(request)
        why = f"requested by {caller}" if caller else "requested"
        why = f"{why}; removed when its requests have ended" if wanted.remove else why
        is_new = self._lifecycle.drain(endpoint.url, endpoint.workers, why, is_last=wanted.remove)
        return as_json(
            {"draining": endpoint.url, "changed": is_new, "remaining_requests": self._remaining(endpoint)}
        )

    async def _undo(self, request: web.Request) -> web.Response:
        if (endpoint := self._roster.find(name := _name(request))) is None:
            return _unknown(name)
        is_new = self._lifecycle.undo(endpoint.url, endpoint.workers)
        return as_json({"draining": None, "changed": is_new, "remaining_requests": self._remaining(endpoint)})

    def _remaining(self, endpoint: Endpoint) -> int:
        return sum(self._lifecycle.num_remaining(worker.id) for worker in endpoint.workers)

    def _endpoint(self, endpoint: Endpoint) -> dict[str, Any]:
        facts = endpoint.facts
        return {
            "url": endpoint.url,
            "state": self._state(endpoint),
            "is_draining": endpoint.url in self._lifecycle.draining,
            "engine": facts.engine if facts else None,
            "version": facts.version if facts else None,
            "role": endpoint.workers[0].role.value if endpoint.workers else facts.role if facts else None,
            "spec": spec_of(endpoint.url, self._roster.declared.roles.get(endpoint.url)),
            "is_discovered": self._sources.is_member(endpoint.url),
            "last_error": endpoint.last_error,
            "token_sources": self._tokens_at(endpoint.url),
            "workers": [self._worker(endpoint, w.id) for w in endpoint.workers],
        }

    def _state(self, endpoint: Endpoint) -> str:
        if endpoint.facts is None:
            return "joining"
        members = map(self._fleet.get, [worker.id for worker in endpoint.workers])
        return "joined" if any(member and member.is_up for member in members) else "down"

    def _worker(self, endpoint: Endpoint, worker_id: WorkerId) -> dict[str, Any]:
        member = self._fleet.get(worker_id)
        assert member is not None, "an endpoint's workers are in the fleet"
        worker, load = member.worker, self._router.ledger.here(worker_id)
        feed = endpoint.feeds.get(worker_id)
        pairs = self._router.disaggregation
        return {
            "id": worker.id,
            "is_up": member.is_up,
            "is_late": member.is_late,
            **self._lifecycle.describe(worker_id),
            "models": [served.name for served in worker.served],
            "unusable_models": {each.served.name: each.reason for each in self._fleet.unusable(worker.id)},
            "block_size": worker.block_size,
            "cache_blocks": worker.num_blocks,
            "in_flight": load.num_in_flight,
            "booked_tokens": load.booked_tokens,
            "remote_in_flight": self._router.ledger.remote(worker_id).num_in_flight,
            "running": member.reported.shown("num_running"),
            "waiting": member.reported.shown("num_waiting"),
            "kv_usage": member.reported.shown("kv_usage"),
            "failed_requests": member.num_failures,
            "stream": _stream(member, feed[0] if feed else None),
            "blind": _blind(feed[1]) if feed else None,
            "excluded_pairs": pairs.banned_with(worker.id) if pairs else {},
            "predictions": self._verified(worker.id),
            "traffic": _traffic(self._metrics.worker(worker.id)),
            "prefill_tokens_per_s": _speed(member),
            "events": feed[0].endpoint if feed else None,
            "agent": getattr(feed[0], "agent", None)
            if feed
            else None,  # followed, or where one is looked for
            "replay": feed[0].replay_endpoint if feed else None,
            "events_connected": feed[0].is_connected if feed else False,
        }


def _stream(member: Member, feed: Feed | None) -> str | None:
    """State of a worker's event stream; a dead worker's is not catching up with anything."""
    if member.stream and feed and not member.is_up and not feed.is_connected:
        return "disconnected"
    return member.stream.value if member.stream else None


def _traffic(metrics: WorkerMetrics) -> dict[str, Any]:
    return {
        "requests": metrics.num_requests,
        "ttft": by_range(metrics.ttft_s.bounds, metrics.ttft_s.counts),
        "prompt_tokens": metrics.prompt_tokens,
        "predicted_cached_tokens": metrics.predicted_cached_tokens,
        "reported_prompt_tokens": metrics.reported_prompt_tokens,
        "reported_cached_tokens": metrics.reported_cached_tokens,
    }


def _speed(member: Member) -> float | None:
    return None if member.speed is TYPICAL else round(1 / member.speed.token_s, 1)


def _name(request: web.Request) -> str:
    return request.match_info["name"].rstrip("/")


def _unknown(name: str) -> web.Response:
    return as_error(404, f"no worker '{name}'; name it by its URL or its id")


def _blind(subscribed: EventSubscription) -> dict[str, Any] | None:
    """Return why a worker's cache is not wholly known, and what its recovery has found since."""
    if (reason := subscribed.stream.reason) is None:
        return None
    recovery = getattr(subscribed, "recovery", None)  # none where an agent is followed
    return {"reason": reason} | (recovery.describe() if recovery else {})


def as_json(body: Any, status: int = 200) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(body), content_type="application/json")


def as_error(status: int, message: str) -> web.Response:
    return as_json({"error": {"message": message}}, status)
