"""Gateways that take over from each other at one address, under load."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

from tests.support.blackbox.bench import Bench
from tests.support.blackbox.http1_bytes import DONE, SSE_HEAD, chunked, completion, event, post, request
from tests.support.blackbox.real_gateway import Gateway
from tests.support.blackbox.scripted_worker import Call, answer_ok
from tests.support.blackbox.strict_client import Answer, Client

PAUSE_S, SCRAPE_PAUSE_S = 0.005, 0.2


class Generations:
    """Gateways one after the other at one address, and the worker behind them."""

    def __init__(self, path: Path, *flags: str, tls: ssl.SSLContext | None = None) -> None:
        self.flags = ["--takeover-socket", str(path), *flags]
        self.tls = tls
        self.all: list[Gateway] = []
        self.bench: Bench

    @property
    def now(self) -> Gateway:
        return self.all[-1]

    async def begin(self, *flags: str) -> Bench:
        self.all.append(await Gateway.start(*self.flags, *flags))
        self.bench = Bench(self.now, self.tls)
        return self.bench

    async def upgrade(self, *flags: str) -> Gateway:
        """Start the next gateway; returns the old one, when it has begun to leave."""
        old = self.now
        self.all.append(await Gateway.start(*self.flags, *flags))
        await old.logged(rf"process {self.now.process.pid} has taken over")
        assert (self.now.port, self.now.admin_port) == (old.port, old.admin_port)
        self.bench.gateway = self.now
        return old


@contextlib.asynccontextmanager
async def generations(
    path: Path, *flags: str, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Generations]:
    """Generations that have all ended well at the end; the last is stopped."""
    upgrades = Generations(path, *flags, tls=tls)
    try:
        yield upgrades
    finally:
        try:
            await upgrades.bench.close()
        finally:
            codes = [await upgrades.now.stop()]
            codes += [await gateway.exited() for gateway in upgrades.all[:-1]]
    assert codes == [0] * len(codes)
    assert not [line for gateway in upgrades.all for line in gateway.faults()]


async def serve_all(call: Call) -> None:
    """Script with streams that end when the gateway asks for the end with a request of the same name."""
    if b'"stream":true' not in call.body.replace(b" ", b""):
        return await answer_ok(call)
    await call.send(SSE_HEAD + chunked(event("a"), end=False))
    await ENDS.setdefault(call.value(b"x-call") or b"", asyncio.Event()).wait()
    return await call.send(chunked(event("b"), DONE))


ENDS: dict[bytes, asyncio.Event] = {}


class Load:
    """Clients that ask some hundred times a second, again and again; each failure fails the test."""

    def __init__(self, gateway: Gateway) -> None:
        self.port, self.admin_port = gateway.port, gateway.admin_port
        self.num_answers = 0
        self.num_announced_ends = 0
        self._is_over = False

    @contextlib.asynccontextmanager
    async def of(self, *clients: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
        """Load of these clients: the first failure, theirs or the test's, ends all of them."""
        async with asyncio.TaskGroup() as tasks:
            for client in clients:
                tasks.create_task(client())
            yield
            self._is_over = True

    async def short_lived(self) -> None:
        while not self._is_over:
            client = await Client.open(self.port)
            self._check(await client.ask(post(completion())))
            await client.close()
            await asyncio.sleep(PAUSE_S)

    async def kept(self) -> None:
        """Reopen when the gateway has announced its close, and never otherwise."""
        while not self._is_over:
            client = await Client.open(self.port)
            while not self._is_over:
                answer = await client.ask(post(completion()))
                self._check(answer)
                if answer.value(b"connection") == b"close":
                    self.num_announced_ends += 1
                    await client.ends()
                    break
                await asyncio.sleep(PAUSE_S)
            await client.close()

    async def pausing(self) -> None:
        """Client that is idle most of the time, so that it is idle when a gateway leaves."""
        client = await Client.open(self.port)
        while not self._is_over:
            await asyncio.sleep(0.05)
            answer = await client.ask(request("GET", "/ready"))
            self._check(answer)
            if answer.value(b"connection") == b"close":
                await client.close()
                client = await Client.open(self.port)
        await client.close()

    async def pipelining(self) -> None:
        while not self._is_over:
            client = await Client.open(self.port)
            await client.send(post(completion()) * 3)
            for _ in range(3):
                self._check(await client.answer())
            await client.close()
            await asyncio.sleep(PAUSE_S)

    async def scraping(self) -> None:
        """Client of the admin port, on a connection that is kept as long as possible."""
        client = await Client.open(self.admin_port)
        while not self._is_over:
            answer = await client.ask(request("GET", "/metrics"))
            self._check(answer)
            if answer.value(b"connection") == b"close":
                await client.close()
                client = await Client.open(self.admin_port)
            await asyncio.sleep(SCRAPE_PAUSE_S)
        await client.close()

    def _check(self, answer: Answer) -> None:
        assert answer.status == 200, answer
        self.num_answers += 1
