"""What several gateways share is named so that nobody shares by mistake."""

import pytest

from gateway.config import load
from gateway.core.errors import ConfigError


def test_keys_in_redis_have_a_prefix_that_separates_nothing_by_accident() -> None:
    assert load({"redis_prefix": "prod-eu:kv_1.a"}, {}).redis.prefix == "prod-eu:kv_1.a"
    for wrong in ("", "a b", "a*", "x" * 65):
        with pytest.raises(ConfigError, match="redis-prefix"):
            load({"redis_prefix": wrong}, {})


def test_how_knowledge_is_kept_is_one_of_four() -> None:
    with pytest.raises(ConfigError, match="index"):
        load({"index": "disk"}, {})
