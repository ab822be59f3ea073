"""A connection to Redis: a bounded pool, time limits on all, and the schema checked before anything else.

The library's own repeats are off: what is done again, and when, is decided by who asks, who knows whether it
may be done twice.
"""

import logging
from typing import Any, cast

from redis.asyncio import BlockingConnectionPool, Connection, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AskError,
    AuthorizationError,
    ClusterDownError,
    MovedError,
    NoPermissionError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError

from gateway.core.errors import ConfigError
from gateway.redis.cancellation import Stoppable
from gateway.redis.keys import SCHEMA, schema_key
from gateway.redis.options import RedisOptions
from gateway.redis.topology import Asked, Nodes, NotLetIn, Sentinels, is_unauthorized

log = logging.getLogger("kvgate.redis")

MAX_CONNECTIONS = 16
"""Of one pool. Who waits for news (XREAD BLOCK) has one of its own, so that nobody waits behind it."""
OLDEST = (7, 0)
LOST = (RedisError, OSError, TimeoutError)
"""What a call may raise when the server, or the way to it, is not there or does not do it."""
_ELSEWHERE = (ReadOnlyError, MovedError, AskError, ClusterDownError)
"""It is no longer the one that is to be written."""


class Refused(ConfigError):
    """The server is there, and we cannot use it: password, permissions, version, schema."""


class Connects:
    """How often a connection was made: behind it there may be another server."""

    num = 0


class Following:
    """A connection, of the kind that it is mixed into: to where the server is now, if there is a choice."""

    def __init__(self, *, connects: Connects, locator: Asked | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._connects, self._locator = connects, locator

    async def _connect(self) -> None:
        if self._locator is None:
            await super()._connect()  # type: ignore[misc]
        else:
            self.host, self.port = await self._locator()
            try:
                await super()._connect()  # type: ignore[misc]
            except (OSError, TimeoutError):
                self._locator.not_there()
                raise
        self._connects.num += 1

    async def send_packed_command(self, *args: Any, **options: Any) -> None:
        """Raises what a lost connection raises where the server has closed it just now: uvloop says so by a
        RuntimeError, which nobody would take for that."""
        try:
            await super().send_packed_command(*args, **options)  # type: ignore[misc]
        except RuntimeError as exc:
            await self.disconnect()  # type: ignore[attr-defined]
            raise RedisConnectionError(f"the connection was closed: {exc}") from exc

    async def read_response(self, *args: Any, **options: Any) -> Any:
        try:
            return await super().read_response(*args, **options)  # type: ignore[misc]
        except _ELSEWHERE:
            await self.disconnect()  # type: ignore[attr-defined]
            raise


class Client(Stoppable):
    connects: Connects


def open_client(
    options: RedisOptions, *, max_connections: int = MAX_CONNECTIONS, block_s: float = 0
) -> Client:
    """Opened by its first command. `block_s` is for how long commands of it wait in the server."""
    connects = Connects()
    kind = options.connection.get("connection_class", Connection)
    pool = BlockingConnectionPool(
        max_connections=max_connections,
        timeout=options.timeout_s,
        socket_timeout=options.timeout_s + block_s,
        socket_connect_timeout=options.timeout_s,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
        client_name="kvgate",
        **{**options.connection, "connection_class": type("Following", (Following, kind), {})},
        connects=connects,
        locator=locator(options),
    )
    client = cast(Client, Client.from_pool(pool))  # which closes it
    client.connects = connects
    return client


def locator(options: RedisOptions) -> Asked | None:
    """Who is asked where the server is now; None where there is one server only."""
    if not options.asked:
        return None
    connection = {
        **options.asking,
        "socket_timeout": options.timeout_s,
        "socket_connect_timeout": options.timeout_s,
    }
    if options.service:
        return Sentinels(options.asked, options.service, connection)
    return Nodes(options.asked, options.prefix, connection)


async def check(client: Redis, options: RedisOptions) -> None:
    """Whether it can be used; its schema is written where there is none. Raises Refused, or one of LOST."""
    await check_schema(client, options)
    await _look(client, options)


async def check_schema(client: Redis, options: RedisOptions) -> None:
    """In one round trip."""
    try:
        found = await client.set(schema_key(options.prefix), SCHEMA, nx=True, get=True)
    except NoPermissionError as exc:
        raise Refused(
            f"redis: at {options.where} this user may not write {options.prefix}:* ({exc}); it needs "
            f"~{options.prefix}:* &{options.prefix}:* +@all -@dangerous +info"
        ) from exc
    except (RedisConnectionError, AuthorizationError, ResponseError) as exc:
        if isinstance(exc, NotLetIn) or isinstance(exc.__cause__, NotLetIn):
            raise Refused(f"redis: {options.where}: {exc}") from exc
        if is_unauthorized(exc):
            raise Refused(
                f"redis: {options.where} refuses the password or user ({exc}); see --redis-password-file"
            ) from exc
        if "syntax" in str(exc).lower():
            raise Refused(f"redis: {options.where} is too old: Redis 7 or Valkey 7.2 is needed") from exc
        if "WRONGTYPE" not in str(exc):
            raise
        found = b"a key of another type"
    if found not in (None, SCHEMA):
        raise Refused(foreign(found, options))


def failure(exc: BaseException, where: str) -> str:
    """For people: why it cannot be used."""
    return str(exc) if isinstance(exc, Refused) else f"redis: {where} is not reached: {exc}"


def foreign(found: Any, options: RedisOptions) -> str:
    """What is said where the schema is another."""
    told = found.decode("utf-8", "replace")[:40] if isinstance(found, bytes) else str(found)
    return (
        f"redis: {schema_key(options.prefix)} at {options.where} says '{told}', and this gateway reads and "
        f"writes '{SCHEMA.decode()}'. All of it can be made anew: stop the gateways that use it, then "
        f"kvgate index drop --all --redis {options.where} --redis-prefix {options.prefix}; or give these "
        "gateways another --redis-prefix"
    )


async def _look(client: Redis, options: RedisOptions) -> None:
    """What the server says of itself, where we may ask."""
    try:
        info = await client.info("server", "memory")
    except NoPermissionError:
        return
    version = info.get("valkey_version") or info.get("redis_version", "")
    numbers = tuple(int(part) for part in str(version).split(".")[:2] if part.isdigit())
    if numbers and numbers < OLDEST:
        raise Refused(f"redis: {options.where} has version {version}; Redis 7 or Valkey 7.2 is needed")
    policy = info.get("maxmemory_policy", "noeviction")
    if info.get("maxmemory") and policy != "noeviction":
        log.warning(
            "redis at %s evicts (maxmemory-policy %s): parts of what gateways know may vanish at any time; "
            "noeviction is needed",
            options.where,
            policy,
        )
