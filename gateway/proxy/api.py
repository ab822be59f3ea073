"""The OpenAI API: the handler of each route. All other routes are rejected."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from gateway.apis.open_routes import Routes
from gateway.core.caller import usable
from gateway.core.errors import (
    FAILED,
    GatewayError,
    MethodNotAllowed,
    NotSupported,
    NoWorker,
    Unauthorized,
    UnknownModel,
    UpgradeRequired,
)
from gateway.core.fleet import RETRY_AFTER_S, Fleet
from gateway.core.pool_objects import PoolObjects
from gateway.core.request import MODEL, InferenceRequest
from gateway.core.route_table import HEALTH, MODELS, PROBES, READY, REALTIME, RESPONSES
from gateway.core.spelling import shortened
from gateway.core.worker import ServedModel
from gateway.http.cross_origin import CrossOriginPolicy
from gateway.http.messages import Header, HttpRequest
from gateway.observability.metrics import Metrics
from gateway.observability.request_end import OnEnd, notify_ended, refusal
from gateway.proxy.dispatch import Amend, Dispatch
from gateway.requests.model_name import parameters
from gateway.server.responder import Exchange, Responder, request_id
from gateway.tenancy.auth.authenticator import Authenticator

log = logging.getLogger("kvgate.api")

_JSON: Final[Header] = (b"content-type", b"application/json")
_STORED: Final = RESPONSES + "/"


class Api:
    """Handles each parsed request of the server. `is_stopping` makes /ready answer 503. `authenticator` is
    None where no API keys are configured."""

    def __init__(
        self,
        dispatch: Dispatch,
        fleet: Fleet,
        metrics: Metrics,
        routes: Routes | None = None,
        end_observers: list[OnEnd] | None = None,
        authenticator: Authenticator | None = None,
        cross_origins: CrossOriginPolicy | None = None,
        objects: PoolObjects | None = None,
    ) -> None:
        """Front door of the API. `end_observers` are notified of requests rejected here; exchanges notify
        theirs of the rest. `objects` have further names of models."""
        self.routes = Routes() if routes is None else routes
        self._dispatch = dispatch
        self._end_observers = [] if end_observers is None else end_observers
        self._fleet = fleet
        self._objects = PoolObjects() if objects is None else objects
        self._metrics = metrics
        self._authenticator = authenticator
        self._cross_origins = cross_origins
        self._listed: Mapping[str, ServedModel] | None = None
        self._list = b""
        self.is_stopping = False

    def handle(self, http: HttpRequest, responder: Responder, amend: Amend | None = None) -> Exchange | None:
        """Answer a request; `amend` changes its exchange's plan where another proxy carries the bytes."""
        try:
            return self._route(http, responder, amend)
        except GatewayError as exc:
            self.refuse(http, responder, exc)
        except Exception:  # noqa: BLE001  a bug in one request must not take the connection's others down
            log.exception("%s %s raised; the client gets 500", http.method, http.path)
            self.refuse(http, responder, GatewayError(FAILED))
        return None

    def check_unread(self, http: HttpRequest) -> None:
        """Check a request that another proxy passes to a worker unread: a WebSocket, or a body that it does
        not show. Raises GatewayError for unknown callers, and for those with a limit to models or a salt,
        which hold only for what is read."""
        if http.is_upgrade and http.path != REALTIME:
            raise NotSupported(f"{http.path} does not accept WebSockets; open one at {REALTIME}")
        caller = None if self._authenticator is None else self._authenticator.ask(http, None)
        if caller is not None and (caller.models is not None or caller.salt is not None):
            raise NotSupported(
                f"{http.path} is forwarded unread, which this key does not permit; use an inference route"
            )

    def standing(self, http: HttpRequest) -> list[Header]:
        """Return the headers of whatever a request is answered with, where no connection of ours adds them:
        those for pages of other sites."""
        return [] if self._cross_origins is None else self._cross_origins.headers(http)

    def refused(self, http: HttpRequest, error: GatewayError) -> None:
        """Count and log a request that the server itself rejected; `http` is as much of it as was parsed."""
        self._metrics.responses[error.status] += 1
        self._notify_refused(http, error, error.status, request_id(http)[1])

    def _route(self, http: HttpRequest, responder: Responder, amend: Amend | None) -> Exchange | None:
        if self._cross_origins is not None and (headers := self._cross_origins.preflight(http)) is not None:
            self._metrics.responses[204] += 1
            responder.send(204, [*headers, request_id(http)], b"")
            return None
        if self._authenticator is not None and http.path not in PROBES:
            http.caller = self._authenticator.ask(
                http, responder.peer if self._authenticator.asks_peer else None
            )
        if http.path == REALTIME or http.is_upgrade:
            return self._tunnel(http, responder, amend)
        if self.routes.find(http.method, http.path):
            http.target = self.routes.to_worker(http.path, http.target)
            return self._dispatch.handle(http, responder, self.refuse, amend)
        if http.path.startswith(_STORED) and RESPONSES in self.routes:
            return self._dispatch.about_response(http, responder, amend)
        answer = self._own_routes(http.path)
        if answer is None:
            raise self.routes.why_not(http.path)
        _require(http, "GET", "HEAD")
        status, body = answer(http)
        self._metrics.responses[status] += 1
        responder.send(status, [_JSON, request_id(http)], msgspec.json.encode(body))
        return None

    def _tunnel(self, http: HttpRequest, responder: Responder, amend: Amend | None) -> Exchange:
        if http.path != REALTIME or http.is_http10:
            raise NotSupported(
                f"{http.path} does not accept WebSockets; open one at {REALTIME}, over HTTP/1.1"
            )
        _require(http, "GET")
        if not http.is_upgrade:
            raise UpgradeRequired(f"{http.path} requires a WebSocket upgrade")
        return self._dispatch.tunnel(http, responder, amend)

    def _own_routes(self, path: str) -> Callable[[HttpRequest], tuple[int, Any]] | None:
        if path.startswith(MODELS + "/"):
            return self._model
        return {MODELS: self._models, HEALTH: self._health, READY: self._ready}.get(path)

    def refuse(self, http: HttpRequest, responder: Responder, error: GatewayError) -> None:
        self._metrics.responses[error.status] += 1
        request = error.request
        self._metrics.failed(error.code, request.model if isinstance(request, InferenceRequest) else None)
        named = request_id(http)
        self._notify_refused(http, error, error.status, named[1])
        headers = [named]
        if isinstance(error, MethodNotAllowed) and error.param:
            headers.append((b"allow", error.param.encode()))
        elif isinstance(error, UpgradeRequired):
            headers.append((b"upgrade", b"websocket"))
        elif isinstance(error, Unauthorized):
            headers.append((b"www-authenticate", b"Bearer"))
        responder.fail(error, headers)

    def _notify_refused(
        self, http: HttpRequest | None, error: GatewayError | None, status: int, named: bytes = b""
    ) -> None:
        if self._end_observers:
            notify_ended(self._end_observers, refusal(http, error, status, time.monotonic(), named))

    def _models(self, http: HttpRequest) -> tuple[int, Any]:
        """Return the models of all workers, up or not, that the caller may use."""
        served = self._named(http)
        if served is not self._fleet.served():
            return 200, _as_list(served)
        if served is not self._listed:
            self._listed, self._list = served, msgspec.json.encode(_as_list(served))
        return 200, msgspec.Raw(self._list)

    def _model(self, http: HttpRequest) -> tuple[int, Any]:
        name = unquote(http.path.removeprefix(MODELS + "/"))
        served = self._named(http)
        if name not in served:
            name = name.rstrip("/")  # else it is a part of the name, as of a directory's
        if name not in served:
            known = shortened(served)
            raise UnknownModel(f"the model '{name}' does not exist; known: {known}", param="model")
        return 200, _as_model(name, served[name])

    def _named(self, http: HttpRequest) -> Mapping[str, ServedModel]:
        """Return the models that the caller may name, by the names of workers and of rewrites."""
        served, rewrites = self._fleet.served(), self._objects.rewrites
        return usable(http.caller, served if rewrites is None else rewrites.listed(served))

    def _health(self, http: HttpRequest) -> tuple[int, Any]:
        return 200, {"status": "alive"}

    def _ready(self, http: HttpRequest) -> tuple[int, Any]:
        asked = parameters(http.target) if http.has_query else ()
        model = next((value for name, value in asked if name == MODEL and value), None)
        return ready(self._fleet, model, is_stopping=self.is_stopping)


def ready(fleet: Fleet, model: str | None, *, is_stopping: bool) -> tuple[int, Any]:
    """Return the answer of /ready, here and on the admin port."""
    if is_stopping:
        raise NoWorker("the gateway is stopping", retry_after_s=RETRY_AFTER_S)
    if not fleet.is_ready(model):
        what = f"for '{model}' " if model else ""
        raise NoWorker(f"no worker {what}is up", retry_after_s=RETRY_AFTER_S)
    return 200, {"status": "ready"}


def _require(http: HttpRequest, *methods: str) -> None:
    if http.method not in methods:
        allowed = ", ".join(methods)
        raise MethodNotAllowed(f"{http.path} accepts {allowed}, not {http.method}", param=allowed)


def _as_list(served: Mapping[str, ServedModel]) -> dict[str, Any]:
    return {"object": "list", "data": [_as_model(name, one) for name, one in served.items()]}


def _as_model(name: str, served: ServedModel) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "kvgate",
        "root": served.root if served.adapter is None else served.name,
        "parent": served.parent,
        "max_model_len": served.max_model_len,
    }
