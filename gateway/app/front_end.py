"""The parts between clients and the decision: routes, response ids, memory for bodies."""

from dataclasses import dataclass

from gateway.apis.open_routes import Routes
from gateway.apis.response_ids import ResponseIds
from gateway.config import Config
from gateway.config.secrets import response_ids
from gateway.core.errors import ConfigError
from gateway.http.cross_origin import CrossOriginPolicy
from gateway.server.body_budget import BodyBudget


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """Limits and names that all client connections of a process share."""

    response_ids: ResponseIds
    bodies: BodyBudget
    cross_origins: CrossOriginPolicy | None
    """None: browsers keep the answers from pages of other sites."""


def surface_of(config: Config) -> FrontEnd:
    """Return the front end that the configuration describes. Raises ConfigError."""
    check_bodies(config)
    return FrontEnd(
        response_ids=response_ids(config.proxy.response_key_file),
        bodies=BodyBudget(config.server.body_memory_bytes),
        cross_origins=CrossOriginPolicy(origins) if (origins := config.server.cors_origins) else None,
    )


def routes_of(config: Config) -> Routes:
    """Return the routes that clients may use; the configuration has validated them."""
    return Routes(config.proxy.route, config.proxy.close_route)


def check_bodies(config: Config) -> None:
    """Check that one body of the largest size fits the memory for bodies. Raises ConfigError."""
    if config.server.body_memory_bytes < config.server.max_body_bytes:
        raise ConfigError(
            f"body_memory_bytes: {config.server.body_memory_bytes} is no room for one of max_body_bytes "
            f"({config.server.max_body_bytes})"
        )
