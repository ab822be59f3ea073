"""Redis connections: a bounded pool, time limits on all commands, and a schema check before the first use.

redis-py's own retries are off: each caller decides what to repeat, and when, since only the caller knows what
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

from gateway.core.causes import cause_of
from gateway.core.errors import ConfigError
from gateway.redis.cancellation import CancellableRedis
from gateway.redis.keys import SCHEMA, schema_key
from gateway.redis.master_lookup import (
    ClusterNodes,
    Locator,
    LocatorsUnauthorized,
    Sentinels,
    is_unauthorized,
)
from gateway.redis.options import RedisOptions

log = logging.getLogger("kvgate.redis")

MAX_CONNECTIONS = 16
"""Connections per pool. A blocking reader (XREAD BLOCK) has a pool of its own, so that no command waits
behind it."""
OLDEST = (7, 0)
LOST = (RedisError, OSError, TimeoutError)
"""Exceptions of a call when Redis is unreachable or does not serve."""
_ELSEWHERE = (ReadOnlyError, MovedError, AskError, ClusterDownError)
"""Errors of a server that is no longer the master."""


class UnusableRedis(ConfigError):
    """Redis answers but is unusable: password, permissions, version or schema."""


class ConnectionCount:
    """Count of connections made: behind a new one there may be another server."""

    num = 0


class LocatedConnection:
    """Connection mixin that connects to the master that `locator` finds, and counts connects."""

    def __init__(self, *, connects: ConnectionCount, locator: Locator | None = None, **options: Any) -> None:
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
                self._locator.report_unreachable()
                raise
        self._connects.num += 1

    async def send_packed_command(self, *args: Any, **options: Any) -> None:
        """Send a command. Raises ConnectionError for a connection that the server has just closed, which
        uvloop reports as a RuntimeError."""
        try:
            await super().send_packed_command(*args, **options)  # type: ignore[misc]
        except RuntimeError as exc:
            await self.disconnect()  # type: ignore[attr-defined]
            raise RedisConnectionError(f"the connection was closed: {cause_of(exc)}") from exc

    async def read_response(self, *args: Any, **options: Any) -> Any:
        try:
            return await super().read_response(*args, **options)  # type: ignore[misc]
        except _ELSEWHERE:
            await self.disconnect()  # type: ignore[attr-defined]
            raise


class RedisClient(CancellableRedis):
    connects: ConnectionCount


def open_client(
    options: RedisOptions, *, max_connections: int = MAX_CONNECTIONS, block_s: float = 0
) -> RedisClient:
    """Create a client, which connects with its first command. `block_s` is the longest wait of its commands
    in the server."""
    connects = ConnectionCount()
    kind = options.connection.get("connection_class", Connection)
    pool = BlockingConnectionPool(
        max_connections=max_connections,
        timeout=options.timeout_s,
        socket_timeout=options.timeout_s + block_s,
        socket_connect_timeout=options.timeout_s,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
        client_name="kvgate",
        **{**options.connection, "connection_class": type("Following", (LocatedConnection, kind), {})},
        connects=connects,
        locator=locator(options),
    )
    client = cast(RedisClient, RedisClient.from_pool(pool))  # closes the pool with the client
    client.connects = connects
    return client


def locator(options: RedisOptions) -> Locator | None:
    """Return the locator of the master; None where there is one server only."""
    if not options.locators:
        return None
    connection = {
        **options.locator_options,
        "socket_timeout": options.timeout_s,
        "socket_connect_timeout": options.timeout_s,
    }
    if options.service:
        return Sentinels(options.locators, options.service, connection)
    return ClusterNodes(options.locators, options.prefix, connection)


async def check(client: Redis, options: RedisOptions) -> None:
    """Check that Redis is usable; writes the schema version where there is none. Raises UnusableRedis, or one
    of LOST."""
    await check_schema(client, options)
    await _check_server(client, options)


async def check_schema(client: Redis, options: RedisOptions) -> None:
    """Check or write the schema version, in one round trip."""
    try:
        found = await client.set(schema_key(options.prefix), SCHEMA, nx=True, get=True)
    except NoPermissionError as exc:
        raise UnusableRedis(
            f"redis: at {options.where} this user may not write {options.prefix}:* ({exc}); it needs "
            f"~{options.prefix}:* &{options.prefix}:* +@all -@dangerous +info"
        ) from exc
    except (RedisConnectionError, AuthorizationError, ResponseError) as exc:
        if isinstance(exc, LocatorsUnauthorized) or isinstance(exc.__cause__, LocatorsUnauthorized):
            raise UnusableRedis(f"redis: {options.where}: {exc}") from exc
        if is_unauthorized(exc):
            raise UnusableRedis(
                f"redis: {options.where} rejects the password or user ({exc}); see --redis-password-file"
            ) from exc
        if "syntax" in str(exc).lower():
            raise UnusableRedis(
                f"redis: {options.where} is too old: Redis 7 or Valkey 7.2 is needed"
            ) from exc
        if "WRONGTYPE" not in str(exc):
            raise
        found = b"a key of another type"
    if found not in (None, SCHEMA):
        raise UnusableRedis(foreign_schema(found, options))


def failure(exc: BaseException, where: str) -> str:
    """Explain for people why Redis is unusable."""
    return (
        str(exc) if isinstance(exc, UnusableRedis) else f"redis: {where} cannot be reached: {cause_of(exc)}"
    )


def foreign_schema(found: Any, options: RedisOptions) -> str:
    """Explain that Redis has data of another schema."""
    version = found.decode("utf-8", "replace")[:40] if isinstance(found, bytes) else str(found)
    return (
        f"redis: {schema_key(options.prefix)} at {options.where} is '{version}', but this gateway reads and "
        f"writes '{SCHEMA.decode()}'. To rebuild it, stop the gateways that use it, then "
        f"kvgate index drop --all --redis {options.where} --redis-prefix {options.prefix}; or give these "
        "gateways another --redis-prefix"
    )


async def _check_server(client: Redis, options: RedisOptions) -> None:
    """Check the server's version and eviction policy, where INFO is allowed."""
    try:
        info = await client.info("server", "memory")
    except NoPermissionError:
        return
    version = info.get("valkey_version") or info.get("redis_version", "")
    numbers = tuple(int(part) for part in str(version).split(".")[:2] if part.isdigit())
    if numbers and numbers < OLDEST:
        raise UnusableRedis(f"redis: {options.where} has version {version}; Redis 7 or Valkey 7.2 is needed")
    policy = info.get("maxmemory_policy", "noeviction")
    if info.get("maxmemory") and policy != "noeviction":
        log.warning(
            "redis at %s evicts keys (maxmemory-policy %s): the shared index may lose parts at any time; "
            "set noeviction",
            options.where,
            policy,
        )
