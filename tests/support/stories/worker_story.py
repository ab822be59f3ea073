"""A gateway in this process before simulated workers that die, drain and come back."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import msgspec

from engines.sim import Sim, SimConfig
from gateway.app import Gateway
from gateway.config import config_of
from tests.support.patience import patience, until

SIM = SimConfig(decode_tokens_per_s=200.0, prefill_tokens_per_s=1e6, shutdown_s=20.0)


class WorkerStory:
    def __init__(self, gateway: Gateway, sims: list[Sim], session: aiohttp.ClientSession) -> None:
        self.gateway, self.sims, self.session = gateway, sims, session
        self.answered: Counter[str] = Counter()
        self.failed: list[str] = []

    async def ask(
        self, num_tokens: int = 10, *, stream: bool = True, seed: int = 0, prompt: Sequence[int] = ()
    ) -> str:
        """The worker that answered completely, or "" after a failure, which `failed` lists."""
        ids = [*prompt] or [seed + 3, 4, 5]
        body = {"model": "m", "prompt": ids, "max_tokens": num_tokens, "ignore_eos": True}
        url = f"http://127.0.0.1:{self.gateway.port}/v1/completions"
        async with self.session.post(url, json=body | {"stream": stream}) as answer:
            data = await answer.read()
            if answer.status != 200 or (stream and (b"[DONE]" not in data or b'"error"' in data)):
                self.failed.append(f"{answer.status}: {data[:300]!r}")
                return ""
            worker = answer.headers["x-kvgate-worker"]
            self.answered[worker] += 1
            return worker

    def start(self, coro: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return asyncio.get_running_loop().create_task(coro)

    async def keep_asking(self, seed: int, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self.ask(stream=seed % 2 == 0, seed=seed)

    async def admin(self, path: str, method: str = "GET", **options: Any) -> Any:
        url = f"http://127.0.0.1:{self.gateway.admin_port}{path}"
        async with self.session.request(method, url, **options) as answer:
            return await answer.json()

    async def worker(self, sim: Sim) -> dict[str, Any]:
        view = await self.admin("/admin/workers")
        found: dict[str, Any] = next(e for e in view["endpoints"] if e["url"] == sim.url)["workers"][0]
        return found

    async def fault(self, sim: Sim, **faults: Any) -> None:
        async with self.session.post(sim.url + "/sim/faults", data=msgspec.json.encode(faults)) as answer:
            assert answer.status == 200

    async def until(self, is_true: Callable[[], Any]) -> None:
        await until(is_true)

    async def until_state(self, sim: Sim, *states: str) -> dict[str, Any]:
        async with asyncio.timeout(patience(30)):
            while (view := await self.worker(sim))["state"] not in states:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return view


@asynccontextmanager
async def worker_story(num: int, *each: SimConfig, **options: Any) -> AsyncIterator[WorkerStory]:
    async with AsyncExitStack() as stack:
        sims = []
        for seed in range(num):
            sim = each[seed % len(each)] if each else SIM
            sims.append(await Sim(msgspec.structs.replace(sim, seed=seed)).start())
            stack.push_async_callback(sims[-1].stop)
        settings = {"probe_interval_s": 0.2, "expose_headers": True, "policy": "least_load", **options}
        gateway = Gateway(config_of(worker=[sim.url for sim in sims], port=0, admin_port=0, **settings))
        await gateway.start()
        stack.push_async_callback(gateway.stop, 0.0)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        s = WorkerStory(gateway, sims, session)
        await s.until(lambda: sum(member.is_up for member in gateway.fleet) == num)
        yield s
