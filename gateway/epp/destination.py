"""Destinations: addresses of workers as Envoy takes them, and the subset of workers that Envoy allows."""

import ipaddress
from collections.abc import Iterable
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

from gateway.http.messages import Header

DESTINATION: Final = b"x-gateway-destination-endpoint"

SPOOFED: Final = frozenset(
    {
        DESTINATION,
        b"x-gateway-destination-endpoint-subset",
        b"x-gateway-destination-endpoint-served",
    }
)
"""Headers by which a client could choose a worker: never passed on, and counted."""

MAX_PORT_DIGITS: Final = 5


@lru_cache(maxsize=4096)  # parsing a URL and an address costs as much as a third of a pick
def endpoint_of(url: str) -> str | None:
    """`ip:port` of a worker's URL, `[ip]:port` in IPv6; None where the host is a name."""
    parts = urlsplit(url)
    return joined(parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))


def joined(host: str, port: int) -> str | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def subset_of(hint: object | None) -> frozenset[str] | None:
    """The addresses of a subset hint, as `host` or `host:port`: of a list, or of one comma-separated string.
    None where there is no hint: every worker is allowed. An empty hint allows none."""
    if hint is None:
        return None
    if isinstance(hint, str):
        given: Iterable[object] = hint.split(",")
    elif isinstance(hint, list):
        given = hint
    else:
        given = ()
    return frozenset(_normal(each.strip()) for each in given if isinstance(each, str) and each.strip())


def is_in(subset: frozenset[str], endpoint: str) -> bool:
    """True for an endpoint that the subset names with its port, or by its bare address."""
    return endpoint in subset or endpoint.rpartition(":")[0].strip("[]") in subset


def _normal(given: str) -> str:
    """Normalize an address: IPv6 in its short form, in brackets where a port follows."""
    host, colon, port = given.rpartition(":")
    bare = given.strip("[]")
    try:
        return str(ipaddress.ip_address(bare))
    except ValueError:
        pass
    is_port = port.isascii() and port.isdigit() and len(port) <= MAX_PORT_DIGITS
    if colon and is_port and (normal := joined(host.strip("[]"), int(port))):
        return normal
    return given


def spoofed(headers: Iterable[Header]) -> int:
    """How many of a client's headers try to choose a worker."""
    return sum(name in SPOOFED for name, _ in headers)
