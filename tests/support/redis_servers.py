"""A real server per test module: `from tests.support.redis_servers import redis_server, server`.

redis_server  the same for all tests of the module, on a Unix socket and a free port of loopback; it cannot be
              killed, since tests of a module run in any order
server        that one, without the keys, users and limits of the test before
own_server    a server that one test may kill

Where the system has a `redis-server` of version 7 or newer, all such tests run on it too.

`sentinels` and `cluster` start several servers, of which one is the master of kvgate's keys.
"""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import redis
from redis.crc import key_slot

from gateway.config import Config, load
from gateway.redis.client import UnusableRedis, check, open_client
from gateway.redis.embedded import EmbeddedServer
from gateway.redis.options import RedisOptions, redis_of
from loadtest.ports import free_port
from tests.support.patience import wait_until


async def checked(options: RedisOptions) -> None:
    async with open_client(options) as client:
        await check(client, options)


async def refused(options: RedisOptions) -> str:
    """Error of the check."""
    with pytest.raises(UnusableRedis) as caught:
        await checked(options)
    return str(caught.value)


class Server(EmbeddedServer):
    """Server as tests use it."""

    @property
    def bus_port(self) -> int:
        """Port between the nodes of a Cluster."""
        return int(self._flags[self._flags.index("--cluster-port") + 1])

    def direct(self) -> redis.Redis:
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

    def kill(self) -> None:
        assert self.process
        self.process.kill()
        self.process.wait()

    def config(self, **changes: Any) -> Config:
        return load({"redis": self.url, **changes}, environ={})

    def options(self, **changes: Any) -> RedisOptions:
        """Options with a timeout that a busy machine does not reach."""
        options = redis_of(self.config(**{"redis_timeout_s": 30.0} | changes))
        assert options
        return options


@contextmanager
def serving(*flags: str, binary: str = "", kind: type[Server] = Server) -> Iterator[Server]:
    server = kind(*flags, port=free_port(), binary=binary)
    try:
        server.start()
        yield server
    finally:
        server.stop()


class SharedServer(Server):
    """Server of all tests of a module, which none of them may end."""

    def kill(self) -> None:
        raise AssertionError("other tests need this server: a test that kills one takes `own_server`")

    def restore(self) -> None:
        """Drop what a test may have left: keys, users and limits."""
        self.ask("CONFIG", "SET", "maxmemory", "0", "maxmemory-policy", "noeviction")
        for user in self.ask("ACL", "USERS"):
            if user != b"default":
                self.ask("ACL", "DELUSER", user)
        self.ask("FLUSHALL")


class Sentinel(Server):
    """Sentinel of the master `m`, at port `watched` of loopback; `more` are further lines of its
    configuration.
    """

    watched = 0
    more: tuple[str, ...] = ()

    def _arguments(self) -> list[str]:
        (file := self.directory / "conf").write_text(
            f"port {self.port}\nbind 127.0.0.1\nunixsocket {self.socket}\ndir {self.directory}\n"
            f"sentinel monitor m 127.0.0.1 {self.watched} 2\n"
            "sentinel down-after-milliseconds m 500\nsentinel failover-timeout m 4000\n"
            + "".join(f"{line}\n" for line in self.more)
        )
        return [str(file), "--sentinel"]


@contextmanager
def watching(port: int, *more: str) -> Iterator[Sentinel]:
    sentinel = Sentinel(port=free_port())
    sentinel.watched, sentinel.more = port, more
    try:
        sentinel.start()
        yield sentinel
    finally:
        sentinel.stop()


class Several:
    """Several servers; one of them is replaced by its replica."""

    def __init__(self, url: str, master: Server, replica: Server) -> None:
        self.url, self.master, self.replica = url, master, replica

    def is_replaced(self) -> bool:
        return b"role:master" in _raw(self.replica, "INFO", "replication")


@contextmanager
def sentinels() -> Iterator[Several]:
    with ExitStack() as stack:
        master = stack.enter_context(serving())
        follow = ("--replicaof", f"127.0.0.1 {master.port}", "--repl-diskless-sync-delay", "0")
        replica = stack.enter_context(serving(*follow))
        three = [stack.enter_context(watching(master.port)) for _ in range(3)]
        wait_until(lambda: b"master_link_status:up" in _raw(replica, "INFO", "replication"))
        wait_until(lambda: all(b"slaves=1,sentinels=3" in _raw(each, "INFO", "sentinel") for each in three))
        places = ",".join(f"127.0.0.1:{each.port}" for each in three)
        yield Several(f"redis+sentinel://{places}/m", master, replica)


@contextmanager
def cluster(tag: str) -> Iterator[Several]:
    """Cluster of three masters with a replica each; the two listed are those of the slot of `tag`."""
    with ExitStack() as stack:
        nodes = [stack.enter_context(serving(*_cluster_flags())) for _ in range(6)]
        bounds = [0, 5461, 10923, 16384]
        for i, node in enumerate(nodes):
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
            if i < 3:
                node.ask("CLUSTER", "ADDSLOTSRANGE", bounds[i], bounds[i + 1] - 1)
            for other in nodes[:i]:
                node.ask("CLUSTER", "MEET", "127.0.0.1", other.port, other.bus_port)
        wait_until(lambda: all(b"cluster_known_nodes:6" in _raw(node, "CLUSTER", "INFO") for node in nodes))
        for i in range(3):
            nodes[i + 3].ask("CLUSTER", "REPLICATE", nodes[i].ask("CLUSTER", "MYID").decode())
        wait_until(lambda: all(b"cluster_state:ok" in _raw(node, "CLUSTER", "INFO") for node in nodes))
        wait_until(lambda: all(b"link_status:up" in _raw(node, "INFO", "replication") for node in nodes[3:]))
        slot = key_slot(tag.encode())
        i = next(i for i in range(3) if slot < bounds[i + 1])
        places = ",".join(f"127.0.0.1:{nodes[(i + n) % 3].port}" for n in range(2))
        yield Several(f"redis+cluster://{places}", nodes[i], nodes[i + 3])


def _cluster_flags() -> tuple[str, ...]:
    return (
        *("--cluster-enabled", "yes", "--cluster-port", str(free_port()), "--cluster-node-timeout", "1000"),
        *("--cluster-replica-validity-factor", "0", "--repl-diskless-sync-delay", "0"),
    )


def _raw(server: Server, *command: str) -> bytes:
    """Raw answer of a command: the library's parsing of it differs by version."""
    with server.direct() as client:
        for name in command[:1] + (" ".join(command[:2]),):
            client.response_callbacks.pop(name, None)
        answer = client.execute_command(*command)  # type: ignore[no-untyped-call]
        return answer if isinstance(answer, bytes) else str(answer).encode()


def _system_servers() -> Iterator[str]:
    if binary := shutil.which("redis-server"):
        version_line = subprocess.run(
            [binary, "--version"], capture_output=True, text=True, check=True
        ).stdout
        version = re.search(r"v=(\d+)", version_line)
        if version and int(version[1]) >= 7:
            yield binary


@pytest.fixture(scope="module", params=["", *_system_servers()], ids=lambda binary: binary or "valkey")
def redis_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with serving(binary=request.param, kind=SharedServer) as server:
        yield server


@pytest.fixture
def server(redis_server: SharedServer) -> Server:
    redis_server.restore()
    return redis_server


@pytest.fixture
def own_server() -> Iterator[Server]:
    with serving() as server:
        yield server
