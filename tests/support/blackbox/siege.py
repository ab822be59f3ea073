"""A gateway under attack, before simulated engines, and what must hold when the attack is over.

    attack ──► Gateway (python -m kvgate serve) ──► engines/sim        good clients meanwhile, and after

Whatever was done to it: the process is alive, good requests are answered, nothing is booked, memory and
descriptors are about what they were, and the log has neither a traceback nor an error. FULL=1 makes the
counts those that the benchmark of the same name promises; without it all attacks take a minute together.
"""

import asyncio
import contextlib
import json
import os
import re
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Iterator
from dataclasses import dataclass, field

from loadtest.fleet import SIM_READY, first_match
from loadtest.fleet import running as running_process
from tests.support.blackbox.http1_bytes import CHAT, Header, post
from tests.support.blackbox.real_gateway import Gateway
from tests.support.blackbox.strict_client import Answer, Client
from tests.support.patience import patience, until

IS_FULL = bool(os.environ.get("FULL"))
MAX_GROWTH_BYTES = 64 << 20
"""Growth over the steady state: bounded caches may fill meanwhile."""
SPARE_FILES = 24
"""Descriptors over the steady state: pooled connections to workers, probes under way."""
FORGED = "1999-12-31 23:59:59,000 INFO kvgate: forged"
ESCAPES = f"\x1b[2J\r\n{FORGED}\u2028"
"""Control characters in a name or an error's text: they must be escaped, and not become a line of the log."""
SIM_FLAGS = (
    "--prefill-tokens-per-s",
    "1000000",
    "--decode-tokens-per-s",
    "2000",
    "--mean-output-tokens",
    "4",
)


def count(reduced: int, full: int) -> int:
    return full if IS_FULL else reduced


def chat(text: str = "hello", **fields: object) -> bytes:
    body: dict[str, object] = {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 2}
    return json.dumps({**body, **fields}).encode()


@dataclass
class Siege:
    """Attack on a gateway; `expected` are log lines of the attack that look like faults."""

    gateway: Gateway
    engines: list[str]
    headers: tuple[Header, ...] = ()
    tls: ssl.SSLContext | None = None
    steady_bytes: int = 0
    steady_files: int = 0
    expected: str = "(?!)"
    open_sockets: list[socket.socket] = field(default_factory=list)

    async def good(self, text: str = "hello", **fields: object) -> Answer:
        """Send a well-meant request on its own connection; it must be answered."""
        client = await Client.open(self.gateway.port, tls=self.tls)
        try:
            answer = await client.ask(post(chat(text, **fields), *self.headers, target=CHAT))
        finally:
            await client.close()
        assert answer.status == 200, (answer.status, answer.body[:500])
        return answer

    async def ask(self, data: bytes) -> Answer:
        client = await Client.open(self.gateway.port, tls=self.tls)
        try:
            return await client.ask(data)
        finally:
            await client.close()

    async def keep_good(self, attack: Awaitable[object]) -> int:
        """Send good requests one after the other during the attack; returns how many were answered."""
        task = asyncio.get_running_loop().create_task(_awaited(attack))
        num = 0
        try:
            while not task.done() or not num:
                await self.good(f"meanwhile {num}")
                num += 1
                await asyncio.sleep(0.02)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        await task
        return num

    def connect(self, port: int = 0, *, path: str = "", reads_little: bool = False) -> socket.socket:
        """Open a raw connection that is closed at the end of the siege at the latest."""
        sock = socket.socket(socket.AF_UNIX if path else socket.AF_INET)
        if reads_little:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(patience(10))
        sock.connect(path or ("127.0.0.1", port or self.gateway.port))
        self.open_sockets.append(sock)
        return sock

    def disconnect(self) -> None:
        for sock in self.open_sockets:
            sock.close()
        self.open_sockets.clear()

    def num_files(self) -> int:
        return len(os.listdir(f"/proc/{self.gateway.process.pid}/fd"))

    async def settle(self) -> None:
        """Reach the steady state, against which growth is measured."""
        for number in range(50):
            await self.good(f"warm-up {number}")
        await self.nothing_booked()
        self.steady_bytes, self.steady_files = self.gateway.rss_bytes(), self.num_files()

    async def nothing_booked(self) -> None:
        async def is_idle() -> bool:
            endpoints = (await self.gateway.admin("GET", "/admin/workers")).json["endpoints"]
            return all(not (w["in_flight"] or w["booked_tokens"]) for e in endpoints for w in e["workers"])

        await until(is_idle, "nothing booked")

    def growth_mb(self) -> float:
        return (self.gateway.rss_bytes() - self.steady_bytes) / 1e6

    async def held(self) -> None:
        """Check the conditions that must hold when the attack is over."""
        self.disconnect()
        assert self.gateway.process.returncode is None, "\n".join(self.gateway.log[-40:])
        await self.good("after")
        await self.nothing_booked()
        most = self.steady_files + SPARE_FILES
        await until(lambda: self.num_files() <= most, f"{self.num_files()} files, {self.steady_files} before")
        grown = self.gateway.rss_bytes() - self.steady_bytes
        assert grown <= MAX_GROWTH_BYTES, f"grown by {grown / 1e6:.1f} MB"
        assert not self.faults(), "\n".join(self.faults()[:20])
        await self.no_controls_in_log()

    def faults(self) -> list[str]:
        return [line for line in self.gateway.faults() if not re.search(self.expected, line)]

    async def no_controls_in_log(self) -> None:
        for line in self.gateway.log:
            assert line.isprintable() and not line.startswith(FORGED), repr(line)


@contextlib.contextmanager
def engine(*flags: str) -> Iterator[str]:
    """Simulated engine; yields its URL."""
    with running_process("sim", "--port", "0", *SIM_FLAGS, *flags) as sim:
        yield first_match(sim, SIM_READY)[0]


@contextlib.asynccontextmanager
async def siege(
    *flags: str, num_engines: int = 1, headers: tuple[Header, ...] = (), expected: str = "(?!)"
) -> AsyncIterator[Siege]:
    """Gateway with engines that has served some requests; all conditions are checked at the end."""
    with contextlib.ExitStack() as stack:
        urls = [stack.enter_context(engine()) for _ in range(num_engines)]
        workers = [flag for url in urls for flag in ("--worker", url)]
        gateway = await Gateway.start(*workers, *flags)
        under = Siege(gateway, urls, headers, expected=expected)
        try:
            await until(lambda: is_ready(gateway), "the gateway is ready")
            await under.settle()
            yield under
            await under.held()
        finally:
            under.disconnect()  # a stop waits for those of an attack that failed
            code = await gateway.stop()
        assert code == 0, "\n".join(gateway.log[-40:])


async def _awaited(attack: Awaitable[object]) -> None:
    await attack


async def is_ready(gateway: Gateway) -> bool:
    return (await gateway.admin("GET", "/ready")).status == 200


def reset(sock: socket.socket) -> None:
    """Close with an RST, as a client that is killed."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def has_ended(sock: socket.socket) -> bool:
    """True if the gateway closed it, whatever it answered before."""
    sock.setblocking(False)
    try:
        while sock.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True
