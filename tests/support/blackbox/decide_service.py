"""A gateway process with the decision service, and its workers."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from loadtest.ports import free_port
from tests.support.blackbox.scripted_worker import FakeWorker
from tests.support.gateway_process import GatewayProcess
from tests.support.patience import until


class Service:
    """A gateway process with the decision service, and its workers."""

    def __init__(self, gateway: GatewayProcess, port: int, workers: list[FakeWorker]) -> None:
        self.gateway, self.workers = gateway, workers
        self.target = f"127.0.0.1:{port}"

    async def in_flight(self) -> int:
        return await asyncio.to_thread(self.gateway.in_flight)

    async def is_free(self) -> bool:
        return await self.in_flight() == 0

    async def counts(self, kind: str) -> bool:
        metrics = await asyncio.to_thread(self.gateway.metrics)
        return f'kvgate_decide_events_total{{kind="{kind}"}}' in metrics


@asynccontextmanager
async def service(num_workers: int, *flags: str, port: int = 0) -> AsyncIterator[Service]:
    workers = [await FakeWorker().start() for _ in range(num_workers)]
    port = port or free_port()
    given = [flag for worker in workers for flag in ("--worker", worker.url)]
    gateway = GatewayProcess(*given, "--epp-port", str(port), *flags)
    await asyncio.to_thread(gateway.__enter__)
    try:
        await until(lambda: asyncio.to_thread(gateway.is_ready), "the workers have joined")
        yield Service(gateway, port, workers)
        gc.collect()  # what grpc leaves behind is reported in its own test
    finally:
        await asyncio.to_thread(gateway.__exit__, None, None, None)
        for worker in workers:
            await worker.die()
