"""Check of the Redis permissions that bookings need, for `kvgate check`.

Each command is sent in a transaction that is discarded: the server checks permissions when a command is
queued, so nothing is published, and no lock is acquired.
"""

import re
from typing import Any

from redis.exceptions import NoPermissionError

from gateway.redis.client import check, open_client
from gateway.redis.keys import bookings_channel, lock_keys
from gateway.redis.options import RedisOptions

_COMMAND = re.compile(r"run the '([^']+)' command")


def channel_of(options: RedisOptions) -> str:
    return bookings_channel(options.prefix, int(options.connection.get("db") or 0))


async def refusals(options: RedisOptions, *, is_atomic: bool) -> dict[str, str]:
    """Return the missing ACL rules, each with the server's error; `+multi` alone where they cannot be tried.
    Raises UnusableRedis where there is nothing to try, or one of `redis.client.LOST`."""
    refused: dict[str, str] = {}
    async with open_client(
        options, max_connections=1
    ) as client:  # one connection: a transaction belongs to one
        await check(client, options)

        async def is_allowed(*command: Any) -> bool:
            try:
                await client.execute_command(*command)
            except NoPermissionError as exc:
                refused.setdefault(_rule(str(exc), options.prefix, str(command[0])), str(exc))
                return False
            return True

        if not await is_allowed("MULTI"):
            return refused
        for command in _commands(options, is_atomic):
            await is_allowed(*command)
        await client.execute_command("DISCARD")
        await is_allowed("CLIENT", "REPLY", "ON")  # in no transaction, and without effect
    return refused


def _commands(options: RedisOptions, is_atomic: bool) -> list[tuple[Any, ...]]:
    """Return the commands that `pubsub` and `atomic_lock` send, those in scripts too."""
    channel, (holder, number) = channel_of(options), lock_keys(options.prefix)
    publishing: list[tuple[Any, ...]] = [
        ("SUBSCRIBE", channel),
        ("PUBLISH", channel, ""),
    ]
    locking: list[tuple[Any, ...]] = [
        ("SCRIPT", "LOAD", "return 0"),
        ("EVALSHA", "0" * 40, 2, holder, number),
        ("EVAL", "return 0", 1, holder),
        ("GET", holder),
        ("SET", holder, "", "PX", 1),
        ("DEL", holder),
        ("INCR", number),
    ]
    return publishing + locking if is_atomic else publishing


def _rule(error: str, prefix: str, command: str) -> str:
    """Derive the missing ACL rule from the server's error, which Redis and Valkey word alike."""
    if found := _COMMAND.search(error):
        return f"+{found[1]}"
    if "channel" in error:
        return f"&{prefix}:*"
    return f"~{prefix}:*" if "key" in error else f"+{command.lower()}"


def advice(options: RedisOptions, refused: dict[str, str]) -> str:
    """Describe in one line for people what is denied, and the command that allows it."""
    user = options.connection.get("username") or "default"
    why, rules = "; ".join(refused.values()), " ".join(refused)
    return (
        f"redis: {options.where}: user '{user}' lacks permissions for bookings ({why}). "
        f"Run: ACL SETUSER {user} {rules}; or start gateways with --booking own"
    )
