"""A gateway process with an API server of Kubernetes, and workers as its pods."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from tests.support.blackbox.bench import Bench, running
from tests.support.blackbox.http1_bytes import completion, post
from tests.support.blackbox.scripted_worker import FakeWorker
from tests.support.kube_api import PODS, KubeApi, pod
from tests.support.patience import until

BY_LABEL = "k8s://llm/pods?app=vllm&port=http"


@dataclass
class Cluster:
    """A gateway with its API server, and workers as pods."""

    api: KubeApi
    bench: Bench
    source: str = BY_LABEL

    async def worker(self, name: str, *, uid: str = "") -> FakeWorker:
        """Start a worker as a pod, and wait until it has joined."""
        worker = await self.started()
        self.api.put(PODS, pod(name, port=worker.port, uid=uid))
        await self.joined(worker)
        return worker

    async def started(self) -> FakeWorker:
        worker = await FakeWorker().start()
        self.bench.workers.append(worker)
        return worker

    async def joined(self, worker: FakeWorker) -> None:
        await until(lambda: self.bench.gateway.is_up(worker), f"{worker.url} joined")

    async def left(self, worker: FakeWorker) -> None:
        async def is_gone() -> bool:
            return await self.bench.gateway.endpoint(worker) is None

        await until(is_gone, f"{worker.url} left")

    async def status(self) -> int:
        return (await self.bench.ask(post(completion()))).status

    async def last_error(self) -> str:
        (name,) = (await self.bench.gateway.admin("GET", "/admin/workers")).json["sources"]
        return str(name["last_error"])

    async def watched(self, num: int = 1) -> None:
        await until(lambda: self.api.num_watches >= num, f"{num} watches")


@contextlib.asynccontextmanager
async def cluster(source: str, *flags: str, **how: Any) -> AsyncIterator[Cluster]:
    """Gateway with a source; `how` is how the API server answers from the start."""
    api = await KubeApi(**how).start()
    options = [
        *("--worker", source, "--probe-interval-s", "0.2"),
        f"KVGATE_KUBERNETES_API_SERVER={api.url}",
        *("KVGATE_KUBERNETES_SILENCE_S=20", *flags),
    ]
    try:
        async with running(*options) as bench:
            yield Cluster(api, bench, source)
    finally:
        await api.stop()
