"""Redis connections of bookings: one to publish, without waiting for replies, and one to subscribe.

Messages with changes are written without asking for a reply: some 10 us each, where an awaited command costs
80. Snapshots are awaited, which detects a lost connection.
"""

import asyncio
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import NoPermissionError

from gateway.redis.cancellation import preserve_cancellation
from gateway.redis.client import open_client
from gateway.redis.options import RedisOptions

MAX_UNSENT_BYTES = 1 << 20
"""Unsent bytes at which further messages are dropped; the next snapshot makes up for them."""
_NO_ANSWER = b"*3\r\n$6\r\nCLIENT\r\n$5\r\nREPLY\r\n$4\r\nSKIP\r\n"


class _RedisConnection:
    """Redis connection that can be opened and closed repeatedly. Raises one of `redis.client.LOST`."""

    def __init__(self, options: RedisOptions, channel: str, block_s: float = 0.0) -> None:
        self.channel = channel
        self._client: Redis = open_client(options, max_connections=1, block_s=block_s)
        self._connection: Any = None

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    async def open(self) -> None:
        pool: Any = self._client.connection_pool
        with preserve_cancellation():
            self._connection = await pool.get_connection()

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            if (writer := connection._writer) and writer.transport.get_write_buffer_size():
                writer.transport.abort()  # unsent data: a Redis that hangs must not delay us
            await connection.disconnect(nowait=True)
            await self._client.connection_pool.release(connection)

    async def end(self) -> None:
        await self.close()
        await self._client.aclose()

    async def ask(self, *command: Any) -> Any:
        """Send a command and return its reply."""
        connection = self._connection
        try:
            with preserve_cancellation():
                await connection.send_packed_command(connection.pack_command(*command), check_health=False)
                return await connection.read_response()
        except NoPermissionError as exc:
            raise ConnectionError(f"{exc}; for bookings it needs &{self.channel}") from exc


class PublishConnection(_RedisConnection):
    def __init__(self, options: RedisOptions, channel: str) -> None:
        super().__init__(options, channel)
        self.num_unsent = 0

    def publish(self, data: bytes) -> None:
        """Publish to all subscribers; dropped where the connection is closed."""
        self.write("PUBLISH", self.channel, data)

    def write(self, *command: Any) -> None:
        """Send a command without a reply."""
        if self._connection is None:
            return
        writer: asyncio.StreamWriter | None = self._connection._writer  # its own method costs a task switch
        if writer is None or writer.transport.is_closing():  # the server has just closed it
            self.num_unsent += 1
            return
        if writer.transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self.num_unsent += 1
            return
        writer.write(_NO_ANSWER + b"".join(self._connection.pack_command(*command)))

    async def publish_confirmed(self, data: bytes) -> None:
        await self.ask("PUBLISH", self.channel, data)


class SubscribeConnection(_RedisConnection):
    """Subscriber of the bookings channel. `silence_s`: the longest time between two messages."""

    def __init__(self, options: RedisOptions, channel: str, silence_s: float) -> None:
        super().__init__(options, channel, silence_s)

    async def open(self) -> None:
        await super().open()
        await self.ask("SUBSCRIBE", self.channel)

    async def next(self) -> bytes:
        while True:
            with preserve_cancellation():
                reply = await self._connection.read_response()
            if reply[0] == b"message":
                data: bytes = reply[2]
                return data
