"""Parts of the front end are built from the configuration."""

from pathlib import Path

import pytest

from gateway.app.front_end import routes_of, surface_of
from gateway.config import load
from gateway.core.errors import ConfigError


def test_the_front_end_has_the_configured_parts() -> None:
    routes = routes_of(load({"route": ["/sleep"], "close_route": ["/generate"]}, {}))
    assert "/sleep" in routes
    assert "/generate" not in routes


def test_an_unreadable_key_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="response_key_file"):
        surface_of(load({"response_key_file": str(tmp_path / "none")}, {}))


def test_there_is_room_for_one_body_at_least() -> None:
    with pytest.raises(ConfigError, match="no room for one of max_body_bytes"):
        surface_of(load({"body_memory_bytes": "1000000"}, {}))
    surface = surface_of(load({"body_memory_bytes": "1000", "max_body_bytes": "1000"}, {}))
    assert surface.bodies.max_bytes == 1000
