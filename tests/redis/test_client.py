"""A connection to a real server: what is refused, with which words."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
import uvloop

from gateway.bookings.pubsub import PublishConnection
from gateway.redis.client import LOST, open_client
from gateway.redis.keys import SCHEMA
from loadtest.ports import free_port
from tests.redis.serving import Server, checked, redis_server, refused, server, serving

__all__ = ["redis_server", "server"]
pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]


async def test_the_schema_is_written_and_found_again(server: Server) -> None:
    for _ in range(2):
        await checked(server.options(redis_prefix="f"))
        assert server.names() == {"f:schema"}
        assert server.ask("GET", "f:schema") == SCHEMA


@pytest.mark.parametrize("found", ["kvgate:0", "kvgate:2", "somebody else's"])
async def test_another_schema_is_refused_and_left_alone(server: Server, found: str) -> None:
    server.ask("SET", "kvgate:schema", found)
    told = await refused(server.options())
    assert f"is '{found}'" in told and f"'{SCHEMA.decode()}'" in told
    assert "kvgate index drop --all --redis unix://" in told and "--redis-prefix kvgate" in told
    assert server.ask("GET", "kvgate:schema") == found.encode()
    await checked(server.options(redis_prefix="other"))


async def test_a_key_of_another_type_is_a_foreign_schema(server: Server) -> None:
    server.ask("LPUSH", "kvgate:schema", "x")
    assert "a key of another type" in await refused(server.options())


async def test_a_password_that_is_missing_or_wrong(tmp_path: Path) -> None:
    (file := tmp_path / "password").write_text("secret")
    with serving("--requirepass", "secret") as server:
        host = f"127.0.0.1:{server.port}"
        for url in (f"redis://{host}", f"redis://:wr0ng@{host}", f"redis://nobody:wr0ng@{host}"):
            told = await refused(server.options(redis=url))
            assert "rejects the password or user" in told and host in told and "wr0ng" not in told
        assert "rejects the password or user" in await refused(server.options())  # by its Unix socket
        await checked(server.options(redis=f"redis://:secret@{host}"))
        await checked(server.options(redis=f"redis://{host}", redis_password_file=str(file)))


async def test_a_user_who_may_not_write_there(server: Server) -> None:
    server.ask("ACL", "SETUSER", "reader", "on", ">pw", "~other:*", "+@all")
    url = f"redis://reader:pw@127.0.0.1:{server.port}"
    try:
        told = await refused(server.options(redis=url))
        assert "may not write kvgate:*" in told and "~kvgate:* &kvgate:* +@all -@dangerous +info" in told
        await checked(server.options(redis=url, redis_prefix="other"))
    finally:
        server.ask("ACL", "DELUSER", "reader")


async def test_the_rights_that_the_message_names_are_enough(server: Server) -> None:
    server.ask("ACL", "SETUSER", "ours", "on", ">pw", "~kvgate:*", "+@all", "-@dangerous", "+info")
    try:
        await checked(server.options(redis=f"redis://ours:pw@127.0.0.1:{server.port}"))
    finally:
        server.ask("ACL", "DELUSER", "ours")


async def test_a_server_that_evicts_is_warned_of(server: Server, caplog: Any) -> None:
    server.ask("CONFIG", "SET", "maxmemory", "100mb", "maxmemory-policy", "allkeys-lru")
    try:
        await checked(server.options())
    finally:
        server.ask("CONFIG", "SET", "maxmemory", "0", "maxmemory-policy", "noeviction")
    assert re.search("evicts keys .maxmemory-policy allkeys-lru.", caplog.text)


async def test_databases_are_apart(server: Server) -> None:
    await checked(server.options(redis=f"redis://127.0.0.1:{server.port}/3"))
    assert server.names() == set()


async def test_a_server_that_is_not_there(server: Server) -> None:
    with pytest.raises(LOST):
        await checked(server.options(redis=f"redis://127.0.0.1:{free_port()}"))


async def test_a_server_that_does_not_answer_is_not_waited_for(server: Server) -> None:
    with server.paused(), pytest.raises(LOST):
        await checked(server.options(redis_timeout_s=0.05))
    await checked(server.options())


def test_a_connection_that_the_server_has_closed_is_lost_on_the_gateways_own_loop(server: Server) -> None:
    """uvloop raises RuntimeError for what is written to a connection that it has seen the end of."""

    async def use() -> None:
        async with open_client(server.options(), max_connections=1) as client:
            connection = await client.connection_pool.get_connection()
            connection._writer.transport.abort()
            await asyncio.sleep(0.01)
            with pytest.raises(LOST):
                await connection.send_packed_command([b"*1\r\n$4\r\nPING\r\n"], check_health=False)
            await client.connection_pool.release(connection)
            assert await client.ping()

    uvloop.run(use())


def test_what_is_said_on_a_line_that_the_server_has_closed_is_counted(server: Server) -> None:
    async def say() -> None:
        speaker = PublishConnection(server.options(), "kvgate:0:bookings")
        await speaker.open()
        speaker._connection._writer.transport.abort()
        await asyncio.sleep(0.01)
        speaker.publish(b"lost")
        assert speaker.num_unsent == 1
        with pytest.raises(LOST):
            await speaker.publish_confirmed(b"lost")
        await speaker.end()

    uvloop.run(say())
