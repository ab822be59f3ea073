"""Timeouts, retries and routes of requests."""

import pytest

from gateway.config import config_of, load
from gateway.core.errors import ConfigError


@pytest.mark.parametrize(("key", "wrong"), [("connect_timeout_s", "0"), ("max_attempts", "0")])
def test_a_value_that_would_reach_no_worker_is_rejected(key: str, wrong: str) -> None:
    with pytest.raises(ConfigError, match=f"^--{key.replace('_', '-')}: "):
        config_of(**{key: wrong})


def test_timeouts_of_a_whole_answer_are_off_by_default() -> None:
    proxy = config_of().proxy
    assert (proxy.first_byte_timeout_s, proxy.total_timeout_s) == (0.0, 0.0)
    assert proxy.idle_timeout_s > 0


@pytest.mark.parametrize("key", ["route", "close_route"])
def test_an_invalid_route_is_rejected(key: str) -> None:
    with pytest.raises(ConfigError, match=r"route: .*neither a path"):
        config_of(**{key: ["sleep"]})


def test_routes_come_from_flags_and_environment() -> None:
    proxy = load({"route": ["/sleep"]}, {"KVGATE_CLOSE_ROUTE": "/generate, /encode"}).proxy
    assert (proxy.route, proxy.close_route) == (["/sleep"], ["/generate", "/encode"])
