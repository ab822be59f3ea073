"""A connection to Redis: a bounded pool, time limits on all, and the schema checked before anything else.

The library's own repeats are off: what is done again, and when, is decided by who asks, who knows whether it
may be done twice.
"""

import asyncio
import logging
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    NoPermissionError,
    RedisError,
    ResponseError,
)

from gateway.core.errors import ConfigError
from gateway.redis.keys import SCHEMA, schema_key
from gateway.redis.options import RedisOptions

log = logging.getLogger("kvgate.redis")

MAX_CONNECTIONS = 16
"""Of one pool. Who waits for news (XREAD BLOCK) has one of its own, so that nobody waits behind it."""
OLDEST = (7, 0)
LOST = (RedisError, OSError, TimeoutError)
"""What a call may raise when the server, or the way to it, is not there or does not do it."""


class Refused(ConfigError):
    """The server is there, and we cannot use it: password, permissions, version, schema."""


class Client(Redis):
    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """The library sends by `asyncio.wait_for`, which before Python 3.12 loses a cancellation that comes
        when the sending is just over: whoever is being stopped would go on for ever."""
        task = asyncio.current_task()
        before = task.cancelling() if task else 0
        answer = await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        if task and task.cancelling() > before:
            raise asyncio.CancelledError
        return answer


def open_client(
    options: RedisOptions, *, max_connections: int = MAX_CONNECTIONS, block_s: float = 0
) -> Redis:
    """Opened by its first command. `block_s` is for how long commands of it wait in the server."""
    pool = BlockingConnectionPool(
        max_connections=max_connections,
        timeout=options.timeout_s,
        socket_timeout=options.timeout_s + block_s,
        socket_connect_timeout=options.timeout_s,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
        client_name="kvgate",
        **options.connection,
    )
    return Client.from_pool(pool)  # which closes it


async def check(client: Redis, options: RedisOptions) -> None:
    """Whether it can be used; its schema is written where there is none. Raises Refused, or one of LOST."""
    try:
        found = await client.set(schema_key(options.prefix), SCHEMA, nx=True, get=True)
    except (AuthenticationError, AuthorizationError) as exc:
        raise Refused(
            f"redis: {options.where} refuses the password or user ({exc}); see --redis-password-file"
        ) from exc
    except NoPermissionError as exc:
        raise Refused(
            f"redis: at {options.where} this user may not write {options.prefix}:* ({exc}); it needs "
            f"~{options.prefix}:* and +@all -@dangerous +info"
        ) from exc
    except ResponseError as exc:
        if "WRONGPASS" in str(exc) or "NOAUTH" in str(exc):
            raise Refused(f"redis: {options.where} refuses the password or user ({exc})") from exc
        if "syntax" in str(exc).lower():
            raise Refused(f"redis: {options.where} is too old: Redis 7 or Valkey 7.2 is needed") from exc
        if "WRONGTYPE" not in str(exc):
            raise
        found = b"a key of another type"
    if found not in (None, SCHEMA):
        raise Refused(_foreign(found, options))
    await _look(client, options)


def _foreign(found: Any, options: RedisOptions) -> str:
    told = found.decode("utf-8", "replace")[:40] if isinstance(found, bytes) else str(found)
    return (
        f"redis: {schema_key(options.prefix)} at {options.where} says '{told}', and this gateway reads and "
        f"writes '{SCHEMA.decode()}'. All of it can be made anew: stop the gateways that use it, then "
        f"redis-cli --scan --pattern '{options.prefix}:*' | xargs redis-cli unlink; or give these gateways "
        "another --redis-prefix"
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
