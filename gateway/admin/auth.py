"""Authentication of the admin API, and its endpoints for keys."""

from collections.abc import Sequence

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from gateway.config import Config
from gateway.core.errors import ConfigError, Forbidden, GatewayError, Unauthorized
from gateway.core.requests.routes import METRICS
from gateway.core.requests.routes import PROBES as OPEN
from gateway.runtime.tasks import Tasks
from gateway.server.admin_server import add_judge
from gateway.tenancy.auth.admin_access import PROBES, scope_of
from gateway.tenancy.auth.authenticator import Authenticator
from gateway.tenancy.auth.credentials import Credentials

READS = frozenset({"GET", "HEAD"})


ADAPTERS = "/admin/adapters"


def guarding(authenticators: Sequence[Authenticator], scope: str) -> Middleware:
    """Asks for a key with admin scope, which one of `guards` knows, for what `--admin-auth` says, and for
    changes of adapters."""

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        is_read = request.method in READS
        is_free = {
            "off": is_read or not request.path.startswith(ADAPTERS),
            "changes": is_read,
            "api": is_read and request.path == METRICS,
            "all": False,
        }
        if not is_free[scope] and request.path not in OPEN:
            try:
                _check(request, authenticators)
            except (Unauthorized, Forbidden) as exc:
                answer = _refusal(exc)
                if exc.status == 401:
                    answer.headers["WWW-Authenticate"] = "Bearer"
                return answer
        return await handler(request)

    return guarded


def _check(request: web.Request, authenticators: Sequence[Authenticator]) -> None:
    """Raises Unauthorized or Forbidden, of two the one that says more: that the key is known."""
    shown = [_bytes(request.headers.get(name)) for name in ("authorization", "x-api-key")]
    errors: list[Unauthorized | Forbidden] = []
    for authenticator in authenticators:
        try:
            authenticator.check_admin(*shown)
        except (Unauthorized, Forbidden) as exc:
            errors.append(exc)
        else:
            return
    raise max(errors, key=lambda exc: exc.status)


@web.middleware
async def probes_only(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Where the port is reached from elsewhere, and there is no key that could open the rest."""
    if request.path in OPEN or (request.path == METRICS and request.method in READS):
        return await handler(request)
    message = (
        "the admin API is closed here, since no keys are configured (--admin-key-file); /health, /ready and "
        "/metrics are open"
    )
    return _refusal(Forbidden(message, code="admin_closed"))


def keeper_before(app: web.Application, config: Config, tasks: Tasks) -> Credentials:
    """Credentials of the supervisor, which alone has an admin port and authenticates for its processes."""
    credentials = Credentials(config)
    add_guard(app, credentials, config)
    credentials.start(tasks)
    return credentials


def add_guard(app: web.Application, credentials: Credentials, config: Config) -> None:
    """The Host and the Origin are judged first, then the key."""
    add_judge(app, config)
    scope, authenticators = scope_of(config), credentials.admin_authenticators
    if scope == PROBES:
        app.middlewares.append(probes_only)
    elif authenticators and (scope != "off" or config.admin.load_adapters):
        app.middlewares.append(guarding(authenticators, scope))


def key_handlers(credentials: Credentials) -> dict[str, Handler]:
    """Handlers by their name in the table (`admin/routes.py`)."""

    async def show(request: web.Request) -> web.Response:
        return web.json_response(describe(credentials))

    async def reload(request: web.Request) -> web.Response:
        """JSON only: a page in an operator's browser cannot send it here unasked."""
        if request.content_type != "application/json":
            return _refusal(GatewayError("send application/json, as in {}"), 415)
        try:
            await credentials.reload()
        except ConfigError as exc:
            return _refusal(GatewayError(str(exc)), 400)
        return web.json_response(describe(credentials))

    return {"keys": show, "reload_keys": reload}


def describe(credentials: Credentials) -> dict[str, object]:
    """No key and no hash."""
    ring = credentials.file.ring if credentials.file else None
    entries = [(id.decode(), entry.caller) for id, entry in ring.entries.items()] if ring else []
    return {
        "keys": [
            {
                "id": id,
                "tenant": caller.tenant,
                "models": sorted(caller.models) if caller.models else None,
                "expires_s": caller.expires_s or None,
                "is_admin": caller.is_admin,
            }
            for id, caller in entries
            if caller is not None
        ],
        "groups": dict(ring.groups) if ring else {},
        "file": credentials.file.path if credentials.file else None,
    }


def _refusal(error: GatewayError, status: int = 0) -> web.Response:
    return web.Response(status=status or error.status, body=error.body(), content_type="application/json")


def _bytes(text: str | None) -> bytes | None:
    return text.encode("utf-8", "surrogateescape") if text is not None else None
