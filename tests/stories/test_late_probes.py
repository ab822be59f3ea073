"""Engines with late or silent control pages, behind a gateway with clients."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gateway.app import Gateway
from gateway.config import config_of
from tests.support.fakes import serve, url_of
from tests.support.patience import until

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

PIECE = b'data: {"choices":[{"index":0,"text":"x"}]}\n\n'
PROBES = 3
"""Late probes after which a worker without another sign of life would be down."""


class Engine:
    """Engine with control pages that can be late, and streams that go on until `is_over`."""

    def __init__(self) -> None:
        self.is_late = self.is_over = self.is_quiet = False
        self.num_late = self.num_asked = 0
        self.url = ""
        self.server: Any = None

    async def start(self) -> "Engine":
        self.server = await serve(
            web.post("/v1/completions", self._stream), web.get("/{page:.*}", self._page)
        )
        self.url = url_of(self.server)
        return self

    async def _page(self, request: web.Request) -> web.Response:
        if self.is_late:
            self.num_late += request.path == "/health"
            await asyncio.sleep(3600)
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "m", "owned_by": "vllm", "root": "m"}]})
        return web.Response(status=200 if request.path in ("/health", "/metrics") else 404)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        self.num_asked += 1
        answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await answer.prepare(request)
        while not self.is_over:
            if not self.is_quiet:
                await answer.write(PIECE)
            await asyncio.sleep(0.05)
        await answer.write(b"data: [DONE]\n\n")
        return answer


class Story:
    def __init__(self, gateway: Gateway, engines: list[Engine], session: aiohttp.ClientSession) -> None:
        self.gateway, self.engines, self.session = gateway, engines, session
        self.streams: list[asyncio.Task[bool]] = []

    async def _read(self, begun: asyncio.Event) -> bool:
        body = {"model": "m", "prompt": "x", "stream": True}
        url = f"http://127.0.0.1:{self.gateway.port}/v1/completions"
        async with self.session.post(url, json=body) as answer:
            begun.set()
            return answer.status == 200 and b"[DONE]" in await answer.read()

    async def stream(self) -> None:
        """Begin a stream, which must begin to be answered."""
        begun = asyncio.Event()
        self.streams.append(asyncio.get_running_loop().create_task(self._read(begun)))
        await begun.wait()

    async def status(self, path: str) -> int:
        async with self.session.get(f"http://127.0.0.1:{self.gateway.port}{path}") as answer:
            return answer.status

    async def admin(self, path: str) -> Any:
        async with self.session.get(f"http://127.0.0.1:{self.gateway.admin_port}{path}") as answer:
            return await (answer.json() if path.startswith("/admin") else answer.text())

    async def late_probes(self) -> None:
        before = [engine.num_late for engine in self.engines]
        await until(lambda: all(e.num_late >= b + PROBES for e, b in zip(self.engines, before, strict=True)))

    async def end(self) -> list[bool]:
        for engine in self.engines:
            engine.is_over = True
        return await asyncio.gather(*self.streams)


@asynccontextmanager
async def story(num: int, **options: Any) -> AsyncIterator[Story]:
    async with AsyncExitStack() as stack:
        engines = [await Engine().start() for _ in range(num)]
        for engine in engines:
            stack.push_async_callback(engine.server.close)
        settings = {"probe_interval_s": 0.1, "probe_timeout_s": 0.5, "policy": "round_robin", **options}
        gateway = Gateway(config_of(worker=[e.url for e in engines], port=0, admin_port=0, **settings))
        await gateway.start()
        stack.push_async_callback(gateway.stop, 0.0)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        await until(lambda: sum(member.is_up for member in gateway.fleet) == num)
        yield Story(gateway, engines, session)


async def test_engines_that_stream_stay_in_use_while_their_pages_are_late() -> None:
    async with story(2) as s:
        for _ in range(2):
            await s.stream()
        for engine in s.engines:
            engine.is_late = True
        for _ in range(2):
            await s.late_probes()
            assert {member.state for member in s.gateway.fleet} == {"active"}
            assert await s.status("/ready") == 200
            await s.stream()
        view = await s.admin("/admin/workers")
        workers = [worker for endpoint in view["endpoints"] for worker in endpoint["workers"]]
        assert [(each["is_up"], each["is_late"]) for each in workers] == [(True, True)] * 2
        assert view["in_panic"] == {}
        assert all(await s.end())


async def test_probes_that_time_out_never_take_out_the_last_workers_of_a_model() -> None:
    """Nothing comes from either engine for a while; requests are sent all the same, and answered then."""
    async with story(2) as s:
        for engine in s.engines:
            engine.is_late = engine.is_quiet = True
        await until(lambda: not any(member.is_up for member in s.gateway.fleet))
        assert (await s.status("/ready"), await s.status("/ready?model=m")) == (200, 200)
        await s.stream()
        await s.stream()
        assert [engine.num_asked for engine in s.engines] == [1, 1]
        assert (await s.admin("/admin/workers"))["in_panic"] == {"m": 2}
        assert "kvgate_models_in_panic 1.0" in await s.admin("/metrics")
        for engine in s.engines:
            engine.is_quiet = False
        await until(lambda: all(member.is_up for member in s.gateway.fleet))
        assert all(await s.end())


async def test_without_a_panic_threshold_silent_workers_get_no_requests() -> None:
    async with story(2, panic_threshold_percent=0) as s:
        for engine in s.engines:
            engine.is_late = engine.is_quiet = True
        await until(lambda: not any(member.is_up for member in s.gateway.fleet))
        assert await s.status("/ready") == 503


async def test_workers_that_refuse_are_out_though_they_are_the_last() -> None:
    async with story(2) as s:
        for engine in s.engines:
            await engine.server.close()
        await until(lambda: not any(member.is_up for member in s.gateway.fleet))
        assert await s.status("/ready") == 503
