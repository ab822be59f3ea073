"""Host and Origin checks in front of the admin API."""

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from gateway.config import Config
from gateway.http.networks import is_literal
from gateway.http.origins import JUDGED, AllowedHosts, Misdirected


def allowed_hosts(config: Config) -> AllowedHosts:
    """Return the allowed hosts, including the name that the port is bound to, if it is one."""
    bound = [] if is_literal(config.admin.host) else [config.admin.host]
    return AllowedHosts([*bound, *config.admin.allowed_hosts])


def add_judge(app: web.Application, config: Config) -> None:
    """Add the check before all other middlewares."""
    app.middlewares.insert(0, judging(allowed_hosts(config)))


class MisdirectedResponse(web.Response):
    """Answer to a request that was not meant for this port."""


def judging(allowed: AllowedHosts) -> Middleware:
    @web.middleware
    async def judged(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            allowed.check(request.path, {name: request.headers.getall(name, []) for name in JUDGED})
        except Misdirected as exc:
            body = msgspec.json.encode({"error": {"message": str(exc)}})
            return MisdirectedResponse(status=exc.status, body=body, content_type="application/json")
        return await handler(request)

    return judged
