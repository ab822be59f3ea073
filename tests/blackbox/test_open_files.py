"""Few open files: clients leave some to the admin port, to probes and to workers."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator

import pytest

from tests.support.blackbox import real_gateway
from tests.support.blackbox.bench import Bench, running
from tests.support.blackbox.http1_bytes import completion, post
from tests.support.blackbox.scripted_worker import Call, answer_ok
from tests.support.blackbox.strict_client import DEADLINE_S, Client
from tests.support.patience import until

pytestmark = pytest.mark.interpreted

LIMIT = 128
NUM_IDLE = 200
WAITS = "new clients wait: "


@contextlib.asynccontextmanager
async def with_few_files(monkeypatch: pytest.MonkeyPatch, *flags: str) -> AsyncIterator[Bench]:
    shell = ("sh", "-c", f'ulimit -n {LIMIT}; exec "$@"', "kvgate")
    monkeypatch.setattr(real_gateway, "GATEWAY", (*shell, *real_gateway.GATEWAY))
    async with running("--probe-interval-s", "0.2", "--keep-alive-s", "600", *flags) as bench:
        yield bench


@pytest.mark.parametrize("processes", [1, 2])
async def test_idle_clients_leave_files_for_other_connections(
    monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    async with with_few_files(monkeypatch, "--processes", str(processes)) as bench:
        worker = await bench.worker()
        idle = [await Client.open(bench.gateway.port) for _ in range(NUM_IDLE * processes)]
        await bench.gateway.logged(f"{WAITS}the rest of {LIMIT} open files is reserved")
        for _ in range(3):
            assert (await bench.gateway.admin("GET", "/health")).status == 200
            assert (await bench.gateway.admin("GET", "/metrics")).status == 200
            num_probes = len(worker.probes)
            await until(lambda before=num_probes: len(worker.probes) > before + 4, "probes go on")  # type: ignore[misc]
            assert await bench.gateway.is_up(worker)
        served = idle[0]  # one of the first clients; it needs a connection to the worker
        assert (await served.ask(post(completion()))).status == 200
        late = await Client.open(bench.gateway.port)
        await late.send(post(completion()))
        for client in idle:
            await client.close()
        async with asyncio.timeout(DEADLINE_S):
            assert (await late.answer()).status == 200
        await late.close()
        waits = [line for line in bench.gateway.log if WAITS in line]
        assert len(waits) == 1, "logged once"


async def test_active_clients_leave_files_for_other_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """All clients are active at once: some wait, none fails, and the admin port answers throughout."""

    async def slow(call: Call) -> None:
        await release.wait()
        await answer_ok(call)

    release = asyncio.Event()
    async with with_few_files(monkeypatch) as bench:
        worker = await bench.worker(script=slow)
        clients = [await Client.open(bench.gateway.port) for _ in range(100)]
        for client in clients:
            await client.send(post(completion(), (b"Connection", b"close")))
        await bench.gateway.logged(WAITS)
        assert (await bench.gateway.admin("GET", "/metrics")).status == 200
        num_probes = len(worker.probes)
        await until(lambda: len(worker.probes) > num_probes + 4, "probes go on")
        release.set()
        statuses = [(await client.answer()).status for client in clients]
        assert statuses == [200] * len(clients), "\n".join(bench.gateway.log[-30:])
        for client in clients:
            await client.close()


async def test_the_soft_limit_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = ("sh", "-c", f'ulimit -S -n {LIMIT}; ulimit -H -n 512; exec "$@"', "kvgate")
    monkeypatch.setattr(real_gateway, "GATEWAY", (*shell, *real_gateway.GATEWAY))
    async with running() as bench:
        assert [line for line in bench.gateway.log if re.search("open files limited to 512", line)]
        assert json.loads((await bench.gateway.admin("GET", "/health")).body) == {"status": "alive"}
