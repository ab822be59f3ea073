"""The index backends by name (`--index`): the index, and all that runs beside it.

Another backend is an index (`index/base.py`), a function here that makes it, its line in BACKENDS, and its
name in `config/redis.py`. Nothing else knows which one is in use. `losses` learns which blocks its workers
lose (`Losses`).
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prometheus_client.registry import Collector

from gateway.config import Config
from gateway.core.errors import ConfigError
from gateway.index.assumed import AssumedIndex
from gateway.index.base import Fetch, Index, Losses
from gateway.index.memory import MemoryIndex
from gateway.redis.options import RedisOptions, redis_of

if TYPE_CHECKING:
    from gateway.replication.session import ReplicationSession

Share = Callable[[AssumedIndex], "ReplicationSession | None"]


def _alone(assumed: AssumedIndex) -> None:
    """Make the index of a gateway that shares nothing with others."""


@dataclass(frozen=True, slots=True)
class Backend:
    """An index backend.

    fetch        awaited before each decision, so that the index can answer for this prompt; None where it
                 answers from memory
    share        what gateways share of the workers' KV events, made once; returns None for nothing
    run          serves until cancelled
    collectors   its metrics
    """

    index: Index
    fetch: Fetch | None = None
    share: Share = _alone
    run: Callable[[], Coroutine[Any, Any, None]] | None = None
    collectors: Sequence[Collector] = ()


def _memory(config: Config, losses: Losses | None) -> Backend:
    return Backend(MemoryIndex(losses))


def _replicated(config: Config, losses: Losses | None) -> Backend:
    options, index = _redis(config), MemoryIndex(losses)

    def share(assumed: AssumedIndex) -> "ReplicationSession":
        from gateway.replication.session import ReplicationSession  # and its library

        return ReplicationSession(options, index=index, assumed=assumed)

    return Backend(index, share=share)


def _tree(config: Config, losses: Losses | None) -> Backend:
    from gateway.index.redis_tree.service import RadixService  # and its library
    from gateway.replication.tree_metrics import TreeCollector

    options = _redis(config)
    service = RadixService(options, lookup_s=config.redis.lookup_timeout_s, losses=losses)

    def share(assumed: AssumedIndex) -> "ReplicationSession":
        from gateway.replication.session import ReplicationSession
        from gateway.replication.tree_feed import feeds_of

        return ReplicationSession(
            options, index=service.index, assumed=assumed, make_feed=feeds_of(service), can_recover=False
        )

    return Backend(service.index, service.fetch, share, service.run, [TreeCollector(service)])


BACKENDS: Mapping[str, Callable[[Config, Losses | None], Backend]] = {
    "memory": _memory,
    "replicated": _replicated,
    "redis": _tree,
}


def backend_of(config: Config, losses: Losses | None = None) -> Backend:
    """Make the configured index backend. Raises ConfigError."""
    options, name = redis_of(config), config.index.backend
    if name == "auto":
        name = "memory" if options is None else "replicated"
    return BACKENDS[name](config, losses)


def _redis(config: Config) -> RedisOptions:
    options = redis_of(config)
    if options is None:
        raise ConfigError(f"index: {config.index.backend} needs --redis, the URL of a server")
    return options
