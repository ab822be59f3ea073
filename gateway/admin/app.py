"""The admin API and /metrics, on a port of their own: who is in the fleet, what is known, why."""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.admin.console.event_streams import add_streams
from gateway.admin.console.handlers import console_handlers
from gateway.admin.console.traffic_history import INTERVAL_S, NUM_INTERVALS, TrafficHistory
from gateway.admin.endpoint_table import bound
from gateway.admin.explain import Preview
from gateway.admin.workers import FleetAdmin, as_error, as_json
from gateway.config.server import MAX_BODY_BYTES
from gateway.core.errors import ConfigError, GatewayError
from gateway.core.fleet import Fleet, Member
from gateway.observability.cache_loss.observer import CacheLoss
from gateway.proxy.api import Api, ready
from gateway.routing.active_policy import ActivePolicy
from gateway.routing.decision_log import DecisionLog
from gateway.routing.router import Router

log = logging.getLogger("kvgate.admin")

MAX_RECENT = 100
MAX_REQUESTS = 10_000
MAX_LISTED_BLOCKS = 200_000
"""To list them holds the loop for some 10 ms."""


@dataclass(frozen=True, slots=True)
class _Families(Collector):
    """Collected families, in the form that prometheus-client exposes."""

    families: Iterable[Metric]

    def collect(self) -> Iterable[Metric]:
        return self.families


class Admin:
    def __init__(
        self,
        *,
        api: Api,
        router: Router,
        workers: FleetAdmin,
        records: DecisionLog,
        registry: CollectorRegistry,
        losses: CacheLoss,
        describe_tokenizer: Callable[[], Mapping[str, Any]],
        describe_verify: Callable[[], Mapping[str, Any]],
        describe_admission: Callable[[], Mapping[str, Any]],
        describe_advice: Callable[[], Mapping[str, Any]],
        policies: ActivePolicy,
        preview: Preview,
        reload: Callable[[], Awaitable[Mapping[str, Any]]],
        traffic: TrafficHistory,
    ) -> None:
        self._traffic = traffic
        self._api = api
        self._router = router
        self._fleet: Fleet = router.fleet
        self._workers = workers
        self._records = records
        self._registry = registry
        self._losses = losses
        self._describe_tokenizer = describe_tokenizer
        self._describe_verify = describe_verify
        self._describe_admission = describe_admission
        self._describe_advice = describe_advice
        self._policies = policies
        self._preview = preview
        self._reload = reload

    def handlers(self) -> dict[str, Handler]:
        """Handlers by their name in the table (`admin/endpoint_table.py`)."""
        return {
            "health": self._health,
            "ready": self._ready,
            "metrics": self._metrics,
            "index": self._index,
            "blocks": self._blocks,
            "tokenizer": self._tokenizer,
            "cache_loss": self._cache_loss,
            "verify": self._verify,
            "admission": self._admission,
            "advice": self._advice,
            "policies": self._show_policies,
            "reload_policies": self._reload_policies,
            "reload_config": self._reload_config,
            "explain": self._explain,
            "decisions": self._recent,
            "decision": self._decision,
            "requests": self._latest_requests,
            "traffic": self._show_traffic,
        }

    def app(self, more: Mapping[str, Handler] | None = None) -> web.Application:
        """Return the application of the admin port, with the handlers of other parts in `more`."""
        app = web.Application(client_max_size=1 << 20, middlewares=[_in_json])
        handlers = {**self.handlers(), **self._workers.handlers(), **(more or {})}
        app.add_routes(bound({**handlers, **console_handlers(handlers)}))
        add_streams(app)
        return app

    async def _health(self, request: web.Request) -> web.Response:
        return as_json({"status": "alive"})

    async def _ready(self, request: web.Request) -> web.Response:
        try:
            status, body = ready(self._fleet, request.query.get("model"), is_stopping=self._api.is_stopping)
        except GatewayError as exc:
            return web.Response(status=exc.status, body=exc.body(), content_type="application/json")
        return as_json(body, status)

    async def _metrics(self, request: web.Request) -> web.Response:
        """Answer /metrics: read at once, written in a thread, since a large fleet's page takes tens of
        milliseconds."""
        page = await asyncio.to_thread(generate_latest, _Families(list(self._registry.collect())))
        return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _index(self, request: web.Request) -> web.Response:
        router = self._router
        workers = [self._index_of(member) for member in self._fleet]
        return as_json({"index": repr(router.index), "assumed": repr(router.assumed), "workers": workers})

    async def _blocks(self, request: web.Request) -> web.Response:
        """Answer with a line for each block that a worker's events reported: its hash in decimal, in no
        order."""
        name, index = request.match_info["worker"], self._router.index
        worker = next((member.worker.id for member in self._fleet if member.worker.id == name), None)
        if worker is None:
            return as_error(404, f"no worker '{name}'; /admin/index names those that there are")
        if (num_blocks := index.num_blocks(worker)) > MAX_LISTED_BLOCKS:
            return as_error(413, f"it holds {num_blocks} blocks, at most {MAX_LISTED_BLOCKS} are listed")
        return web.Response(text="".join(f"{block}\n" for block in index.blocks(worker)))

    async def _tokenizer(self, request: web.Request) -> web.Response:
        return as_json(self._describe_tokenizer())

    async def _cache_loss(self, request: web.Request) -> web.Response:
        return as_json(self._losses.describe())

    async def _verify(self, request: web.Request) -> web.Response:
        return as_json(self._describe_verify())

    async def _admission(self, request: web.Request) -> web.Response:
        return as_json(self._describe_admission())

    async def _advice(self, request: web.Request) -> web.Response:
        return as_json(self._describe_advice())

    async def _show_policies(self, request: web.Request) -> web.Response:
        return as_json(self._policies.describe())

    async def _reload_policies(self, request: web.Request) -> web.Response:
        """Reload the policy file; takes JSON only, and a request's body never contains code."""
        if request.content_type != "application/json":
            return as_error(415, "send application/json, as in {}")
        try:
            await self._policies.reload()
        except ConfigError as exc:
            return as_error(400, str(exc))
        return as_json(self._policies.describe())

    async def _reload_config(self, request: web.Request) -> web.Response:
        """Reload the configuration from the sources of the start, never from the request."""
        return await reloaded(request, self._reload)

    async def _explain(self, request: web.Request) -> web.Response:
        """Explain the decision for the request in the body, which is neither sent nor booked."""
        body = await request.clone(client_max_size=MAX_BODY_BYTES).read()
        try:
            explained = await self._preview.explain(body, request.query.get("path"), request.headers)
        except GatewayError as exc:
            return web.Response(status=exc.status, body=exc.body(), content_type="application/json")
        return as_json(explained)

    async def _recent(self, request: web.Request) -> web.Response:
        return as_json({"decisions": self._records.recent(MAX_RECENT)})

    async def _decision(self, request: web.Request) -> web.Response:
        record = self._records.explain(request.match_info["id"], self._policies.parts_of)
        if record is None:
            return as_error(404, "no such decision; only the latest are kept")
        return as_json(record)

    async def _latest_requests(self, request: web.Request) -> web.Response:
        if (limit := _count(request, "limit", MAX_REQUESTS)) is None:
            return as_error(400, f"limit is a number from 1 to {MAX_REQUESTS}")
        return as_json({"requests": self._records.ended(limit, request.query.get("id", ""))})

    async def _show_traffic(self, request: web.Request) -> web.Response:
        if (limit := _count(request, "limit", NUM_INTERVALS)) is None:
            return as_error(400, f"limit is a number from 1 to {NUM_INTERVALS}")
        return as_json({"interval_s": INTERVAL_S, "intervals": self._traffic.latest(limit)})

    def _index_of(self, member: Member) -> dict[str, Any]:
        worker = member.worker.id
        applied = self._router.index.applied(worker)
        return {
            "worker": worker,
            "stream": member.stream.value if member.stream else None,
            "blocks": self._router.index.num_blocks(worker),
            "assumed_blocks": self._router.assumed.num_kept(worker),
            "pinned_blocks": self._router.assumed.num_pinned(worker),
            "applied": {
                "stored_blocks": applied.num_stored,
                "removed_blocks": applied.num_removed,
                "orphan_blocks": applied.num_orphans,
                "unknown_removals": applied.num_unknown_removals,
                "mismatched_events": applied.num_mismatched,
                "unknown_events": applied.num_unknown_events,
                "unplaced_blocks": dict(applied.unplaced),
            },
        }


def _count(request: web.Request, name: str, most: int) -> int | None:
    """A number of the query, which is `most` where it is left out; None where it is none, or too large."""
    text = request.query.get(name, str(most))
    return int(text) if re.fullmatch("[0-9]{1,6}", text) and 1 <= int(text) <= most else None


async def reloaded(request: web.Request, reload: Callable[[], Awaitable[Mapping[str, Any]]]) -> web.Response:
    """Answer POST /admin/config/reload, which takes JSON only."""
    if request.content_type != "application/json":
        return as_error(415, "send application/json, as in {}")
    try:
        return as_json(await reload())
    except ConfigError as exc:
        return as_error(400, str(exc))


@web.middleware
async def _in_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer errors of the HTTP server in the form of the gateway's errors."""
    try:
        return await handler(request)
    except web.HTTPMethodNotAllowed as exc:
        methods = ", ".join(sorted(exc.allowed_methods))
        answer = as_error(405, f"{request.path} answers {methods}, not {request.method}")
        answer.headers["Allow"] = methods
        return answer
    except web.HTTPNotFound:
        pages = sorted({route.resource.canonical for route in request.app.router.routes() if route.resource})
        return as_error(404, f"nothing is at {request.path}; there are {', '.join(pages)}")
    except web.HTTPRequestEntityTooLarge as exc:
        return as_error(413, exc.text or exc.reason)
