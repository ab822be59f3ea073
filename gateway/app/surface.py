"""What stands between clients and workers beside the choice of one: routes, ids of responses."""

from dataclasses import dataclass

from gateway.config import Config
from gateway.core.response_ids import ResponseIds
from gateway.core.routes import Routes
from gateway.keyfile import response_ids


@dataclass(frozen=True, slots=True)
class Surface:
    routes: Routes
    response_ids: ResponseIds


def surface_of(config: Config) -> Surface:
    """Raises ConfigError."""
    return Surface(
        routes=Routes(config.route, config.refuse_route),
        response_ids=response_ids(config.response_key_file),
    )
