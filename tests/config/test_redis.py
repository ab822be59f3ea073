"""Options of Redis: gateways share state only under a name that they were given."""

import pytest

from gateway.config import load
from gateway.core.errors import ConfigError


def test_a_redis_prefix_is_validated() -> None:
    assert load({"redis_prefix": "prod-eu:kv_1.a"}, {}).redis.prefix == "prod-eu:kv_1.a"
    for wrong in ("", "a b", "a*", "x" * 65):
        with pytest.raises(ConfigError, match="redis-prefix"):
            load({"redis_prefix": wrong}, {})


def test_an_unknown_index_is_rejected() -> None:
    with pytest.raises(ConfigError, match="index"):
        load({"index": "disk"}, {})
