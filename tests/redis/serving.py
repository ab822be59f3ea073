"""A real server per test module: `from tests.redis.serving import redis_server, server`.

server        empty for each test, and nothing of the test before lies in its way
redis_server  the same for all tests of the module, on a Unix socket and a free port of loopback
"""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from gateway.config import Config, load
from gateway.redis.options import RedisOptions, redis_of
from gateway.redis.server import EmbeddedServer


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


class Server(EmbeddedServer):
    """What tests do to one."""

    def direct(self) -> "redis.Redis":
        return redis.Redis(unix_socket_path=str(self.socket), protocol=2)

    def ask(self, *command: Any) -> Any:
        with self.direct() as client:
            return client.execute_command(*command)  # type: ignore[no-untyped-call]

    def names(self) -> set[str]:
        with self.direct() as client:
            return {key.decode() for key in client.scan_iter()}

    @contextmanager
    def paused(self) -> Iterator[None]:
        assert self.pid
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def config(self, **changes: Any) -> Config:
        return load({"redis": self.url, **changes}, environ={})

    def options(self, **changes: Any) -> RedisOptions:
        options = redis_of(self.config(**changes))
        assert options
        return options


@contextmanager
def serving(*flags: str) -> Iterator[Server]:
    server = Server(*flags, port=free_port())
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def redis_server() -> Iterator[Server]:
    with serving() as server:
        yield server


@pytest.fixture
def server(redis_server: Server) -> Server:
    redis_server.ask("FLUSHALL")
    return redis_server
