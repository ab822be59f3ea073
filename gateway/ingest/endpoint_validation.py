"""Validation of KV-event endpoints that engines report: workers may not direct us to any address."""

import re

from gateway.http.networks import is_literal
from gateway.ingest.sockets import resolve
from gateway.upstream.access import FleetAccess

IPC = "ipc://"
_TCP = re.compile(r"tcp://(?:\[([0-9A-Fa-f:.]+(?:%[A-Za-z0-9]+)?)\]|([A-Za-z0-9_.-]+)):([0-9]{1,5})")


def tcp_address(endpoint: str) -> tuple[str, int] | None:
    """Return (host, port); None for everything else, such as libzmq's SOURCE;HOST:PORT."""
    if (found := _TCP.fullmatch(endpoint)) is None:
        return None
    return found[1] or found[2], int(found[3])


def reachable_endpoint(endpoint: str, host: str, access: FleetAccess | None) -> str:
    """Return the endpoint as reachable from here, for a worker at `host`. Raises ValueError for one that
    `access` rejects; without it any is accepted."""
    endpoint = resolve(endpoint, host)
    if access is None:
        return endpoint
    if endpoint.startswith(IPC):
        if refusal := access.socket_refusal(endpoint.removeprefix(IPC)):
            raise ValueError(f"{endpoint}: {refusal}")
        return endpoint
    if (place := tcp_address(endpoint)) is None:
        raise ValueError(f"{endpoint} is neither tcp://HOST:PORT nor ipc:///path")
    if place[0].lower() != host.lower():
        if not is_literal(place[0]):
            raise ValueError(
                f"{endpoint}: the name cannot be resolved here; publish at an address, or at '*'"
            )
        if refusal := access.reachable.refusal(place[0]):
            raise ValueError(f"{endpoint}: {refusal}")
    return endpoint


def place_of(endpoint: str) -> str:
    """Return an endpoint in the form that compares equal for one socket, as far as its text says so."""
    if (place := tcp_address(endpoint)) is None:
        return endpoint
    host = place[0].lower()
    return f"tcp://{'127.0.0.1' if host in ('localhost', '::1') else host}:{place[1]}"
