"""With a real server."""

import asyncio

import pytest

from gateway.bookings.pubsub import MAX_UNSENT_BYTES, Listener, Speaker
from gateway.redis.client import LOST
from tests.redis.serving import Server, redis_server, server

__all__ = ["redis_server", "server"]
pytestmark = pytest.mark.process


async def test_what_is_said_is_heard_in_order(server: Server) -> None:
    speaker, listener = Speaker(server.options(), "ch"), Listener(server.options(), "ch", 1.0)
    await listener.open()
    speaker.say(b"to nobody: it is not open")
    await speaker.open()
    for number in range(50):
        speaker.say(b"%d" % number)
    await speaker.say_answered(b"50")
    assert [await listener.next() for _ in range(51)] == [b"%d" % number for number in range(51)]
    for line in (speaker, listener):
        await line.end()
        assert not line.is_open


async def test_a_lost_line_is_known_by_the_answer_and_opened_again(server: Server) -> None:
    speaker = Speaker(server.options(), "ch")
    await speaker.open()
    server.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    with pytest.raises(LOST):
        await speaker.say_answered(b"?")
    await speaker.close()
    await speaker.open()
    await speaker.say_answered(b"!")
    await speaker.end()


async def test_silence_is_a_loss(server: Server) -> None:
    listener = Listener(server.options(redis_timeout_s=0.05), "ch", 0.05)
    await listener.open()
    with pytest.raises(LOST):
        await listener.next()
    await listener.end()


async def test_what_redis_does_not_take_is_not_kept(server: Server) -> None:
    speaker = Speaker(server.options(), "ch")
    await speaker.open()
    with server.paused():
        for _ in range(200):
            speaker.say(bytes(MAX_UNSENT_BYTES // 10))
            await asyncio.sleep(0)
        assert speaker.num_unsaid > 100
    await speaker.end()


async def test_one_who_may_not_is_told_what_is_needed(server: Server) -> None:
    rights = ("~kvgate:*", "+@all", "-@dangerous", "+info")
    server.ask("ACL", "SETUSER", "narrow", "reset", "on", ">secret", "resetchannels", *rights)
    options = server.options(redis=server.url.replace("unix://", "unix://narrow:secret@"))
    speaker = Speaker(options, "kvgate:0:bookings")
    await speaker.open()
    with pytest.raises(ConnectionError, match="it needs &"):
        await speaker.say_answered(b"!")
    await speaker.close()
    server.ask("ACL", "SETUSER", "narrow", "&kvgate:*")
    listener = Listener(options, "kvgate:0:bookings", 1.0)
    await listener.open()
    await speaker.open()
    speaker.say(b"said")
    assert await listener.next() == b"said"
    for line in (speaker, listener):
        await line.end()
