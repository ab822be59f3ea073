"""Locators of the Redis master: Sentinels, and nodes of a Cluster.

They are asked one after another, next time starting with the one that answered: one that is down, or does not
know, delays a lookup only until the next one is asked. redis-py's `Sentinel` makes one text of rejected
credentials (fatal at the start) and unreachable servers (not fatal), ends at one that answers an error, and
asks the same one again after a master that refuses connections; its `RedisCluster` connects to all nodes,
where one slot's master is looked for.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from redis.asyncio import ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import AuthenticationError, AuthorizationError, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError

from gateway.core.causes import cause_of
from gateway.redis.cancellation import CancellableRedis
from gateway.redis.options import HostPort


class MasterUnknown(RedisConnectionError):
    """No locator knows the master."""


class LocatorsUnauthorized(MasterUnknown):
    """All locators reject the password or user."""


def is_unauthorized(exc: BaseException) -> bool:
    """Return True if password or user are rejected; redis-py wraps that error on Unix sockets."""
    kinds = (AuthenticationError, AuthorizationError)
    return isinstance(exc, kinds) or isinstance(exc.__cause__, kinds) or "WRONGPASS" in str(exc)


class Locator(ABC):
    """Finds the master's address by asking a list of servers. `options` are for these connections;
    `credential_option` is the setting with their password."""

    credential_option: ClassVar[str]

    def __init__(self, addresses: Sequence[HostPort], options: Mapping[str, Any]) -> None:
        self._addresses = deque(addresses)
        self._options = options

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self._addresses)})"

    async def __call__(self) -> HostPort:
        reasons, num_refused = [], 0
        for address in list(self._addresses):
            self._addresses.rotate(-1)
            try:
                found = await self._ask(address)
            except (RedisError, OSError, TimeoutError) as exc:
                why = cause_of(exc)
                if is_unauthorized(exc):
                    num_refused += 1
                    why = f"password or user missing or rejected; see {self.credential_option}"
                reasons.append(f"{address[0]}:{address[1]}: {why}")
            else:
                self._addresses.rotate(1)
                return found
        kind = LocatorsUnauthorized if num_refused == len(reasons) else MasterUnknown
        raise kind("; ".join(reasons))

    def report_unreachable(self) -> None:
        """Ask another server next time: the address of the last answer did not accept a connection."""
        self._addresses.rotate(-1)

    @abstractmethod
    async def _ask(self, address: HostPort) -> HostPort: ...

    async def _command(self, address: HostPort, *command: Any) -> Any:
        retry = Retry(NoBackoff(), 0)
        pool = ConnectionPool(host=address[0], port=address[1], retry=retry, protocol=2, **self._options)
        async with CancellableRedis.from_pool(pool) as client:
            return await client.execute_command(*command)  # type: ignore[no-untyped-call]


class Sentinels(Locator):
    credential_option = "sentinel_username and sentinel_password in its URL (the servers' own differ)"

    def __init__(self, addresses: Sequence[HostPort], service: str, options: Mapping[str, Any]) -> None:
        super().__init__(addresses, options)
        self._service = service

    async def _ask(self, address: HostPort) -> HostPort:
        # Some versions of redis-py convert the reply to a pair, others do not.
        found = await self._command(address, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service)
        if not found:
            raise MasterUnknown(f"no master named '{self._service}'")
        return _text(found[0]), int(found[1])


class ClusterNodes(Locator):
    """Locates the node of a Cluster that has our slot; `tag` is the part of all keys in braces."""

    credential_option = "--redis-password-file"

    def __init__(self, addresses: Sequence[HostPort], tag: str, options: Mapping[str, Any]) -> None:
        super().__init__(addresses, options)
        self._slot = key_slot(tag.encode())

    async def _ask(self, address: HostPort) -> HostPort:
        reply = await self._command(address, "CLUSTER", "SHARDS")
        shards = [_pairs(shard) for shard in reply]
        nodes = [
            (_pairs(node), _has(shard["slots"], self._slot)) for shard in shards for node in shard["nodes"]
        ]
        for node, _ in nodes:
            if (known := _address(node, address)) not in self._addresses:
                self._addresses.append(known)
        for node, has_slot in nodes:
            if has_slot and _text(node["role"]) == "master" and _text(node["health"]) == "online":
                return _address(node, address)
        raise MasterUnknown("no node serves the slot of these keys")


def _address(node: Mapping[str, Any], locators: HostPort) -> HostPort:
    host = _text(node["endpoint"])  # a node that does not know its own address: as we reach it
    return host if host not in ("", "?") else locators[0], int(node.get("tls-port") or node["port"])


def _has(slots: Sequence[int], slot: int) -> bool:
    return any(first <= slot <= last for first, last in zip(slots[::2], slots[1::2], strict=True))


def _pairs(flat: Any) -> dict[str, Any]:
    if isinstance(flat, dict):
        return {_text(name): value for name, value in flat.items()}
    return {_text(name): value for name, value in zip(flat[::2], flat[1::2], strict=True)}


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
