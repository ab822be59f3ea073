"""What stands between clients and workers beside the choice of one: routes, ids, room for bodies."""

from dataclasses import dataclass

from gateway.apis.response_ids import ResponseIds
from gateway.apis.routes import Routes
from gateway.config import Config
from gateway.config.secrets import response_ids
from gateway.core.errors import ConfigError
from gateway.server.body_budget import Bodies


@dataclass(frozen=True, slots=True)
class Surface:
    response_ids: ResponseIds
    bodies: Bodies


def surface_of(config: Config) -> Surface:
    """Raises ConfigError."""
    check_bodies(config)
    return Surface(
        response_ids=response_ids(config.response_key_file),
        bodies=Bodies(config.max_bodies_bytes),
    )


def routes_of(config: Config) -> Routes:
    """The configuration has looked at them."""
    return Routes(config.route, config.refuse_route)


def check_bodies(config: Config) -> None:
    """Raises ConfigError."""
    if config.max_bodies_bytes < config.max_body_bytes:
        raise ConfigError(
            f"max_bodies_bytes: {config.max_bodies_bytes} is no room for one of max_body_bytes "
            f"({config.max_body_bytes})"
        )
