"""Login of the console: a key with admin scope opens a session, which a cookie names.

The cookie is HttpOnly and SameSite=Strict, has no path (so that it is valid below the path of the page, also
behind a reverse proxy) and ends with the browser. Before each request the key behind it is checked again.
Requests of other sites do not come this far (`server/admin_server.py`).
"""

import secrets
import time
from collections.abc import Callable, Sequence

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from gateway.admin.audit import name_caller
from gateway.admin.console.sessions import Sessions
from gateway.core.caller import Caller
from gateway.core.decode_errors import UNREADABLE
from gateway.core.errors import Forbidden, GatewayError, Unauthorized
from gateway.tenancy.auth.authenticator import Authenticator, credentials_of

MAX_BODY_BYTES = 4096


class _Login(msgspec.Struct, forbid_unknown_fields=True):
    key: str


class AdminAccess:
    """Access to an admin port, by key or session; `scope` is that of `scope_of`. Without authenticators
    everything is open."""

    def __init__(
        self,
        scope: str = "off",
        authenticators: Sequence[Authenticator] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.scope = scope
        self.authenticators = authenticators
        self.sessions = Sessions(lambda: secrets.token_urlsafe(32))
        self._clock = clock

    def check(self, request: web.Request, changes: bool = False) -> Caller:
        """Check the key that a request shows, or that opened its session; for one that changes something,
        that the key file is usable, too. Raises Unauthorized or Forbidden, of several the one that says more:
        that the key is known; or OutdatedKeys."""
        shown = shown_by(request)
        token = request.cookies.get(cookie_of(request))
        key_id = None if token is None else self.sessions.key_of(token, self._clock())
        checks: list[Callable[[Authenticator], Caller]] = []
        if shown or token is None:
            checks.append(lambda each: each.check_admin(shown, changes))
        if key_id is not None:
            checks.append(lambda each: each.check_admin_again(key_id, changes))
        if not checks:
            raise Unauthorized("the session has ended; log in again", code="session_ended")
        return self._agreed(checks)

    def open(self, key: str) -> tuple[str, Caller]:
        """Open a session; returns its token. Raises Unauthorized or Forbidden."""
        caller = self._first(lambda each: each.check_admin([_bytes(key)]))
        return self.sessions.open(caller.name, self._clock()), caller

    def _agreed(self, checks: Sequence[Callable[[Authenticator], Caller]]) -> Caller:
        """Caller of a key, or of the session where a proxy sent an Authorization of its own beside it."""
        callers: list[Caller] = []
        errors: list[Unauthorized] = []
        for check in checks:
            try:
                callers.append(self._first(check))
            except Unauthorized as exc:
                errors.append(exc)
        if not callers:
            raise errors[0]
        if any(each.tenant != callers[0].tenant for each in callers):
            message = "the key and the session belong to different tenants; log out, or send no key"
            raise Forbidden(message, code="ambiguous_credentials")
        return callers[0]

    def _first(self, check: Callable[[Authenticator], Caller]) -> Caller:
        errors: list[Unauthorized | Forbidden] = []
        for authenticator in self.authenticators:
            try:
                return check(authenticator)
            except (Unauthorized, Forbidden) as exc:
                errors.append(exc)
        raise max(errors, key=lambda exc: exc.status)


ACCESS = web.AppKey("ACCESS", AdminAccess)


def login_handlers() -> dict[str, Handler]:
    """Handlers by their name in the table (`admin/endpoint_table.py`)."""
    return {"session": _session, "login": _login, "logout": _logout}


def cookie_of(request: web.Request) -> str:
    """Name of the cookie: browsers send a host's cookies to all of its ports."""
    return f"kvgate_session_{request.url.port}"


async def _session(request: web.Request) -> web.Response:
    """Answer what the caller may do."""
    access = request.app.get(ACCESS) or AdminAccess()
    caller: Caller | None = None
    if access.authenticators:
        try:
            caller = access.check(request)
        except (Unauthorized, Forbidden):
            caller = None
    return _json(
        {
            "scope": access.scope if access.authenticators else "off",
            "key": caller.name if caller else None,
            "may_read": caller is not None or not access.authenticators or access.scope in ("off", "changes"),
            "may_change": caller is not None or not access.authenticators or access.scope == "off",
        }
    )


async def _login(request: web.Request) -> web.Response:
    access = request.app.get(ACCESS)
    if request.content_type != "application/json":
        return _refusal(GatewayError('send a body of type application/json, such as {"key": "…"}'), 415)
    if access is None or not access.authenticators:
        return _refusal(GatewayError("no key is needed here"), 400)
    if (request.content_length or 0) > MAX_BODY_BYTES:
        return _refusal(GatewayError(f"the body has more than {MAX_BODY_BYTES} bytes"), 413)
    try:
        key = msgspec.json.decode(await request.read(), type=_Login).key
    except UNREADABLE as exc:
        return _refusal(GatewayError(str(exc)), 400)
    try:
        token, caller = access.open(key)
    except (Unauthorized, Forbidden) as exc:
        name_caller(None, [_bytes(key)])
        return _refusal(exc, exc.status)
    name_caller(caller, [])
    answer = _json({"key": caller.name})
    answer.headers["Set-Cookie"] = f"{cookie_of(request)}={token}{_attributes(request)}"
    return answer


async def _logout(request: web.Request) -> web.Response:
    if access := request.app.get(ACCESS):
        access.sessions.close(request.cookies.get(cookie_of(request), ""))
    answer = _json({"key": None})
    answer.headers["Set-Cookie"] = f"{cookie_of(request)}=; Max-Age=0{_attributes(request)}"
    return answer


def _attributes(request: web.Request) -> str:
    """Attributes of the cookie; the Origin of the page says whether a browser came by TLS."""
    is_tls = request.headers.get("Origin", "").startswith("https://")
    return "; HttpOnly; SameSite=Strict" + ("; Secure" if is_tls else "")


def _json(body: object) -> web.Response:
    headers = {"Cache-Control": "no-store"}
    return web.Response(body=msgspec.json.encode(body), content_type="application/json", headers=headers)


def _refusal(error: GatewayError, status: int) -> web.Response:
    return web.Response(status=status, body=error.body(), content_type="application/json")


def shown_by(request: web.Request) -> list[bytes]:
    """Credentials that a request to the admin port shows."""
    return credentials_of((name.lower().encode(), _bytes(value)) for name, value in request.headers.items())


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
