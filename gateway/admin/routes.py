"""The table of the admin API's endpoints: method, path, handler, answer, and how several processes answer.

An endpoint is one row here, a handler of its name (`handlers` in `app.py`, `workers.py`,
`lora.py`, `auth.py`), and the fields of its answer (`fields.py`). `make docs` writes them to
docs/reference/admin-api.md.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial

from aiohttp import web
from aiohttp.typedefs import Handler

from gateway.admin.fields import (
    Adapters,
    Admission,
    Answer,
    CacheLosses,
    Decisions,
    Index,
    Keys,
    Policies,
    Reloaded,
    Tokenizers,
    Verification,
    Workers,
)
from gateway.core.requests.routes import HEALTH, METRICS, READY


class Processes(Enum):
    """How several processes answer."""

    MERGED = "merged"  # every process is asked, and each field is merged by its rule
    ALL = "all"  # every process carries it out, one after the other; the first error is the answer
    ONE = "one"  # one process answers
    FOUND = "first found"  # every process is asked; the first that has it answers
    SUPERVISOR = "supervisor"  # the supervisor answers


MERGED, ALL, ONE = Processes.MERGED, Processes.ALL, Processes.ONE
FOUND, SUPERVISOR = Processes.FOUND, Processes.SUPERVISOR


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`name` is that of its handler; `answer` the fields of its JSON answer, None for an answer without a
    fixed form."""

    method: str
    path: str
    name: str
    about: str
    answer: type[Answer] | None = None
    processes: Processes = MERGED


_WORKER = "/admin/workers/{name:.+}"
_ADAPTER = "/admin/adapters/{name:.+}"

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("GET", HEALTH, "health", "200 while the gateway runs", None, SUPERVISOR),
    Endpoint(
        "GET",
        READY,
        "ready",
        "200 while a worker is up, else 503 (`?model=NAME`)",
        None,
        SUPERVISOR,
    ),
    Endpoint("GET", METRICS, "metrics", "metrics in Prometheus' text format", None, SUPERVISOR),
    Endpoint("GET", "/admin/workers", "workers", "endpoints, their workers and loads", Workers),
    Endpoint("POST", "/admin/workers", "add_worker", "adds `url`, with an optional `role`", None, ALL),
    Endpoint("POST", _WORKER + "/drain", "drain", "drains a worker; `drop`: then drops it", None, ALL),
    Endpoint("DELETE", _WORKER + "/drain", "undo_drain", "takes a drained worker back", None, ALL),
    Endpoint("DELETE", _WORKER, "drop_worker", "drops a worker, aborting its requests", None, ALL),
    Endpoint("GET", "/admin/index", "index", "blocks known of each worker", Index),
    Endpoint("GET", "/admin/index/{worker}/blocks", "blocks", "block hashes, one per line", None, FOUND),
    Endpoint("GET", "/admin/tokenizer", "tokenizer", "tokenizer and templates by model", Tokenizers),
    Endpoint("GET", "/admin/cache-loss", "cache_loss", "tokens computed again, by cause", CacheLosses),
    Endpoint("GET", "/admin/verify", "verify", "accuracy of the predictions", Verification),
    Endpoint("GET", "/admin/flow", "admission", "queues, tenants and rejections", Admission),
    Endpoint("GET", "/admin/policies", "policies", "policies, A/B tests and shadows", Policies),
    Endpoint(
        "POST",
        "/admin/policies/reload",
        "reload_policies",
        "reloads the policy file",
        Policies,
        SUPERVISOR,
    ),
    Endpoint(
        "POST",
        "/admin/config/reload",
        "reload_config",
        "reloads the configuration",
        Reloaded,
        SUPERVISOR,
    ),
    Endpoint("POST", "/admin/explain", "explain", "the decision for a request that is not sent", None, ONE),
    Endpoint("GET", "/admin/decisions", "decisions", "ids of the latest decisions", Decisions),
    Endpoint("GET", "/admin/decisions/{id}", "decision", "a [decision record](decisions.md)", None, FOUND),
    Endpoint("GET", "/admin/keys", "keys", "API keys in use", Keys),
    Endpoint("POST", "/admin/keys/reload", "reload_keys", "reloads the key files", Keys, ALL),
    Endpoint("GET", "/admin/adapters", "adapters", "adapters and the workers that list them", Adapters),
    Endpoint("POST", "/admin/adapters", "load_adapter", "loads `adapter` from `path`", None, ONE),
    Endpoint(
        "POST",
        "/admin/adapters/names",
        "refresh_adapters",
        "asks workers for their names",
        Adapters,
        ALL,
    ),
    Endpoint("DELETE", _ADAPTER, "unload_adapter", "unloads it; `?worker=`, `?model=`", None, ONE),
)


def bound(handlers: Mapping[str, Handler]) -> Iterator[web.RouteDef]:
    """The rows that have a handler here. Raises KeyError for a handler without a row."""
    unknown = handlers.keys() - {endpoint.name for endpoint in ENDPOINTS}
    if unknown:
        raise KeyError(f"handlers without a row in the table: {', '.join(sorted(unknown))}")
    for endpoint in ENDPOINTS:
        if handler := handlers.get(endpoint.name):
            method = web.get if endpoint.method == "GET" else partial(web.route, endpoint.method)
            yield method(endpoint.path, handler)  # HEAD goes with GET
