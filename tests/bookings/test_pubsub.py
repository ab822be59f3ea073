"""Publish and subscribe connections, on a real Redis server."""

import asyncio

import pytest

from gateway.bookings.pubsub import MAX_UNSENT_BYTES, PublishConnection, SubscribeConnection
from gateway.redis.client import LOST
from tests.support.redis_servers import Server, redis_server, server

__all__ = ["redis_server", "server"]
pytestmark = pytest.mark.process


async def test_published_messages_arrive_in_order(server: Server) -> None:
    publish_connection, listener = (
        PublishConnection(server.options(), "ch"),
        SubscribeConnection(server.options(), "ch", 1.0),
    )
    await listener.open()
    publish_connection.publish(b"dropped: not open yet")
    await publish_connection.open()
    for number in range(50):
        publish_connection.publish(b"%d" % number)
    await publish_connection.publish_confirmed(b"50")
    assert [await listener.next() for _ in range(51)] == [b"%d" % number for number in range(51)]
    for connection in (publish_connection, listener):
        await connection.end()
        assert not connection.is_open


async def test_a_lost_connection_is_noticed_by_its_answer_and_opened_again(server: Server) -> None:
    publish_connection = PublishConnection(server.options(), "ch")
    await publish_connection.open()
    server.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    with pytest.raises(LOST):
        await publish_connection.publish_confirmed(b"?")
    await publish_connection.close()
    await publish_connection.open()
    await publish_connection.publish_confirmed(b"!")
    await publish_connection.end()


async def test_a_silent_subscription_is_lost(server: Server) -> None:
    listener = SubscribeConnection(server.options(redis_timeout_s=30), "ch", 0.05)
    await listener.open()
    listener._connection.socket_timeout = 0.05  # from now on: a busy machine may open it late
    with pytest.raises(LOST):
        await listener.next()
    await listener.end()


async def test_messages_that_redis_does_not_read_are_dropped(server: Server) -> None:
    publish_connection = PublishConnection(server.options(), "ch")
    await publish_connection.open()
    with server.paused():
        for _ in range(200):
            publish_connection.publish(bytes(MAX_UNSENT_BYTES // 10))
            await asyncio.sleep(0)
        assert publish_connection.num_unsent > 100
    await publish_connection.end()


async def test_a_user_without_the_channel_gets_the_missing_right(server: Server) -> None:
    rights = ("~kvgate:*", "+@all", "-@dangerous", "+info")
    server.ask("ACL", "SETUSER", "narrow", "reset", "on", ">secret", "resetchannels", *rights)
    options = server.options(redis=server.url.replace("unix://", "unix://narrow:secret@"))
    publish_connection = PublishConnection(options, "kvgate:0:bookings")
    await publish_connection.open()
    with pytest.raises(ConnectionError, match="it needs &"):
        await publish_connection.publish_confirmed(b"!")
    await publish_connection.close()
    server.ask("ACL", "SETUSER", "narrow", "&kvgate:*")
    listener = SubscribeConnection(options, "kvgate:0:bookings", 1.0)
    await listener.open()
    await publish_connection.open()
    publish_connection.publish(b"said")
    assert await listener.next() == b"said"
    for connection in (publish_connection, listener):
        await connection.end()
