"""A gateway in this process, and simulated workers that join it when they are started."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from engines.sim import Sim, SimConfig
from gateway.app import Gateway
from gateway.config import config_of
from tests.support.patience import until

FAST = {"prefill_tokens_per_s": 1e6, "decode_tokens_per_s": 2000.0}
LONG = "Once upon a time there was a fleet. " * 20


class JoiningFleet:
    """A gateway, and workers that join it when they are started."""

    def __init__(self, gateway: Gateway, session: aiohttp.ClientSession) -> None:
        self.gateway, self.session = gateway, session
        self.sims: list[Sim] = []

    async def join(self, model: str, **flags: Any) -> Sim:
        sim = await Sim(SimConfig(port=0, model=model, seed=len(self.sims), **FAST, **flags)).start()
        self.sims.append(sim)
        self.gateway.roster.add(sim.url)

        async def is_known() -> bool:
            workers = (await self.admin("/admin/workers"))["endpoints"]
            return any(each["url"] == sim.url and each["token_sources"] for each in workers)

        await self.until(is_known)
        return sim

    async def chat(self, model: str, text: str = LONG, **more: Any) -> dict[str, Any]:
        body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 2, **more}
        url = f"http://127.0.0.1:{self.gateway.port}/v1/chat/completions"
        async with self.session.post(url, json=body) as answer:
            completion: dict[str, Any] = await answer.json()
            assert answer.status == 200, completion
            names = ("worker", "decision", "overlap-tokens")
            return completion | {name: answer.headers[f"x-kvgate-{name}"] for name in names}

    async def warm(self, model: str, text: str = LONG) -> None:
        """Ask a prompt until the index has its blocks, which events report some time later."""

        async def has_overlap() -> bool:
            return int((await self.chat(model, text))["overlap-tokens"]) > 0

        await self.until(has_overlap)

    async def source(self, model: str) -> str:
        """The token source of a request's prompt."""
        decision = (await self.chat(model))["decision"]
        source: str = (await self.admin(f"/admin/decisions/{decision}"))["tokenized_by"]
        return source

    async def admin(self, path: str) -> Any:
        async with self.session.get(f"http://127.0.0.1:{self.gateway.admin_port}{path}") as answer:
            assert answer.status == 200
            return await (answer.text() if path == "/metrics" else answer.json())

    async def models(self) -> dict[str, dict[str, Any]]:
        return {each["model"]: each for each in (await self.admin("/admin/tokenizer"))["models"]}

    async def until(self, is_true: Callable[[], Awaitable[bool]]) -> None:
        await until(is_true)


@asynccontextmanager
async def joining_fleet(**options: Any) -> AsyncIterator[JoiningFleet]:
    # A busy machine answers later than an idle one.
    given = {"port": 0, "admin_port": 0, "expose_headers": True, "probe_interval_s": 0.2}
    gateway = Gateway(config_of(**{"tokenizer_timeout_s": 100.0, **given, **options}))
    await gateway.start()
    try:
        async with aiohttp.ClientSession() as session:
            started = JoiningFleet(gateway, session)
            yield started
    finally:
        await gateway.stop()
        for sim in started.sims:
            await sim.stop()
