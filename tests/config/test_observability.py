"""Options of logs, traces and recordings."""

import pytest

from gateway.config import config_of
from gateway.core.errors import ConfigError


def test_requests_are_not_logged_by_default() -> None:
    config = config_of()
    assert (config.log.requests, config.otlp.endpoint, config.record.file) == (False, "", "")


def test_an_unknown_format_is_rejected() -> None:
    with pytest.raises(ConfigError, match="log-format.*auto, json or text"):
        config_of(log_format="xml")


def test_an_endpoint_is_a_url() -> None:
    with pytest.raises(ConfigError, match="otlp"):
        config_of(otlp_endpoint="collector:4318")
