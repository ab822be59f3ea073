"""Connection to a real server, and the messages of its errors."""

import re
from pathlib import Path
from typing import Any

import pytest
import uvloop

from gateway.bookings.pubsub import PublishConnection
from gateway.redis.client import LOST, open_client
from gateway.redis.keys import SCHEMA
from loadtest.ports import free_port
from tests.support.patience import until
from tests.support.redis_servers import Server, checked, redis_server, refused, server, serving

__all__ = ["redis_server", "server"]
pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]


async def test_the_schema_is_written_and_found_again(server: Server) -> None:
    for _ in range(2):
        await checked(server.options(redis_prefix="f"))
        assert server.names() == {"f:schema"}
        assert server.ask("GET", "f:schema") == SCHEMA


@pytest.mark.parametrize("found", ["kvgate:0", "kvgate:2", "somebody else's"])
async def test_another_schema_is_rejected_and_left_alone(server: Server, found: str) -> None:
    server.ask("SET", "kvgate:schema", found)
    error = await refused(server.options())
    assert f"is '{found}'" in error and f"'{SCHEMA.decode()}'" in error
    assert "kvgate index drop --all --redis unix://" in error and "--redis-prefix kvgate" in error
    assert server.ask("GET", "kvgate:schema") == found.encode()
    await checked(server.options(redis_prefix="other"))


async def test_a_key_of_another_type_is_a_foreign_schema(server: Server) -> None:
    server.ask("LPUSH", "kvgate:schema", "x")
    assert "a key of another type" in await refused(server.options())


async def test_a_missing_or_wrong_password_is_rejected(tmp_path: Path) -> None:
    (file := tmp_path / "password").write_text("secret")
    with serving("--requirepass", "secret") as server:
        host = f"127.0.0.1:{server.port}"
        for url in (f"redis://{host}", f"redis://:wr0ng@{host}", f"redis://unknown:wr0ng@{host}"):
            error = await refused(server.options(redis=url))
            assert "rejects the password or user" in error and host in error and "wr0ng" not in error
        assert "rejects the password or user" in await refused(server.options())  # by its Unix socket
        await checked(server.options(redis=f"redis://:secret@{host}"))
        await checked(server.options(redis=f"redis://{host}", redis_password_file=str(file)))


async def test_a_user_without_write_permission_is_rejected(server: Server) -> None:
    server.ask("ACL", "SETUSER", "reader", "on", ">pw", "~other:*", "+@all")
    url = f"redis://reader:pw@127.0.0.1:{server.port}"
    try:
        error = await refused(server.options(redis=url))
        assert "may not write kvgate:*" in error and "~kvgate:* &kvgate:* +@all -@dangerous +info" in error
        await checked(server.options(redis=url, redis_prefix="other"))
    finally:
        server.ask("ACL", "DELUSER", "reader")


async def test_the_permissions_of_the_message_are_enough(server: Server) -> None:
    server.ask("ACL", "SETUSER", "ours", "on", ">pw", "~kvgate:*", "+@all", "-@dangerous", "+info")
    try:
        await checked(server.options(redis=f"redis://ours:pw@127.0.0.1:{server.port}"))
    finally:
        server.ask("ACL", "DELUSER", "ours")


async def test_a_server_that_evicts_is_logged(server: Server, caplog: Any) -> None:
    server.ask("CONFIG", "SET", "maxmemory", "100mb", "maxmemory-policy", "allkeys-lru")
    try:
        await checked(server.options())
    finally:
        server.ask("CONFIG", "SET", "maxmemory", "0", "maxmemory-policy", "noeviction")
    assert re.search("evicts keys .maxmemory-policy allkeys-lru.", caplog.text)


async def test_databases_are_separate(server: Server) -> None:
    await checked(server.options(redis=f"redis://127.0.0.1:{server.port}/3"))
    assert server.names() == set()


async def test_an_unreachable_server_is_an_error(server: Server) -> None:
    with pytest.raises(LOST):
        await checked(server.options(redis=f"redis://127.0.0.1:{free_port()}"))


async def test_a_silent_server_times_out(server: Server) -> None:
    with server.paused(), pytest.raises(LOST):
        await checked(server.options(redis_timeout_s=0.05))
    await checked(server.options())


def test_a_connection_closed_by_the_server_is_lost_on_uvloop(server: Server) -> None:
    """uvloop raises RuntimeError for a write to a connection after its end."""

    async def use() -> None:
        async with open_client(server.options(), max_connections=1) as client:
            connection = await client.connection_pool.get_connection()
            connection._writer.transport.abort()
            await until(connection._reader.at_eof)
            with pytest.raises(LOST):
                await connection.send_packed_command([b"*1\r\n$4\r\nPING\r\n"], check_health=False)
            await client.connection_pool.release(connection)
            assert await client.ping()

    uvloop.run(use())


def test_a_message_on_a_closed_connection_is_counted_as_unsent(server: Server) -> None:
    async def say() -> None:
        speaker = PublishConnection(server.options(), "kvgate:0:bookings")
        await speaker.open()
        speaker._connection._writer.transport.abort()
        await until(speaker._connection._reader.at_eof)
        speaker.publish(b"lost")
        assert speaker.num_unsent == 1
        with pytest.raises(LOST):
            await speaker.publish_confirmed(b"lost")
        await speaker.end()

    uvloop.run(say())
