"""The OpenAI API of the client port, and what it would do with a request."""

from collections.abc import Mapping

from aiohttp.typedefs import Handler

from gateway.admin.app import explain_handlers, probe_handlers
from gateway.admin.explain import Preview
from gateway.app.component import Component, ConfigChange, Swap
from gateway.app.parts.client_surface import ClientSurfacePart, routes_of
from gateway.app.parts.fleet import FleetPart
from gateway.config import Config
from gateway.observability.telemetry import Telemetry
from gateway.proxy.api import Api
from gateway.proxy.dispatch import Dispatch
from gateway.routing.active_policy import ActivePolicy
from gateway.tenancy.auth.authenticator import Authenticator


class ApiPart(Component):
    def __init__(
        self,
        config: Config,
        dispatch: Dispatch,
        fleet: FleetPart,
        telemetry: Telemetry,
        authenticator: Authenticator | None,
        surface: ClientSurfacePart,
        active_policy: ActivePolicy,
    ) -> None:
        self._fleet = fleet.fleet
        self._preview = Preview(dispatch, active_policy.parts_of, authenticator)
        self.api = Api(
            dispatch,
            fleet.fleet,
            fleet.metrics,
            routes_of(config),
            telemetry.end_observers,
            authenticator,
            surface.cross_origins,
            dispatch.context.objects,
        )

    async def drain(self, seconds: float) -> None:
        self.api.is_stopping = True

    async def reconfigure(self, change: ConfigChange) -> Swap | None:
        def swap() -> None:
            self.api.routes = routes_of(change.config)

        return swap

    def admin_handlers(self) -> Mapping[str, Handler]:
        return {**probe_handlers(self._fleet, self.api), **explain_handlers(self._preview)}
