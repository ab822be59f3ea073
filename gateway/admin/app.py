"""The admin API and /metrics, on a port of their own: who is in the fleet, what is known, why."""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
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
from gateway.admin.endpoint_table import ADMIN_ROUTES, AdminRoute, bound
from gateway.admin.explain import Preview
from gateway.admin.workers import as_error, as_json
from gateway.config.server import MAX_BODY_BYTES
from gateway.core.errors import ConfigError, GatewayError
from gateway.core.fleet import Fleet, Member
from gateway.index.assumed import AssumedIndex
from gateway.index.base import Index
from gateway.proxy.api import Api, ready
from gateway.routing.active_policy import ActivePolicy
from gateway.routing.decision_log import DecisionLog, PartsOf

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


def application(
    handlers: Mapping[str, Handler], routes: Sequence[AdminRoute] = ADMIN_ROUTES
) -> web.Application:
    """Return the application of the admin port; `handlers` are by the names of their rows in `routes`. Raises
    KeyError for one without a row."""
    app = web.Application(client_max_size=1 << 20, middlewares=[_in_json])
    app.add_routes(bound({**handlers, **console_handlers(handlers)}, routes))
    add_streams(app)
    return app


def shows(describe: Callable[[], Mapping[str, Any]]) -> Handler:
    """Return a handler that answers with a description of now."""

    async def show(request: web.Request) -> web.Response:
        return as_json(describe())

    return show


def probe_handlers(fleet: Fleet, api: Api) -> dict[str, Handler]:
    async def is_ready(request: web.Request) -> web.Response:
        try:
            status, body = ready(fleet, request.query.get("model"), is_stopping=api.is_stopping)
        except GatewayError as exc:
            return web.Response(status=exc.status, body=exc.body(), content_type="application/json")
        return as_json(body, status)

    return {"health": shows(lambda: {"status": "alive"}), "ready": is_ready}


def metrics_handlers(registry: CollectorRegistry) -> dict[str, Handler]:
    async def show(request: web.Request) -> web.Response:
        """Answer /metrics: read at once, written in a thread, since a large fleet's page takes tens of
        milliseconds."""
        page = await asyncio.to_thread(generate_latest, _Families(list(registry.collect())))
        return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE_LATEST})

    return {"metrics": show}


def index_handlers(fleet: Fleet, index: Index, assumed: AssumedIndex) -> dict[str, Handler]:
    def describe() -> Mapping[str, Any]:
        workers = [_index_of(member, index, assumed) for member in fleet]
        return {"index": repr(index), "assumed": repr(assumed), "workers": workers}

    async def blocks(request: web.Request) -> web.Response:
        """Answer with a line for each block that a worker's events reported: its hash in decimal, in no
        order."""
        name = request.match_info["worker"]
        worker = next((member.worker.id for member in fleet if member.worker.id == name), None)
        if worker is None:
            return as_error(404, f"no worker '{name}'; /admin/index lists the workers")
        if (num_blocks := index.num_blocks(worker)) > MAX_LISTED_BLOCKS:
            return as_error(
                413, f"worker '{name}' caches {num_blocks} blocks; at most {MAX_LISTED_BLOCKS} can be listed"
            )
        return web.Response(text="".join(f"{block}\n" for block in index.blocks(worker)))

    return {"index": shows(describe), "blocks": blocks}


def policy_handlers(policies: ActivePolicy) -> dict[str, Handler]:
    async def reload(request: web.Request) -> web.Response:
        """Reload the policy file; takes JSON only, and a request's body never contains code."""
        if request.content_type != "application/json":
            return as_error(415, "send a body of type application/json, such as {}")
        try:
            await policies.reload()
        except ConfigError as exc:
            return as_error(400, str(exc))
        return as_json(policies.describe())

    return {"policies": shows(policies.describe), "reload_policies": reload}


def reload_handlers(reload: Callable[[], Awaitable[Mapping[str, Any]]]) -> dict[str, Handler]:
    async def handle(request: web.Request) -> web.Response:
        """Reload the configuration from the sources of the start, never from the request."""
        return await reloaded(request, reload)

    return {"reload_config": handle}


def explain_handlers(preview: Preview) -> dict[str, Handler]:
    async def explain(request: web.Request) -> web.Response:
        """Explain the decision for the request in the body, which is neither sent nor booked."""
        body = await request.clone(client_max_size=MAX_BODY_BYTES).read()
        try:
            explained = await preview.explain(body, request.query.get("path"), request.headers)
        except GatewayError as exc:
            return web.Response(status=exc.status, body=exc.body(), content_type="application/json")
        return as_json(explained)

    return {"explain": explain}


def decision_handlers(records: DecisionLog, parts_of: PartsOf) -> dict[str, Handler]:
    async def decision(request: web.Request) -> web.Response:
        record = records.explain(request.match_info["id"], parts_of)
        if record is None:
            return as_error(404, "no such decision; the gateway keeps only the latest")
        return as_json(record)

    async def requests(request: web.Request) -> web.Response:
        if (limit := _count(request, "limit", MAX_REQUESTS)) is None:
            return as_error(400, f"limit must be a number from 1 to {MAX_REQUESTS}")
        return as_json({"requests": records.ended(limit, request.query.get("id", ""))})

    recent = shows(lambda: {"decisions": records.recent(MAX_RECENT)})
    return {"decisions": recent, "decision": decision, "requests": requests}


def traffic_handlers(history: TrafficHistory) -> dict[str, Handler]:
    async def show(request: web.Request) -> web.Response:
        if (limit := _count(request, "limit", NUM_INTERVALS)) is None:
            return as_error(400, f"limit must be a number from 1 to {NUM_INTERVALS}")
        return as_json({"interval_s": INTERVAL_S, "intervals": history.latest(limit)})

    return {"traffic": show}


def _index_of(member: Member, index: Index, assumed: AssumedIndex) -> dict[str, Any]:
    worker = member.worker.id
    applied = index.applied(worker)
    return {
        "worker": worker,
        "stream": member.stream.value if member.stream else None,
        "blocks": index.num_blocks(worker),
        "assumed_blocks": assumed.num_kept(worker),
        "pinned_blocks": assumed.num_pinned(worker),
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
        return as_error(415, "send a body of type application/json, such as {}")
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
        answer = as_error(405, f"{request.path} accepts {methods}, not {request.method}")
        answer.headers["Allow"] = methods
        return answer
    except web.HTTPNotFound:
        pages = sorted({route.resource.canonical for route in request.app.router.routes() if route.resource})
        return as_error(404, f"there is no endpoint {request.path}; known: {', '.join(pages)}")
    except web.HTTPRequestEntityTooLarge as exc:
        return as_error(413, exc.text or exc.reason)
