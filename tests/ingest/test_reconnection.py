"""Publishers that have libzmq end a connection while more of it waits than is read, by a heartbeat's timeout.

libzmq keeps the queue of a connection for the next one, unless it is asked not to, and aborts the whole
process where the reader makes room in it at that moment (zeromq/libzmq#3937). So the reader is a process.
"""

import asyncio
import contextlib
import random
import subprocess
import sys

import pytest
import zmq

from gateway.ingest.sockets import opened
from tests.support.patience import patience
from tests.support.zmtp import GREETING, ready

pytestmark = pytest.mark.process

NUM_CONNECTIONS = 20
BURST = b"\x00\x05hello" * 20_000


class SilentPublisher:
    """Sends more messages than a reader's queue holds to each connection, and answers no heartbeat."""

    def __init__(self) -> None:
        self.num_connections = 0

    async def start(self) -> str:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        writer.write(GREETING)
        await reader.readexactly(len(GREETING))
        writer.write(ready(b"PUB"))
        await reader.read(100)
        writer.write(BURST)
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await reader.read()
        writer.close()


async def read_slowly(endpoint: str, publisher: SilentPublisher) -> int:
    """Read until the publisher has cut enough connections; returns the number of messages."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket, num, pauses = opened(context, zmq.SUB, endpoint), 0, random.Random(1)
    socket.setsockopt(zmq.SUBSCRIBE, b"")
    socket.setsockopt(zmq.RECONNECT_IVL, 1)
    socket.setsockopt(zmq.HEARTBEAT_IVL, 20)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 60)
    socket.connect(endpoint)
    while publisher.num_connections < NUM_CONNECTIONS:
        for _ in range(8):
            if not int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
                break
            socket.recv(zmq.NOBLOCK)
            num += 1
        await asyncio.sleep(pauses.uniform(0.06, 0.08))  # just after the heartbeat's timeout
    context.destroy(linger=0)
    return num


async def main() -> None:
    publisher = SilentPublisher()
    async with asyncio.timeout(patience(60)):
        print("messages read:", await read_slowly(await publisher.start(), publisher))


def test_a_reader_survives_connections_that_end_while_its_queue_is_full() -> None:
    found = subprocess.run(
        [sys.executable, "-m", __name__], capture_output=True, text=True, timeout=patience(90)
    )
    assert found.returncode == 0, found.stderr
    assert int(found.stdout.rpartition(":")[2]) > NUM_CONNECTIONS, found.stdout


if __name__ == "__main__":
    asyncio.run(main())
