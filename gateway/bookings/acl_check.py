"""Whether a user of Redis may do what bookings need, for `kvgate check`.

Each command is sent in a transaction that is discarded: the server looks at rights when a command is queued,
and so nothing is told to anybody, and no turn is taken.
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
    """The rules of an ACL that are missing, each with what the server says; `+multi` alone where it cannot be
    tried. Raises Refused where there is nothing to try, or one of `redis.client.LOST`."""
    refused: dict[str, str] = {}
    async with open_client(options, max_connections=1) as client:  # one connection: a transaction is of one
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
        await is_allowed("CLIENT", "REPLY", "ON")  # in no transaction, and as it is
    return refused


def _commands(options: RedisOptions, is_atomic: bool) -> list[tuple[Any, ...]]:
    """As `line` and `turns` send them, those in scripts too."""
    channel, (holder, number) = channel_of(options), lock_keys(options.prefix)
    told: list[tuple[Any, ...]] = [
        ("SUBSCRIBE", channel),
        ("PUBLISH", channel, ""),
    ]
    in_turn: list[tuple[Any, ...]] = [
        ("SCRIPT", "LOAD", "return 0"),
        ("EVALSHA", "0" * 40, 2, holder, number),
        ("EVAL", "return 0", 1, holder),
        ("GET", holder),
        ("SET", holder, "", "PX", 1),
        ("DEL", holder),
        ("INCR", number),
    ]
    return told + in_turn if is_atomic else told


def _rule(told: str, prefix: str, command: str) -> str:
    """By the server's words, which Redis and Valkey have alike."""
    if found := _COMMAND.search(told):
        return f"+{found[1]}"
    if "channel" in told:
        return f"&{prefix}:*"
    return f"~{prefix}:*" if "key" in told else f"+{command.lower()}"


def advice(options: RedisOptions, refused: dict[str, str]) -> str:
    """One line for people: what is refused, and what gives it."""
    user = options.connection.get("username") or "default"
    why, rules = "; ".join(refused.values()), " ".join(refused)
    return (
        f"redis: at {options.where} user '{user}' may not do what bookings need ({why}). "
        f"Give it: ACL SETUSER {user} {rules}; or start gateways with --booking own"
    )
