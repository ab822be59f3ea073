"""A real gateway process between scripted workers and raw clients.

    Client ──bytes──► Gateway (python -m kvgate serve) ──bytes──► FakeWorker (this process)

Waiting is for events, or polling with a deadline; nothing sleeps for a fixed time.
"""

import contextlib
import ssl
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.support.blackbox.real_gateway import Gateway
from tests.support.blackbox.scripted_worker import FakeWorker, Script, answer_ok
from tests.support.blackbox.strict_client import Answer, Client
from tests.support.patience import until


@dataclass
class Bench:
    """A gateway, with a test's workers and clients; all is closed and checked at the end.

    `tls` is the clients' TLS context, None for plain HTTP.
    """

    gateway: Gateway
    tls: ssl.SSLContext | None = None
    workers: list[FakeWorker] = field(default_factory=list)
    clients: list[Client] = field(default_factory=list)

    async def worker(
        self, *models: str | dict[str, Any], script: Script = answer_ok, **how: Any
    ) -> FakeWorker:
        """Add a worker and wait until it has joined; by default it serves the model `m`."""
        worker = await FakeWorker(models or ("m",), script, **how).start()
        self.workers.append(worker)
        await self.gateway.join(worker)
        return worker

    async def client(self, *, small_buffer: bool = False) -> Client:
        client = await Client.open(self.gateway.port, small_buffer=small_buffer, tls=self.tls)
        self.clients.append(client)
        return client

    async def ask(self, data: bytes) -> Answer:
        """Send a request on a connection of its own: polls would use up the gateway's open files."""
        client = await Client.open(self.gateway.port, tls=self.tls)
        try:
            return await client.ask(data)
        finally:
            await client.close()

    async def nothing_in_flight(self) -> None:
        async def is_idle() -> bool:
            return await self.gateway.total("kvgate_worker_requests_in_flight") == 0

        await until(is_idle, "no requests in flight")
        endpoints = (await self.gateway.admin("GET", "/admin/workers")).json["endpoints"]
        loads = [(w["in_flight"], w["booked_tokens"]) for e in endpoints for w in e["workers"]]
        assert set(loads) <= {(0, 0)}, loads

    async def close(self) -> None:
        """Close clients and workers; whatever fails, none of them stays at a gateway of several tests."""
        async with contextlib.AsyncExitStack() as stack:  # in the opposite order
            for worker in self.workers:
                stack.push_async_callback(worker.die)
            if self.gateway.process.returncode is None:
                for worker in self.workers:
                    stack.push_async_callback(self.gateway.drop, worker)
                stack.push_async_callback(self.nothing_in_flight)
            for client in self.clients:
                stack.push_async_callback(client.close)
        faults: Iterable[object] = [f for worker in self.workers for f in worker.faults]
        assert not list(faults)


@contextlib.asynccontextmanager
async def lasting(*flags: str) -> AsyncIterator[Gateway]:
    """Gateway for several tests, each of which is `visiting` it."""
    gateway = await Gateway.start(*flags)
    try:
        yield gateway
    finally:
        code = await gateway.stop()
    assert code == 0, "\n".join(gateway.log)
    assert not gateway.faults(), "\n".join(gateway.faults())


@contextlib.asynccontextmanager
async def visiting(gateway: Gateway, tls: ssl.SSLContext | None = None) -> AsyncIterator[Bench]:
    """Use the shared gateway without workers; those that the test adds are dropped after it."""
    await gateway.repair()
    num_faults = len(gateway.faults())
    bench = Bench(gateway, tls)
    try:
        yield bench
    finally:
        await bench.close()
    assert gateway.process.returncode is None, "a test of a gateway of several ended it"
    assert not gateway.faults()[num_faults:], "\n".join(gateway.log[-40:])


@contextlib.asynccontextmanager
async def running(*flags: str, exit_code: int = 0, tls: ssl.SSLContext | None = None) -> AsyncIterator[Bench]:
    """Gateway of one test, with these flags."""
    gateway = await Gateway.start(*flags)
    bench = Bench(gateway, tls)
    try:
        yield bench
    finally:
        try:
            await bench.close()
        finally:
            code = await gateway.stop()
    assert code == exit_code, "\n".join(gateway.log)
    assert not gateway.faults(), "\n".join(gateway.log)
