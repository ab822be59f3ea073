"""Connections to an agent's gRPC port that stall at every stage: other readers and the agent go on."""

import contextlib
import socket
import struct
from collections.abc import Iterator

import pytest

from gateway.agent.service import MAX_READERS
from gateway.replication.agent_feed import describe, metadata, open_channel
from gateway.replication.agent_targets import Agents
from gateway.replication.codec import SERVICE, LogRequest, encode_request
from gateway.replication.messages import AgentHello
from tests.support.blackbox.siege import count
from tests.support.patience import until
from tests.support.stories.agent_serving import Served, served

NUM = count(50, 500)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\0\0\0\4\0\0\0\0\0"
TOKEN = "s3cret"


def literal(name: bytes, value: bytes) -> bytes:
    """Header that HPACK does not compress."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def begun(number: int) -> bytes:
    """Head of a call without a message."""
    fields = (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", f"/{SERVICE}/Subscribe".encode()),
        (b":authority", b"a"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    )
    head = b"".join(literal(*field) for field in fields)
    return struct.pack(">I", len(head))[1:] + b"\1\4" + struct.pack(">I", 2 * number + 1) + head


STAGES = {
    "nothing": b"",
    "half a preface": PREFACE[:10],
    "a preface": PREFACE,
    "no call": PREFACE + SETTINGS,
    "half a head": PREFACE + SETTINGS + begun(0)[:20],
    "calls without a message": PREFACE + SETTINGS + b"".join(begun(number) for number in range(20)),
}


@contextlib.contextmanager
def stalled(port: int, data: bytes) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for _ in range(NUM):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", port), 10))
            sock.sendall(data)
        yield


async def goes_on(s: Served, agents: Agents) -> None:
    """Check that other readers are described to, and read new events."""
    async with open_channel(f"127.0.0.1:{s.port}", agents) as channel:
        assert isinstance(await describe(channel, agents, 0, 20), AgentHello)
    async with s.read(agents) as read:
        assert isinstance(await read(), AgentHello)


@pytest.mark.parametrize("token", [None, TOKEN])
@pytest.mark.parametrize("stage", STAGES)
async def test_stalled_connections_keep_no_reader_out(stage: str, token: str | None) -> None:
    async with served(token=token) as s:
        s.store(3)
        with stalled(s.port, STAGES[stage]):
            await goes_on(s, Agents(token=token))


async def test_unread_streams_keep_no_reader_out() -> None:
    agents = Agents()
    async with served(Served(max_bytes=200_000)) as s, contextlib.AsyncExitStack() as stack:
        s.store(3)
        channel = await stack.enter_async_context(open_channel(f"127.0.0.1:{s.port}", agents))
        subscribe = channel.unary_stream(f"/{SERVICE}/Subscribe")
        wish = encode_request(LogRequest(1, 0))
        calls = [subscribe(wish, metadata=metadata(agents)) for _ in range(MAX_READERS // 2)]
        await until(lambda: len(s.rank.changed) == len(calls), "all of them subscribe")
        for _ in range(20):
            s.churn(10, blocks=1000)
            await goes_on(s, agents)
        assert s.rank.journal._num_bytes <= 200_000
        for call in calls:
            call.cancel()
        await until(lambda: not s.rank.changed, "they are forgotten")
