"""A gateway process before a real API server, with the rights that the chart gives it; workers are pods."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtest.ports import free_port
from tests.support.blackbox.bench import Bench, running
from tests.support.blackbox.http1_bytes import completion, post
from tests.support.blackbox.scripted_worker import FakeWorker
from tests.support.chart import GOLDEN, manifests
from tests.support.kube_api import PODS, pod
from tests.support.kube_drift import HELD
from tests.support.patience import until
from tests.support.real_cluster import RealCluster

ACCESS = ("ServiceAccount", "Role", "RoleBinding")
ACCOUNT = "/api/v1/namespaces/llm/serviceaccounts/kvgate"
BINDING = "/apis/rbac.authorization.k8s.io/v1/namespaces/llm/rolebindings/kvgate"


class Relay:
    """The gateway's way to the API server, which a test cuts without a change of the server."""

    def __init__(self, port: int) -> None:
        self.port = free_port()
        self._target = port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)

    async def cut(self) -> None:
        """Reset all connections, and refuse others until it opens again."""
        assert self._server
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await until(lambda: not self._writers, "no connection is left")

    async def reset(self) -> None:
        """Reset all connections once."""
        await self.cut()
        await self.open()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with contextlib.suppress(OSError):
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
            self._writers.add(back)
            await asyncio.gather(_pumped(reader, back), _pumped(there, writer))
            self._writers.discard(back)
        self._writers.discard(writer)
        writer.transport.abort()


async def _pumped(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()


@dataclass
class RealKube:
    """A gateway with a real API server, behind a relay; `token_file` has the token that it uses."""

    cluster: RealCluster
    bench: Bench
    relay: Relay
    token_file: Path
    statuses: list[int] = field(default_factory=list)

    async def started(self) -> FakeWorker:
        worker = await FakeWorker().start()
        self.bench.workers.append(worker)
        return worker

    async def worker(self, name: str) -> FakeWorker:
        """Start a worker as a pod, and wait until it has joined."""
        worker = await self.started()
        self.pod(name, worker)
        await self.joined(worker)
        return worker

    def pod(self, name: str, worker: FakeWorker, **changes: Any) -> None:
        """Write a worker's pod, which stays until its containers have ended."""
        found = pod(name, port=worker.port, **changes)
        found["metadata"]["finalizers"] = [HELD]
        self.cluster.pod(PODS, found)

    async def joined(self, worker: FakeWorker, seconds: float = 20.0) -> None:
        await until(lambda: self.bench.gateway.is_up(worker), f"{worker.url} joined", seconds)

    async def left(self, worker: FakeWorker, seconds: float = 20.0) -> None:
        async def is_gone() -> bool:
            return await self.bench.gateway.endpoint(worker) is None

        await until(is_gone, f"{worker.url} left", seconds)

    async def status(self) -> int:
        return (await self.bench.ask(post(completion()))).status

    async def last_error(self) -> str:
        (name,) = (await self.bench.gateway.admin("GET", "/admin/workers")).json["sources"]
        return str(name["last_error"])

    async def fails_with(self, words: str) -> None:
        """Wait until the gateway names a reason."""

        async def is_named() -> bool:
            return words in await self.last_error()

        await until(is_named, f"last_error names {words!r}")

    async def relists(self, reason: str) -> float:
        samples = (await self.bench.gateway.metrics()).items()
        return sum(
            value
            for name, value in samples
            if name.startswith("kvgate_kube_relists_total{") and f'reason="{reason}"' in name
        )

    @contextlib.asynccontextmanager
    async def load(self) -> AsyncIterator[None]:
        """Send requests one after the other meanwhile; each of them must be answered."""
        has_ended = asyncio.Event()

        async def send() -> None:
            while not has_ended.is_set():
                self.statuses.append(await self.status())

        async with asyncio.TaskGroup() as senders:
            for _ in range(4):
                senders.create_task(send())
            try:
                yield
            finally:
                has_ended.set()
        assert len(self.statuses) > 20 and set(self.statuses) == {200}


@contextlib.asynccontextmanager
async def real_kube(cluster: RealCluster, source: str, render: str, *flags: str) -> AsyncIterator[RealKube]:
    """A gateway of `source` with the service account of a render of the chart."""
    access = [each for each in manifests(GOLDEN / f"{render}.yaml") if each["kind"] in ACCESS]
    await asyncio.to_thread(cluster.apply, *access)
    token_file = cluster.home / "token"
    token_file.write_text(cluster.token("llm", "kvgate"))
    relay = Relay(cluster.port)
    await relay.open()
    options = [
        *("--worker", source, "--probe-interval-s", "0.2"),
        f"KVGATE_KUBERNETES_API_SERVER=https://127.0.0.1:{relay.port}",
        f"KVGATE_KUBERNETES_TOKEN_FILE={token_file}",
        f"KVGATE_KUBERNETES_CA_FILE={cluster.ca_file}",
        *flags,
    ]
    try:
        async with running(*options) as bench:
            yield RealKube(cluster, bench, relay, token_file)
    finally:
        await relay.cut()
        await asyncio.to_thread(cluster.withdraw, *access)
