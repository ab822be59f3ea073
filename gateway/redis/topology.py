"""Where the server is that is to be written: what Sentinels say of a master, and nodes of a Cluster.

Each is asked in turn, whoever answered first the next time: one that is gone, or knows no better, holds
nobody up for longer than it takes to ask the next.
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

from gateway.redis.cancellation import Stoppable
from gateway.redis.options import Place


class Unknown(RedisConnectionError):
    """Nobody who was asked knows."""


class NotLetIn(Unknown):
    """All who were asked refuse the password or user."""


def is_unauthorized(exc: BaseException) -> bool:
    """Password or user are refused; the library wraps that where the server is reached by a Unix socket."""
    kinds = (AuthenticationError, AuthorizationError)
    return isinstance(exc, kinds) or isinstance(exc.__cause__, kinds) or "WRONGPASS" in str(exc)


class Asked(ABC):
    """`options` are of the connections to those who are asked; `named` is where their password is given."""

    named: ClassVar[str]

    def __init__(self, places: Sequence[Place], options: Mapping[str, Any]) -> None:
        self._places = deque(places)
        self._options = options

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self._places)})"

    async def __call__(self) -> Place:
        reasons, num_refused = [], 0
        for place in list(self._places):
            self._places.rotate(-1)
            try:
                found = await self._ask(place)
            except (RedisError, OSError, TimeoutError) as exc:
                why = str(exc) or type(exc).__name__
                if is_unauthorized(exc):
                    num_refused += 1
                    why = f"it refuses the password or user, or wants one; see {self.named}"
                reasons.append(f"{place[0]}:{place[1]}: {why}")
            else:
                self._places.rotate(1)
                return found
        kind = NotLetIn if num_refused == len(reasons) else Unknown
        raise kind("; ".join(reasons))

    def not_there(self) -> None:
        """Where we were sent nobody is: somebody else may know better."""
        self._places.rotate(-1)

    @abstractmethod
    async def _ask(self, place: Place) -> Place: ...

    async def _command(self, place: Place, *command: Any) -> Any:
        retry = Retry(NoBackoff(), 0)
        pool = ConnectionPool(host=place[0], port=place[1], retry=retry, protocol=2, **self._options)
        async with Stoppable.from_pool(pool) as client:
            return await client.execute_command(*command)  # type: ignore[no-untyped-call]


class Sentinels(Asked):
    named = "sentinel_username and sentinel_password in its URL, which are not those of the servers"

    def __init__(self, places: Sequence[Place], service: str, options: Mapping[str, Any]) -> None:
        super().__init__(places, options)
        self._service = service

    async def _ask(self, place: Place) -> Place:
        # As it comes: the library makes of it a pair itself, or not, by its version.
        found = await self._command(place, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service)
        if not found:
            raise Unknown(f"it knows no master '{self._service}'")
        return _text(found[0]), int(found[1])


class Nodes(Asked):
    """Of a Cluster; `tag` is what all keys have in braces."""

    named = "--redis-password-file"

    def __init__(self, places: Sequence[Place], tag: str, options: Mapping[str, Any]) -> None:
        super().__init__(places, options)
        self._slot = key_slot(tag.encode())

    async def _ask(self, place: Place) -> Place:
        told = await self._command(place, "CLUSTER", "SHARDS")
        shards = [_pairs(shard) for shard in told]
        nodes = [
            (_pairs(node), _has(shard["slots"], self._slot)) for shard in shards for node in shard["nodes"]
        ]
        for node, _ in nodes:
            if (known := _place(node, place)) not in self._places:
                self._places.append(known)
        for node, has_slot in nodes:
            if has_slot and _text(node["role"]) == "master" and _text(node["health"]) == "online":
                return _place(node, place)
        raise Unknown("nobody has our slot")


def _place(node: Mapping[str, Any], asked: Place) -> Place:
    host = _text(node["endpoint"])  # of one that does not know its own: as we reach it
    return host if host not in ("", "?") else asked[0], int(node.get("tls-port") or node["port"])


def _has(slots: Sequence[int], slot: int) -> bool:
    return any(first <= slot <= last for first, last in zip(slots[::2], slots[1::2], strict=True))


def _pairs(flat: Any) -> dict[str, Any]:
    if isinstance(flat, dict):
        return {_text(name): value for name, value in flat.items()}
    return {_text(name): value for name, value in zip(flat[::2], flat[1::2], strict=True)}


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
