"""Connection pools by endpoint."""

import pytest

from gateway.config.proxy import ProxySection
from gateway.upstream.pools import Pools
from tests.support.transports import FakeLoop


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> Pools:
    FakeLoop.install(monkeypatch)
    return Pools(ProxySection(pool_idle_s=2.0, connect_timeout_s=3.0))


def test_each_endpoint_has_one_pool_with_the_configured_timeouts(pools: Pools) -> None:
    pool = pools.of("http://w:9")
    assert pools.of("http://w:9") is pool
    assert pools.of("http://w:8") is not pool
    assert (pool.idle_s, pool.connect_timeout_s) == (2.0, 3.0)


def test_other_timeouts_apply_to_open_pools_and_to_later_ones(pools: Pools) -> None:
    pools.of("http://w:9")
    pools.limit(ProxySection(connect_timeout_s=1.0, pool_idle_s=4.0))
    for url in ("http://w:9", "http://w:8"):
        assert (pools.of(url).idle_s, pools.of(url).connect_timeout_s) == (4.0, 1.0)


def test_signs_of_life_are_counted_per_endpoint(pools: Pools) -> None:
    assert (pools.num_reads("http://w:9"), pools.num_opened("http://w:9"), pools.by_url) == (0, 0, {})
    pools.heard("http://w:9")
    pools.of("http://w:9").num_opened += 1
    assert (pools.num_reads("http://w:9"), pools.num_opened("http://w:9")) == (1, 1)
    assert (pools.num_reads("http://w:8"), pools.num_opened("http://w:8")) == (0, 0)


def test_a_dropped_pool_is_closed_once(pools: Pools) -> None:
    pool = pools.of("http://w:9")
    pools.drop("http://w:9")
    pools.drop("http://w:9")
    assert (pool.idle_s, pools.by_url) == (0.0, {})
