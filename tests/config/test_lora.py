"""Adapters are loaded by no admin API unasked."""

import pytest

from gateway.config import Config, load
from gateway.core.errors import ConfigError


def test_it_is_off() -> None:
    assert not Config().load_adapters
    assert load({"load_adapters": True}, {}).load_adapters


def test_a_worker_has_some_time() -> None:
    with pytest.raises(ConfigError, match="adapter_timeout_s"):
        load({"adapter_timeout_s": "0"}, {})
