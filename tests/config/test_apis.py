"""What clients may ask for: routes that can be used."""

import pytest

from gateway.config import load
from gateway.core.errors import ConfigError


@pytest.mark.parametrize("field", ["route", "refuse_route"])
def test_what_is_no_route_is_refused(field: str) -> None:
    with pytest.raises(ConfigError, match=r"route: .*neither a path"):
        load({field: ["sleep"]}, {})


def test_routes_come_from_flags_and_environment() -> None:
    config = load({"route": ["/sleep"]}, {"KVGATE_REFUSE_ROUTE": "/generate, /encode"})
    assert (config.route, config.refuse_route) == (["/sleep"], ["/generate", "/encode"])
