"""What the log looks like."""

import pytest

from gateway.config import load
from gateway.core.errors import ConfigError


def test_requests_are_not_logged_unasked() -> None:
    assert load({}, {}).log_requests is False


def test_a_format_that_is_not_known_is_refused() -> None:
    with pytest.raises(ConfigError, match="log_format.*auto, json or text"):
        load({"log_format": "xml"}, {})
