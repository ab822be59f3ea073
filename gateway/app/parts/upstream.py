"""Connections of requests to workers."""

from gateway.app.component import Component
from gateway.core.fleet import Fleet
from gateway.runtime.tls import Tls
from gateway.upstream.access import FleetAccess
from gateway.upstream.outgoing import Outgoing
from gateway.upstream.pools import Pools


class UpstreamPart(Component):
    def __init__(self, fleet: Fleet, tls: Tls, access: FleetAccess) -> None:
        self.pools = Pools(tls_context=lambda: tls.context, access=access)
        self.outgoing = Outgoing(fleet, self.pools)

    async def stop(self) -> None:
        self.pools.close()
