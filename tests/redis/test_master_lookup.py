"""Location of the master: the order of questions, and the answers that count."""

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
from gateway.redis.master_lookup import ClusterNodes, Locator, MasterUnknown, Sentinels
from gateway.redis.options import HostPort
from loadtest.ports import free_port
from tests.support.certificates import Authority
from tests.support.encrypting_redis import encrypted
from tests.support.redis_servers import Server, checked, redis_server, refused, server, serving, watching

__all__ = ["redis_server", "server"]
pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

A, B, C = ("a", 1), ("b", 2), ("c", 3)


def played(
    kind: type[Locator], answers: Mapping[HostPort, Any], *args: Any
) -> tuple[Locator, list[HostPort]]:
    """Locator with these answers or errors, and the servers that it asked."""
    locators: list[HostPort] = []

    class Played(kind):  # type: ignore[misc, valid-type]
        async def _command(self, place: HostPort, *command: Any) -> Any:
            locators.append(place)
            if isinstance(answer := answers[place], Exception):
                raise answer
            return answer

    return Played(list(answers), *args, {}), locators


async def test_the_server_that_answered_is_asked_first_the_next_time() -> None:
    locate, locators = played(Sentinels, {A: ConnectionError("gone"), B: [b"m", b"7"], C: [b"n", b"8"]}, "m")
    assert [await locate() for _ in range(2)] == [("m", 7)] * 2
    assert locators == [A, B, B]
    locate.report_unreachable()
    assert await locate() == ("n", 8)


async def test_without_an_answer_the_master_is_unknown() -> None:
    locate, _ = played(Sentinels, {A: TimeoutError(), B: None}, "m")
    with pytest.raises(MasterUnknown, match=re.escape("a:1: no answer in time; b:2: no master named 'm'")):
        await locate()


def node(host: str, port: int, role: str, health: str = "online", **more: int) -> list[Any]:
    fields = {"id": "x", "port": port, "endpoint": host, "role": role, "health": health} | more
    return [part.encode() if isinstance(part, str) else part for pair in fields.items() for part in pair]


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
async def test_the_master_of_our_slot_is_found(ours: list[Any], place: HostPort) -> None:
    locate, _ = played(ClusterNodes, {A: [ELSEWHERE, shard(0, SLOT, *ours)]}, "{f}")
    assert await locate() == place


async def test_nodes_learnt_from_answers_are_asked() -> None:
    answers = {A: [ELSEWHERE, shard(0, SLOT, node("b", 2, "master", "fail"))]}
    locate, locators = played(ClusterNodes, answers, "{f}")
    with pytest.raises(MasterUnknown, match="a:1: no node serves the slot of these keys"):
        await locate()
    answers |= {C: [shard(0, 16383, node("d", 4, "master"))], B: ConnectionError()}  # type: ignore[dict-item]
    assert await locate() == ("d", 4)
    assert locators[0] == A and C in locators


async def test_a_real_sentinel_without_the_master_is_an_error(server: Server) -> None:
    with watching(server.port) as sentinel:
        options = server.options(redis=f"redis+sentinel://127.0.0.1:{sentinel.port}/m")
        async with open_client(options) as client:
            await check(client, options)
        other = replace(options, service="other")
        async with open_client(other) as client:
            error = f"^127.0.0.1:{sentinel.port}: no master named 'other'$"
            with pytest.raises(RedisConnectionError, match=error):
                await check(client, other)


WATCHED = {
    "a password": (("requirepass s3cret",), "sentinel_password=s3cret"),
    "a user": (
        ("user default off", "user asks on >s3cret +@connection +sentinel|get-master-addr-by-name"),
        "sentinel_username=asks&sentinel_password=s3cret",
    ),
}


@pytest.mark.parametrize("name", WATCHED)
async def test_real_sentinels_with_a_password(server: Server, name: str) -> None:
    lines, right = WATCHED[name]
    with watching(server.port, *lines) as first, watching(server.port, *lines) as second:
        url = f"redis+sentinel://127.0.0.1:{first.port},127.0.0.1:{second.port}/m"
        await checked(server.options(redis=f"{url}?{right}"))
        for wrong in (
            "",
            f"?{right.replace('s3cret', 'wr0ng')}",
            "?sentinel_username=no&sentinel_password=x",
        ):
            error = await refused(server.options(redis=url + wrong))
            assert error.startswith(f"redis: {url}: 127.0.0.1:")
            assert error.count("password or user missing or rejected; see sentinel_username") == 2
            assert "s3cret" not in error and "wr0ng" not in error


async def test_the_password_of_sentinels_is_not_sent_to_the_server() -> None:
    with serving("--requirepass", "other") as server:
        lines = ("sentinel auth-pass m other", "requirepass s3cret")
        with watching(server.port, *lines) as sentinel:
            place = f"127.0.0.1:{sentinel.port}/m?sentinel_password=s3cret"
            await checked(server.options(redis=f"redis+sentinel://:other@{place}"))
            error = await refused(server.options(redis=f"redis+sentinel://:s3cret@{place}"))
            assert "rejects the password or user" in error and "--redis-password-file" in error


async def test_a_rejecting_sentinel_is_retried_like_an_unreachable_one(server: Server) -> None:
    """Other Sentinels may know the master; the error names the rejection."""
    with watching(server.port, "requirepass s3cret") as sentinel:
        url = f"redis+sentinel://127.0.0.1:{sentinel.port},127.0.0.1:{free_port()}/m"
        with pytest.raises(RedisConnectionError, match="missing or rejected; see sentinel_username"):
            await checked(server.options(redis=url))


async def test_a_server_by_tls(server: Server, tmp_path: Path) -> None:
    """Errors are the library's messages, which name the cause."""
    ours, stranger = Authority(tmp_path / "ours"), Authority(tmp_path / "others")
    shown = ours.issue()
    async with encrypted(server.port, ours.issue().context(clients_of=ours)) as port:
        url = f"rediss://127.0.0.1:{port}"
        known = {"redis": url, "redis_ca_file": ours.file, "redis_timeout_s": 10}
        files = {"redis_cert_file": shown.cert, "redis_cert_key_file": shown.key}
        await checked(server.options(**known, **files))
        for wrong in ({"redis_ca_file": stranger.file}, {"redis_ca_file": ""}):
            with pytest.raises(RedisConnectionError, match="certificate verify failed"):
                await checked(server.options(**{**known, **files, **wrong}))
        with pytest.raises(LOST):
            await checked(server.options(**known))  # without a certificate


async def test_sentinels_and_their_master_by_tls(server: Server, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = authority.issue().context()
    async with encrypted(server.port, context) as master:
        # The Sentinel asks the master while it starts: the TLS proxy for that runs in this loop.
        sentinel = await asyncio.to_thread((watched := watching(master, "requirepass s3cret")).__enter__)
        try:
            async with encrypted(sentinel.port, context) as port:
                url = f"rediss+sentinel://127.0.0.1:{port}/m?sentinel_password="
                known = {"redis_ca_file": authority.file, "redis_timeout_s": 10}
                await checked(server.options(redis=f"{url}s3cret", **known))
                assert "see sentinel_username" in await refused(server.options(redis=f"{url}wr0ng", **known))
        finally:
            await asyncio.to_thread(watched.__exit__, None, None, None)


async def test_a_server_outside_a_cluster_is_an_error(server: Server) -> None:
    url = f"redis+cluster://127.0.0.1:{server.port},127.0.0.1:{free_port()}"
    options = server.options(redis=url)
    async with open_client(options) as client:
        with pytest.raises(RedisConnectionError, match="cluster support disabled"):
            await check(client, options)
