"""Who is asked where the server is: in which order, and what of their answers counts."""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from redis.crc import key_slot
from redis.exceptions import ConnectionError as RedisConnectionError

from gateway.redis.client import LOST, check, open_client
from gateway.redis.options import HostPort
from gateway.redis.topology import ClusterNodes, Locator, MasterUnknown, Sentinels
from loadtest.ports import free_port
from tests.redis.encrypting import encrypted
from tests.redis.serving import Server, checked, redis_server, refused, server, serving, watching
from tests.support.certificates import Authority

__all__ = ["redis_server", "server"]
pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

A, B, C = ("a", 1), ("b", 2), ("c", 3)


def played(
    kind: type[Locator], answers: Mapping[HostPort, Any], *args: Any
) -> tuple[Locator, list[HostPort]]:
    """Who answers so, or raises it; and who was asked."""
    locators: list[HostPort] = []

    class Played(kind):  # type: ignore[misc, valid-type]
        async def _command(self, place: HostPort, *command: Any) -> Any:
            locators.append(place)
            if isinstance(answer := answers[place], Exception):
                raise answer
            return answer

    return Played(list(answers), *args, {}), locators


async def test_who_answered_is_asked_first_the_next_time() -> None:
    locate, locators = played(Sentinels, {A: ConnectionError("gone"), B: [b"m", b"7"], C: [b"n", b"8"]}, "m")
    assert [await locate() for _ in range(2)] == [("m", 7)] * 2
    assert locators == [A, B, B]
    locate.report_unreachable()
    assert await locate() == ("n", 8)


async def test_nobody_knows() -> None:
    locate, _ = played(Sentinels, {A: TimeoutError(), B: None}, "m")
    with pytest.raises(MasterUnknown, match=re.escape("a:1: TimeoutError; b:2: no master named 'm'")):
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
async def test_the_master_of_our_slot(ours: list[Any], place: HostPort) -> None:
    locate, _ = played(ClusterNodes, {A: [ELSEWHERE, shard(0, SLOT, *ours)]}, "{f}")
    assert await locate() == place


async def test_nodes_that_were_told_of_are_asked_too() -> None:
    answers = {A: [ELSEWHERE, shard(0, SLOT, node("b", 2, "master", "fail"))]}
    locate, locators = played(ClusterNodes, answers, "{f}")
    with pytest.raises(MasterUnknown, match="a:1: no node has our slot"):
        await locate()
    answers |= {C: [shard(0, 16383, node("d", 4, "master"))], B: ConnectionError()}  # type: ignore[dict-item]
    assert await locate() == ("d", 4)
    assert locators[0] == A and C in locators


async def test_a_master_that_a_real_sentinel_does_not_know(server: Server) -> None:
    with watching(server.port) as sentinel:
        options = server.options(redis=f"redis+sentinel://127.0.0.1:{sentinel.port}/m")
        async with open_client(options) as client:
            await check(client, options)
        other = replace(options, service="other")
        async with open_client(other) as client:
            told = f"^127.0.0.1:{sentinel.port}: no master named 'other'$"
            with pytest.raises(RedisConnectionError, match=told):
                await check(client, other)


WATCHED = {
    "a password": (("requirepass s3cret",), "sentinel_password=s3cret"),
    "a user": (
        ("user default off", "user asks on >s3cret +@connection +sentinel|get-master-addr-by-name"),
        "sentinel_username=asks&sentinel_password=s3cret",
    ),
}


@pytest.mark.parametrize("name", WATCHED)
async def test_real_sentinels_that_want_to_know_who_asks(server: Server, name: str) -> None:
    lines, right = WATCHED[name]
    with watching(server.port, *lines) as one, watching(server.port, *lines) as two:
        url = f"redis+sentinel://127.0.0.1:{one.port},127.0.0.1:{two.port}/m"
        await checked(server.options(redis=f"{url}?{right}"))
        for wrong in (
            "",
            f"?{right.replace('s3cret', 'wr0ng')}",
            "?sentinel_username=no&sentinel_password=x",
        ):
            told = await refused(server.options(redis=url + wrong))
            assert told.startswith(f"redis: {url}: 127.0.0.1:")
            assert told.count("password or user missing or rejected; see sentinel_username") == 2
            assert "s3cret" not in told and "wr0ng" not in told


async def test_a_password_for_the_sentinels_is_none_for_the_server() -> None:
    with serving("--requirepass", "other") as server:
        lines = ("sentinel auth-pass m other", "requirepass s3cret")
        with watching(server.port, *lines) as sentinel:
            place = f"127.0.0.1:{sentinel.port}/m?sentinel_password=s3cret"
            await checked(server.options(redis=f"redis+sentinel://:other@{place}"))
            told = await refused(server.options(redis=f"redis+sentinel://:s3cret@{place}"))
            assert "rejects the password or user" in told and "--redis-password-file" in told


async def test_one_sentinel_that_refuses_is_no_reason_not_to_wait(server: Server) -> None:
    """For the others, which may know it; what the one says is told."""
    with watching(server.port, "requirepass s3cret") as sentinel:
        url = f"redis+sentinel://127.0.0.1:{sentinel.port},127.0.0.1:{free_port()}/m"
        with pytest.raises(RedisConnectionError, match="missing or rejected; see sentinel_username"):
            await checked(server.options(redis=url))


async def test_by_tls(server: Server, tmp_path: Path) -> None:
    """Each refusal is the library's own words, which name what is wrong."""
    ours, others = Authority(tmp_path / "ours"), Authority(tmp_path / "others")
    shown = ours.issue()
    async with encrypted(server.port, ours.issue().context(clients_of=ours)) as port:
        url = f"rediss://127.0.0.1:{port}"
        known = {"redis": url, "redis_ca_file": ours.file, "redis_timeout_s": 10}
        files = {"redis_cert_file": shown.cert, "redis_cert_key_file": shown.key}
        await checked(server.options(**known, **files))
        for wrong in ({"redis_ca_file": others.file}, {"redis_ca_file": ""}):
            with pytest.raises(RedisConnectionError, match="certificate verify failed"):
                await checked(server.options(**{**known, **files, **wrong}))
        with pytest.raises(LOST):
            await checked(server.options(**known))  # it shows no certificate


async def test_sentinels_and_their_master_by_tls(server: Server, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = authority.issue().context()
    async with encrypted(server.port, context) as master:
        # The Sentinel asks the master while it starts: what passes that on is in this loop.
        sentinel = await asyncio.to_thread((watched := watching(master, "requirepass s3cret")).__enter__)
        try:
            async with encrypted(sentinel.port, context) as port:
                url = f"rediss+sentinel://127.0.0.1:{port}/m?sentinel_password="
                known = {"redis_ca_file": authority.file, "redis_timeout_s": 10}
                await checked(server.options(redis=f"{url}s3cret", **known))
                assert "see sentinel_username" in await refused(server.options(redis=f"{url}wr0ng", **known))
        finally:
            await asyncio.to_thread(watched.__exit__, None, None, None)


async def test_a_server_that_is_in_no_cluster(server: Server) -> None:
    url = f"redis+cluster://127.0.0.1:{server.port},127.0.0.1:{free_port()}"
    options = server.options(redis=url)
    async with open_client(options) as client:
        with pytest.raises(RedisConnectionError, match="cluster support disabled"):
            await check(client, options)
