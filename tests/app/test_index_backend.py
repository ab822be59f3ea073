"""Each value of `index` makes its backend."""

import pytest

from gateway.app.index_backend import BACKENDS, backend_of
from gateway.config import by_key, config_of
from gateway.core.errors import ConfigError
from gateway.index.assumed import AssumedIndex
from gateway.index.memory import MemoryIndex
from gateway.index.redis_tree.index import RadixIndex
from gateway.observability.cache_loss.observer import CacheLoss

LOSSES = CacheLoss(lambda model, tokens: None)
REDIS = "redis://127.0.0.1:1"


def test_each_value_of_the_option_has_a_backend() -> None:
    assert {*BACKENDS, "auto"} == set(by_key()["index"].choices)


def test_a_single_gateway_keeps_its_index_in_memory_and_shares_nothing() -> None:
    backend = backend_of(config_of(), LOSSES)
    assert isinstance(backend.index, MemoryIndex)
    assert (backend.fetch, backend.run, backend.share(AssumedIndex())) == (None, None, None)


async def test_events_are_shared_through_redis_where_it_is_configured() -> None:
    backend = backend_of(config_of(redis=REDIS), LOSSES)
    assert isinstance(backend.index, MemoryIndex) and backend.fetch is None
    shared = backend.share(AssumedIndex())
    assert shared is not None and shared.can_recover
    await shared.close()


async def test_the_tree_in_redis_is_looked_up_before_each_decision() -> None:
    backend = backend_of(config_of(redis=REDIS, index="redis"), LOSSES)
    assert isinstance(backend.index, RadixIndex) and backend.fetch and backend.run
    assert len(backend.collectors) == 1
    shared = backend.share(AssumedIndex())
    assert shared is not None and not shared.can_recover
    await shared.close()


@pytest.mark.parametrize("index", ["replicated", "redis"])
def test_an_index_in_redis_requires_redis(index: str) -> None:
    with pytest.raises(ConfigError, match="needs --redis"):
        backend_of(config_of(index=index), LOSSES)
