"""DNS rebinding and cross-site protection: the Hosts and Origins that an admin port answers. Pure.

A page on evil.example may have its name resolve to the address of an admin port, and then request it with the
browser of a user who can reach it. The Host is then that name. Addresses cannot be rebound.

    /health, /ready   any Host, or none: they reveal nothing, and load balancers send any Host
    /metrics          those below, and names that public DNS cannot have (one label, .svc, .local, .internal)
    all else          addresses, localhost, the name that the port is bound to, the allowed names
"""

import ipaddress
from collections.abc import Iterable, Mapping, Sequence

from gateway.core.route_table import METRICS, PROBES
from gateway.http.url import Url, check_host, place, shown

HOST, ORIGIN, SITE = "Host", "Origin", "Sec-Fetch-Site"
JUDGED = (HOST, ORIGIN, SITE)
_OWN_SITES = frozenset({"same-origin", "none"})
_PRIVATE = (".svc", ".local", ".internal", ".localhost", ".home.arpa", ".test")
"""Suffixes that public DNS does not delegate."""
_PORTS = {"http": 80, "https": 443}


class Misdirected(Exception):
    """Request that was not meant for this port, or not made by its user; `status` is the answer's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class AllowedHosts:
    """Allowed Hosts: `names` are the operator's, "*.example.com" for all below one. Raises ValueError for an
    invalid name."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names: set[str] = {"localhost"}
        self._suffixes: list[str] = []
        for name in names:
            host = check_host(name.removeprefix("*.")).removesuffix(".")
            if name.startswith("*."):
                self._suffixes.append(f".{host}")
            else:
                self._names.add(host)

    def __repr__(self) -> str:
        return f"AllowedHosts({sorted(self._names)}, {self._suffixes})"

    def check(self, path: str, headers: Mapping[str, Sequence[str]]) -> None:
        """Check a request; `headers` has all values of each of JUDGED. Raises Misdirected."""
        for name in JUDGED:
            if len(headers[name]) > 1:
                raise Misdirected(400, f"the request has {len(headers[name])} {name} headers; send one")
        if path in PROBES:
            return
        if not headers[HOST] or not headers[HOST][0]:
            raise Misdirected(400, "the request has no Host; send one, as HTTP/1.1 requires")
        host, port = _host(headers[HOST][0])
        if not self._allows(host, path):
            raise Misdirected(
                403,
                f"the Host '{shown(host)}' is not allowed; use the address, or a name that "
                "--admin-allowed-hosts has",
            )
        if headers[SITE] and headers[SITE][0] not in _OWN_SITES:
            raise Misdirected(403, f"{shown(headers[SITE][0])} requests of a browser are not allowed")
        if headers[ORIGIN] and not _is_same(headers[ORIGIN][0], host, port):
            raise Misdirected(
                403,
                f"the Origin '{shown(headers[ORIGIN][0])}' differs from the Host; cross-origin refused",
            )

    def _allows(self, host: str, path: str) -> bool:
        if _is_address(host) or host in self._names or any(host.endswith(each) for each in self._suffixes):
            return True
        return path == METRICS and ("." not in host or host.endswith(_PRIVATE))


def _host(text: str) -> tuple[str, int | None]:
    try:
        host, port = place(text)
    except ValueError as exc:
        raise Misdirected(400, f"the Host '{shown(text)}' is malformed: {exc}") from exc
    return host.removesuffix("."), port


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_same(origin: str, host: str, port: int | None) -> bool:
    """Return True if the origin is this host, as seen by a browser: a proxy in front of us may
    terminate TLS."""
    try:
        url = Url.of(origin)
    except ValueError:  # also "null": a sandboxed page, a file, a redirect between sites
        return False
    default = _PORTS.get(url.scheme)
    return url.host.removesuffix(".") == host and (url.port or default) == (port or default)
