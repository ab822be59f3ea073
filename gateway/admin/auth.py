"""Authentication of the admin API, and its endpoints for keys."""

import contextlib
import re

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from gateway.admin.audit import READS, AuditLog, auditing, name_caller
from gateway.admin.console.login import ACCESS, AdminAccess, shown_by
from gateway.config import Config
from gateway.core.errors import ConfigError, Forbidden, GatewayError, OutdatedKeys, Unauthorized
from gateway.core.route_table import METRICS
from gateway.core.route_table import PROBES as OPEN
from gateway.runtime.tasks import Tasks
from gateway.server.admin_server import add_judge
from gateway.tenancy.auth.admin_access import PROBES, scope_of
from gateway.tenancy.auth.credentials import Credentials

ADAPTERS = "/admin/adapters"
RELOAD_KEYS = "/admin/keys/reload"


def guarding(access: AdminAccess) -> Middleware:
    """Asks for a key with admin scope, or the session of one, for what `--admin-auth` says, and for changes
    of adapters. The console's own files need none. A key from a file
    that cannot be used any more reads, and changes nothing but reloads the keys: it may be revoked."""

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        is_read = request.method in READS
        is_free = {
            "off": is_read or not request.path.startswith(ADAPTERS),
            "changes": is_read,
            "api": is_read and request.path == METRICS,
            "all": False,
        }
        if is_free[access.scope] or request.path in OPEN or _is_console(request.method, request.path):
            return await handler(request)
        try:
            caller = access.check(request, changes=not is_read and request.path != RELOAD_KEYS)
        except (Unauthorized, Forbidden, OutdatedKeys) as exc:
            name_caller(None, shown_by(request))
            answer = _refusal(exc)
            if exc.status == 401:
                answer.headers["WWW-Authenticate"] = "Bearer"
            return answer
        name_caller(caller, [])
        return await handler(request)

    return guarded


def _is_console(method: str, path: str) -> bool:
    """True for what a browser needs before it has logged in: nothing of it shows anything of the fleet."""
    if method in READS:
        return path in ("/", "/session") or re.fullmatch("/console/[^/]+", path) is not None
    return path in ("/login", "/logout")


@web.middleware
async def probes_only(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Middleware that answers probes and /metrics only, for a port beyond loopback without admin keys."""
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

    @web.middleware
    async def reloading(request: web.Request, handler: Handler) -> web.StreamResponse:
        """Reload the supervisor's keys with those of its processes."""
        answer = await handler(request)
        if request.method == "POST" and request.path == RELOAD_KEYS:
            with contextlib.suppress(ConfigError):  # the processes have answered the same
                await credentials.reload()
        return answer

    add_guard(app, credentials, config)
    app.middlewares.append(reloading)
    credentials.start(tasks)
    return credentials


def add_guard(app: web.Application, credentials: Credentials, config: Config) -> None:
    """Add the checks of each request: Host and Origin first, then the key; and the log of them."""
    add_judge(app, config)
    app.middlewares.insert(0, auditing(AuditLog()))
    scope, authenticators = scope_of(config), credentials.admin_authenticators
    if scope == PROBES:
        app.middlewares.append(probes_only)
    elif authenticators and (scope != "off" or config.admin.load_adapters):
        app[ACCESS] = access = AdminAccess(scope, authenticators)
        app.middlewares.append(guarding(access))


def key_handlers(credentials: Credentials) -> dict[str, Handler]:
    """Handlers by their name in the table (`admin/endpoint_table.py`)."""

    async def show(request: web.Request) -> web.Response:
        return web.json_response(describe(credentials))

    async def reload(request: web.Request) -> web.Response:
        """Reload the keys; takes JSON only, which a page in an operator's browser cannot send unasked."""
        if request.content_type != "application/json":
            return _refusal(GatewayError("send a body of type application/json, such as {}"), 415)
        try:
            await credentials.reload()
        except ConfigError as exc:
            return _refusal(GatewayError(str(exc)), 400)
        return web.json_response(describe(credentials))

    return {"keys": show, "reload_keys": reload}


def describe(credentials: Credentials) -> dict[str, object]:
    """Describe the keys in use for `GET /admin/keys`, without any key or hash."""
    ring = credentials.file.ring if credentials.file else None
    entries = [(id.decode(), entry.caller) for id, entry in ring.entries.items()] if ring else []
    return {
        "keys": [
            {
                "id": id,
                "tenant": caller.tenant,
                "models": sorted(caller.models) if caller.models else None,
                "expires_at": caller.expires_s or None,
                "is_admin": caller.is_admin,
            }
            for id, caller in entries
            if caller is not None
        ],
        "groups": dict(ring.groups) if ring else {},
        "file": credentials.file.path if credentials.file else None,
        "files": [
            {
                "name": name,
                "path": file.path,
                "digests": [file.digest],
                "age_s": round(file.age_s, 1),
                "error": file.fault,
            }
            for name, file in credentials.files
        ],
    }


def _refusal(error: GatewayError, status: int = 0) -> web.Response:
    return web.Response(status=status or error.status, body=error.body(), content_type="application/json")
