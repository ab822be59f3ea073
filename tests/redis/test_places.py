"""Who is asked where the server is: in which order, and what of their answers counts."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from redis.crc import key_slot
from redis.exceptions import ConnectionError as RedisConnectionError

from gateway.redis.client import check, open_client
from gateway.redis.options import Place
from gateway.redis.places import Asked, Nodes, Sentinels, Unknown
from tests.redis.serving import Server, free_port, redis_server, server, watching

__all__ = ["redis_server", "server"]
pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

A, B, C = ("a", 1), ("b", 2), ("c", 3)


def played(kind: type[Asked], answers: Mapping[Place, Any], *args: Any) -> tuple[Asked, list[Place]]:
    """Who answers so, or raises it; and who was asked."""
    asked: list[Place] = []

    class Played(kind):  # type: ignore[misc, valid-type]
        async def _command(self, place: Place, *command: Any) -> Any:
            asked.append(place)
            if isinstance(answer := answers[place], Exception):
                raise answer
            return answer

    return Played(list(answers), *args, {}), asked


async def test_who_answered_is_asked_first_the_next_time() -> None:
    locate, asked = played(Sentinels, {A: ConnectionError("gone"), B: [b"m", b"7"], C: [b"n", b"8"]}, "m")
    assert [await locate() for _ in range(2)] == [("m", 7)] * 2
    assert asked == [A, B, B]
    locate.not_there()
    assert await locate() == ("n", 8)


async def test_nobody_knows() -> None:
    locate, _ = played(Sentinels, {A: TimeoutError(), B: None}, "m")
    with pytest.raises(Unknown, match=re.escape("a:1: TimeoutError; b:2: it knows no master 'm'")):
        await locate()


def node(host: str, port: int, role: str, health: str = "online", **more: int) -> list[Any]:
    told = {"id": "x", "port": port, "endpoint": host, "role": role, "health": health} | more
    return [part.encode() if isinstance(part, str) else part for pair in told.items() for part in pair]


def shard(first: int, last: int, *nodes: list[Any]) -> list[Any]:
    return [b"slots", [first, last], b"nodes", list(nodes)]


SLOT = key_slot(b"{f}")
ELSEWHERE = shard(SLOT + 1, 16383, node("c", 3, "master"))


@pytest.mark.parametrize(
    ("ours", "place"),
    [
        ([node("b", 2, "replica"), node("d", 4, "master")], ("d", 4)),
        ([node("b", 2, "master", "fail"), node("d", 4, "master")], ("d", 4)),
        ([node("?", 4, "master")], ("a", 4)),
        ([node("", 4, "master")], ("a", 4)),
        ([node("d", 4, "master", **{"tls-port": 5})], ("d", 5)),
    ],
)
async def test_the_master_of_our_slot(ours: list[Any], place: Place) -> None:
    locate, _ = played(Nodes, {A: [ELSEWHERE, shard(0, SLOT, *ours)]}, "{f}")
    assert await locate() == place


async def test_nodes_that_were_told_of_are_asked_too() -> None:
    answers = {A: [ELSEWHERE, shard(0, SLOT, node("b", 2, "master", "fail"))]}
    locate, asked = played(Nodes, answers, "{f}")
    with pytest.raises(Unknown, match="a:1: nobody has our slot"):
        await locate()
    answers |= {C: [shard(0, 16383, node("d", 4, "master"))], B: ConnectionError()}  # type: ignore[dict-item]
    assert await locate() == ("d", 4)
    assert asked[0] == A and C in asked


async def test_a_master_that_a_real_sentinel_does_not_know(server: Server) -> None:
    with watching(server.port) as sentinel:
        options = server.options(redis=f"redis+sentinel://127.0.0.1:{sentinel.port}/m")
        async with open_client(options) as client:
            await check(client, options)
        other = replace(options, service="other")
        async with open_client(other) as client:
            told = f"^127.0.0.1:{sentinel.port}: it knows no master 'other'$"
            with pytest.raises(RedisConnectionError, match=told):
                await check(client, other)


async def test_a_server_that_is_in_no_cluster(server: Server) -> None:
    url = f"redis+cluster://127.0.0.1:{server.port},127.0.0.1:{free_port()}"
    options = server.options(redis=url)
    async with open_client(options) as client:
        with pytest.raises(RedisConnectionError, match="cluster support disabled"):
            await check(client, options)
