"""The table of the admin API's endpoints: method, path, handler, answer, and how several processes answer.

An endpoint is one row here, a handler of its name (`handlers` in `app.py`, `workers.py`,
`lora.py`, `auth.py`, `console/`), and the fields of its answer (`fields.py`, `request_fields.py`,
`advice_fields.py`).
Components may have rows of their own (`app/component.py`).
`make docs` writes them to docs/reference/admin-api.md.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial

from aiohttp import web
from aiohttp.typedefs import Handler

from gateway.admin.advice_fields import AdviceView
from gateway.admin.fields import (
    AdaptersView,
    AdmissionView,
    CacheLossesView,
    DecisionsView,
    FleetView,
    IndexView,
    KeysView,
    PoliciesView,
    ReloadView,
    TokenizersView,
    VerificationView,
    View,
)
from gateway.admin.request_fields import RequestsView, TrafficView
from gateway.core.route_table import HEALTH, METRICS, READY


class ProcessScope(Enum):
    """How several processes answer."""

    MERGED = "merged"  # every process is asked, and each field is merged by its rule
    ALL = "all"  # every process carries it out, one after the other; the first error is the answer
    ONE = "one"  # one process answers
    FOUND = "first found"  # every process is asked; the first that has it answers
    SUPERVISOR = "supervisor"  # the supervisor answers


MERGED, ALL, ONE = ProcessScope.MERGED, ProcessScope.ALL, ProcessScope.ONE
FOUND, SUPERVISOR = ProcessScope.FOUND, ProcessScope.SUPERVISOR


@dataclass(frozen=True, slots=True)
class AdminRoute:
    """Endpoint of the admin API. `name` is its handler's; `answer` has the fields of its JSON answer, None
    for an answer without a fixed form."""

    method: str
    path: str
    name: str
    about: str
    answer: type[View] | None = None
    processes: ProcessScope = MERGED


_WORKER = "/admin/workers/{name:.+}"
_ADAPTER = "/admin/adapters/{name:.+}"

ADMIN_ROUTES: tuple[AdminRoute, ...] = (
    AdminRoute("GET", HEALTH, "health", "200 while the gateway runs", None, SUPERVISOR),
    AdminRoute(
        "GET",
        READY,
        "ready",
        "200 while a worker is up, else 503 (`?model=NAME`)",
        None,
        SUPERVISOR,
    ),
    AdminRoute("GET", "/", "console", "the console, for a browser", None, SUPERVISOR),
    AdminRoute("GET", "/console/{file}", "console_file", "its files", None, SUPERVISOR),
    AdminRoute("GET", "/session", "session", "what the caller may do", None, SUPERVISOR),
    AdminRoute("POST", "/login", "login", "opens a session of the console with `key`", None, SUPERVISOR),
    AdminRoute("POST", "/logout", "logout", "closes it", None, SUPERVISOR),
    AdminRoute(
        "GET",
        "/admin/events",
        "events",
        "live figures, as server-sent events (`?topics=workers,requests,traffic`)",
        None,
        SUPERVISOR,
    ),
    AdminRoute("GET", METRICS, "metrics", "metrics in Prometheus' text format", None, SUPERVISOR),
    AdminRoute("GET", "/admin/workers", "workers", "endpoints, their workers and loads", FleetView),
    AdminRoute("POST", "/admin/workers", "add_worker", "adds `url`, with an optional `role`", None, ALL),
    AdminRoute("POST", _WORKER + "/drain", "drain", "drains a worker; `remove`: then removes it", None, ALL),
    AdminRoute("DELETE", _WORKER + "/drain", "undo_drain", "ends the drain of a worker", None, ALL),
    AdminRoute("DELETE", _WORKER, "remove_worker", "removes a worker, aborting its requests", None, ALL),
    AdminRoute("GET", "/admin/index", "index", "blocks known of each worker", IndexView),
    AdminRoute("GET", "/admin/index/{worker}/blocks", "blocks", "block hashes, one per line", None, FOUND),
    AdminRoute("GET", "/admin/tokenizer", "tokenizer", "tokenizer and templates by model", TokenizersView),
    AdminRoute("GET", "/admin/cache-loss", "cache_loss", "tokens computed again, by cause", CacheLossesView),
    AdminRoute("GET", "/admin/verify", "verify", "accuracy of the predictions", VerificationView),
    AdminRoute("GET", "/admin/admission", "admission", "queues, tenants and rejections", AdmissionView),
    AdminRoute("GET", "/admin/advice", "advice", "workers that each model and role needs", AdviceView),
    AdminRoute("GET", "/admin/policies", "policies", "policies, A/B tests and shadows", PoliciesView),
    AdminRoute(
        "POST",
        "/admin/policies/reload",
        "reload_policies",
        "reloads the policy file",
        PoliciesView,
        SUPERVISOR,
    ),
    AdminRoute(
        "POST",
        "/admin/config/reload",
        "reload_config",
        "reloads the configuration",
        ReloadView,
        SUPERVISOR,
    ),
    AdminRoute("POST", "/admin/explain", "explain", "the decision for a request that is not sent", None, ONE),
    AdminRoute("GET", "/admin/decisions", "decisions", "ids of the latest decisions", DecisionsView),
    AdminRoute("GET", "/admin/decisions/{id}", "decision", "a [decision record](decisions.md)", None, FOUND),
    AdminRoute(
        "GET",
        "/admin/requests",
        "requests",
        "the latest requests that ended; `?limit=`: how many, `?id=`: a part of an id",
        RequestsView,
    ),
    AdminRoute(
        "GET",
        "/admin/traffic",
        "traffic",
        "the last hour in intervals of ten seconds; `?limit=`: number of intervals",
        TrafficView,
    ),
    AdminRoute("GET", "/admin/keys", "keys", "API keys in use", KeysView),
    AdminRoute("POST", "/admin/keys/reload", "reload_keys", "reloads the key files", KeysView, ALL),
    AdminRoute("GET", "/admin/adapters", "adapters", "adapters and the workers that list them", AdaptersView),
    AdminRoute("POST", "/admin/adapters", "load_adapter", "loads `adapter` from `path`", None, ONE),
    AdminRoute(
        "POST",
        "/admin/adapters/names",
        "refresh_adapters",
        "asks workers for their names",
        AdaptersView,
        ALL,
    ),
    AdminRoute("DELETE", _ADAPTER, "unload_adapter", "unloads it; `?worker=`, `?model=`", None, ONE),
)


def bound(
    handlers: Mapping[str, Handler], routes: Sequence[AdminRoute] = ADMIN_ROUTES
) -> Iterator[web.RouteDef]:
    """Return the routes that have a handler. Raises KeyError for a handler without a row."""
    unknown = handlers.keys() - {endpoint.name for endpoint in routes}
    if unknown:
        raise KeyError(f"handlers without a row in the table: {', '.join(sorted(unknown))}")
    for endpoint in routes:
        if handler := handlers.get(endpoint.name):
            method = web.get if endpoint.method == "GET" else partial(web.route, endpoint.method)
            yield method(endpoint.path, handler)  # HEAD goes with GET
