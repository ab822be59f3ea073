"""Pinning of hosts that an engine reports for its events: names are resolved once, and the addresses are
checked.

libzmq would resolve a name at each connection, and connect to its address of that time.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from gateway.core.engine import EventSource
from gateway.discovery.dns import resolve
from gateway.discovery.probed import Facts
from gateway.http.address import Address
from gateway.http.networks import Reachable, is_literal
from gateway.ingest.endpoint_validation import tcp_address
from gateway.ingest.sockets import resolve as as_reached

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


async def with_addresses(facts: Facts, reachable: Reachable, resolve: Resolve = resolve) -> Facts:
    """Return the facts with an address in place of each foreign name. If one of several addresses is
    rejected, that one is used, so that the feed fails with the reason."""
    if not facts.sources:
        return facts
    host = Address.of(facts.url).host

    async def pinned(endpoint: str | None) -> str | None:
        place = tcp_address(as_reached(endpoint, host)) if endpoint else None
        if place is None or endpoint is None or place[0].lower() == host.lower() or is_literal(place[0]):
            return endpoint
        try:
            found = await resolve(*place)
        except (OSError, UnicodeError):
            return endpoint
        address = next(filter(reachable.refusal, found), found[0] if found else place[0])
        return f"tcp://[{address}]:{place[1]}" if ":" in address else f"tcp://{address}:{place[1]}"

    async def judged(source: EventSource) -> EventSource:
        if source.is_polled:
            return source
        endpoint = await pinned(source.endpoint)
        assert endpoint is not None, "a given endpoint stays one"
        return replace(source, endpoint=endpoint, replay_endpoint=await pinned(source.replay_endpoint))

    return replace(facts, sources=tuple([await judged(source) for source in facts.sources]))
