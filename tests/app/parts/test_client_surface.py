"""Parts of the front end are built from the configuration."""

from pathlib import Path

import pytest

from gateway.app.parts.client_surface import ClientSurfacePart, routes_of
from gateway.config import load
from gateway.core.errors import ConfigError


def test_the_front_end_has_the_configured_parts() -> None:
    routes = routes_of(load({"route": ["/sleep"], "close_route": ["/generate"]}, {}))
    assert "/sleep" in routes
    assert "/generate" not in routes


def test_an_unreadable_key_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="response_key_file"):
        ClientSurfacePart(load({"response_key_file": str(tmp_path / "none")}, {}))


def test_there_is_room_for_one_body_at_least() -> None:
    with pytest.raises(ConfigError, match="is less than max_body_bytes"):
        ClientSurfacePart(load({"body_memory_bytes": "1000000"}, {}))
    surface = ClientSurfacePart(load({"body_memory_bytes": "1000", "max_body_bytes": "1000"}, {}))
    assert surface.bodies.max_bytes == 1000
