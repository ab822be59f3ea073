"""Limits that all client connections share: response ids, memory for bodies, pages of other sites."""

from gateway.apis.open_routes import Routes
from gateway.app.component import Component, ConfigChange, Swap
from gateway.config import Config
from gateway.config.secrets import response_ids
from gateway.core.errors import ConfigError
from gateway.http.cross_origin import CrossOriginPolicy
from gateway.server.body_budget import BodyBudget


class ClientSurfacePart(Component):
    """Limits and names of the client port; `cross_origins` is None where browsers keep the answers from
    pages of other sites."""

    def __init__(self, config: Config) -> None:
        """Read the options. Raises ConfigError."""
        check_bodies(config)
        origins = config.server.cors_origins
        self.response_ids = response_ids(config.proxy.response_key_file)
        self.bodies = BodyBudget(config.server.body_memory_bytes)
        self.cross_origins = CrossOriginPolicy(origins) if origins else None

    async def reconfigure(self, change: ConfigChange) -> Swap | None:
        check_bodies(change.config)

        def swap() -> None:
            self.bodies.max_bytes = change.config.server.body_memory_bytes

        return swap


def routes_of(config: Config) -> Routes:
    """Return the routes that clients may use; the configuration has validated them."""
    return Routes(config.proxy.route, config.proxy.close_route)


def check_bodies(config: Config) -> None:
    """Check that one body of the largest size fits the memory for bodies. Raises ConfigError."""
    if config.server.body_memory_bytes < config.server.max_body_bytes:
        raise ConfigError(
            f"body_memory_bytes: {config.server.body_memory_bytes} is less than max_body_bytes "
            f"({config.server.max_body_bytes})"
        )
