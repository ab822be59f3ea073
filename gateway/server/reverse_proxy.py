"""Serving behind reverse proxies: requests under a base path, and clients' addresses from trusted proxies.

Used only where that is configured; it costs nothing otherwise.
"""

from collections.abc import Callable

from gateway.config import Config
from gateway.core.errors import ConfigError, GatewayError, UnknownRoute
from gateway.core.route_table import PROBES
from gateway.http.forwarded import origin
from gateway.http.messages import HttpRequest
from gateway.http.networks import Trusted
from gateway.server.responder import Exchange, Handle, Responder

Refuse = Callable[[HttpRequest, Responder, GatewayError], None]


class ReverseProxyMiddleware:
    """Strips the base path and finds the client's address before `handle`; `refuse` answers requests outside
    the base path."""

    def __init__(self, config: Config, handle: Handle, refuse: Refuse) -> None:
        """Create the wrapper. Raises ConfigError."""
        self._handle = handle
        self._refuse = refuse
        self._base = config.server.base_path
        self._trusted = trusted_of(config)
        self._scheme = "https" if config.tls.cert_file else "http"
        self._prefers = config.server.forwarded_header
        self._has_proxies = bool(config.server.trusted_proxies) or config.server.proxy_protocol

    def handle(self, http: HttpRequest, responder: Responder) -> Exchange | None:
        if self._base and not self._strip(http):
            error = UnknownRoute(f"no route {http.path}; all routes are under {self._base}")
            self._refuse(http, responder, error)
            return None
        if self._has_proxies:
            peer = responder.peer
            scheme = "http" if peer == "" else self._scheme  # a Unix socket has no TLS
            found = origin(
                http.headers, peer or "", self._trusted.trusts, scheme=scheme, prefers=self._prefers
            )
            http.client, http.forwarded = found.client, found.headers()
        return self._handle(http, responder)

    def _strip(self, http: HttpRequest) -> bool:
        base = self._base
        if http.path != base and not http.path.startswith(base + "/"):
            return http.path in PROBES  # load balancers probe any path
        rest = http.target[len(base) :]
        http.target = rest if rest[:1] == b"/" else b"/" + rest
        http.path = http.path[len(base) :] or "/"
        return True


def trusted_of(config: Config) -> Trusted:
    """Return the trusted proxies. Raises ConfigError."""
    if config.server.proxy_protocol and not config.server.trusted_proxies:
        raise ConfigError("proxy_protocol: needs trusted_proxies")
    return Trusted(config.server.trusted_proxies, "--trusted-proxies")


def reverse_proxied(config: Config, handle: Handle, refuse: Refuse) -> Handle:
    """Wrap `handle` where a base path or proxies are configured; else return it."""
    if config.server.base_path or config.server.trusted_proxies or config.server.proxy_protocol:
        return ReverseProxyMiddleware(config, handle, refuse).handle
    return handle
