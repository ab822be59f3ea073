"""The gateway before engines other than vLLM: SGLang, TensorRT-LLM and fleets of several engines."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from engines.sim import Sim, SimConfig
from gateway.app import Gateway
from gateway.config import config_of
from gateway.core.event_stream import StreamState
from gateway.core.worker import WorkerId
from tests.support.fakes import serve, url_of
from tests.support.patience import until
from tests.support.sglang_worker import SglangWorker

pytestmark = pytest.mark.process


class Story:
    def __init__(self, gateway: Gateway, session: aiohttp.ClientSession) -> None:
        self.gateway, self.session = gateway, session

    async def complete(self, ids: list[int]) -> tuple[str, int, int]:
        """The worker that answered, its cached tokens as predicted, and as it reported them."""
        url = f"http://127.0.0.1:{self.gateway.port}/v1/completions"
        async with self.session.post(url, json={"model": "m", "prompt": ids, "max_tokens": 1}) as answer:
            completion = await answer.json()
            assert answer.status == 200, completion
            cached = completion["usage"].get("prompt_tokens_details", {}).get("cached_tokens", 0)
            headers = answer.headers
            return headers["x-kvgate-worker"], int(headers["x-kvgate-overlap-tokens"]), cached

    async def until(self, is_true: Callable[[], object]) -> None:
        await until(is_true)

    async def known(self, worker: str, num_blocks: int) -> None:
        await self.until(lambda: self.gateway.index.num_blocks(WorkerId(worker)) == num_blocks)

    def engines(self) -> dict[str, str]:
        return {member.worker.id: member.worker.engine for member in self.gateway.fleet}


@asynccontextmanager
async def story(*urls: str, **options: Any) -> AsyncIterator[Story]:
    gateway = Gateway(
        config_of(
            worker=list(urls), port=0, admin_port=0, expose_headers=True, probe_interval_s=0.2, **options
        )
    )
    await gateway.start()
    try:
        async with aiohttp.ClientSession() as session:
            s = Story(gateway, session)
            await s.until(lambda: {m.worker.url for m in gateway.fleet} == set(urls))
            yield s
    finally:
        await gateway.stop()


@asynccontextmanager
async def sglang(num: int = 2, **options: Any) -> AsyncIterator[list[SglangWorker]]:
    workers = [await SglangWorker(**options).start() for _ in range(num)]
    try:
        yield workers
    finally:
        for worker in workers:
            await worker.stop()


def name(worker: SglangWorker, rank: int | None = None) -> str:
    return worker.url.removeprefix("http://") + ("" if rank is None else f"#{rank}")


def prompt(seed: int, length: int) -> list[int]:
    return [seed * 1000 + i for i in range(length)]


@pytest.mark.parametrize(("page_size", "wire"), [(1, "map"), (1, "array"), (16, "map")])
async def test_prediction_equals_sglangs_cached_tokens(page_size: int, wire: str) -> None:
    async with sglang(page_size=page_size, wire=wire) as workers, story(*(w.url for w in workers)) as s:
        await s.until(lambda: {m.stream for m in s.gateway.fleet} == {StreamState.EXACT})
        assert set(s.engines().values()) == {"sglang"}
        # each engine has cached another prompt, past the gateway
        for seed, worker in enumerate(workers):
            worker.compute(0, prompt(seed, 160))
            await s.known(name(worker), 160 // page_size)
        for seed, worker in enumerate(workers):
            longer = prompt(seed, 160) + prompt(9, 37)
            at, predicted, cached = await s.complete(longer)
            assert (at, predicted, cached) == (name(worker), 160, 160)
            # the same again: all is cached but the blocks that an answer must compute
            whole = (len(longer) - 1) // page_size * page_size
            await s.known(name(worker), len(longer) // page_size)
            assert await s.complete(longer) == (name(worker), whole, whole)
        # evicted down to a prefix, then flushed
        workers[1].evict(0, 96)
        await s.known(name(workers[1]), 96 // page_size)
        assert await s.complete(prompt(1, 160)) == (name(workers[1]), 96, 96)
        workers[0].flush(0)
        await s.known(name(workers[0]), 0)


@pytest.mark.parametrize("wire", ["map", "array"])
async def test_gateway_started_late_knows_sglangs_cache_by_replay(wire: str) -> None:
    async with sglang(wire=wire) as workers:
        workers[1].compute(0, prompt(1, 100))
        workers[1].evict(0, 60)
        async with story(*(w.url for w in workers)) as s:
            await s.known(name(workers[1]), 60)
            await s.until(lambda: {m.stream for m in s.gateway.fleet} == {StreamState.EXACT})
            assert await s.complete(prompt(1, 100)) == (name(workers[1]), 60, 60)


async def test_each_rank_of_sglang_is_a_worker() -> None:
    async with sglang(1, dp_size=2) as (worker,), story(worker.url) as s:
        await s.until(lambda: len(s.engines()) == 2)
        for rank in range(2):
            worker.compute(rank, prompt(rank, 80))
            await s.known(name(worker, rank), 80)
        for rank in (1, 0):
            assert await s.complete(prompt(rank, 90)) == (name(worker, rank), 80, 80)
        assert worker.served == [1, 0]


async def _plain_models(request: web.Request) -> web.Response:
    return web.json_response(
        {"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "library"}]}
    )


async def _plain_completion(request: web.Request) -> web.Response:
    return web.json_response(
        {"id": "1", "choices": [{"index": 0, "text": "a"}], "usage": {"prompt_tokens": 1}}
    )


async def test_fleet_of_three_engines_is_detected_and_routed() -> None:
    plain = await serve(web.get("/v1/models", _plain_models), web.post("/v1/completions", _plain_completion))
    sim = await Sim(SimConfig(port=0)).start()
    try:
        async with sglang(1) as (worker,), story(sim.url, worker.url, url_of(plain)) as s:
            by_url = {member.worker.url: member.worker for member in s.gateway.fleet}
            assert [by_url[url].engine for url in (sim.url, worker.url, url_of(plain))] == [
                "vllm",
                "sglang",
                "openai",
            ]
            worker.compute(0, prompt(1, 100))
            await s.known(name(worker), 100)
            await s.until(
                lambda: bool(s.gateway.parts.prompts.catalog.tokens_at(sim.url))
            )  # its token source is decided
            assert await s.complete(prompt(1, 120)) == (name(worker), 100, 100)
            async with s.session.get(f"http://127.0.0.1:{s.gateway.admin_port}/admin/workers") as answer:
                view = json.loads(await answer.read())
            assert {e["url"]: e["engine"] for e in view["endpoints"]} == {
                url: w.engine for url, w in by_url.items()
            }
    finally:
        await sim.stop()
        await plain.close()


async def test_prompts_sent_to_an_engine_without_events_are_assumed_cached() -> None:
    servers = [
        await serve(web.get("/v1/models", _plain_models), web.post("/v1/completions", _plain_completion))
        for _ in range(3)
    ]
    try:
        async with story(*map(url_of, servers)) as s:
            first, predicted, _ = await s.complete(prompt(1, 100))
            assert predicted == 0
            for length in (100, 150, 200):
                at, predicted, _ = await s.complete(prompt(1, length))
                assert (at, predicted > 0) == (first, True)
            assert {member.stream for member in s.gateway.fleet} == {None}
    finally:
        for server in servers:
            await server.close()


async def test_polled_events_of_tensorrt_llm_predict_cached_tokens() -> None:
    events: list[dict[str, Any]] = [
        {"event_id": 0, "data": {"type": "created", "num_blocks_per_cache_level": [9]}}
    ]

    def store(first: int) -> None:
        tokens = [{"token_id": token, "token_extra_id": 0} for token in prompt(1, 32)]
        data = {"type": "stored", "parent_hash": None, "blocks": [{"block_hash": 7, "tokens": tokens}]}
        events.append({"event_id": first, "data": data, "window_size": 4096})

    async def poll(request: web.Request) -> web.Response:
        answer = web.json_response(list(events))
        events.clear()
        return answer

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m", "owned_by": "tensorrt_llm"}]})

    routes = [web.get("/v1/models", models), web.post("/v1/completions", _plain_completion)]
    servers = [await serve(*routes, web.post("/kv_cache_events", poll)) for _ in range(1)]
    store(1)
    try:
        # nothing publishes at this port, so the events are polled
        async with story(*map(url_of, servers), events_port=9) as s:
            await s.known(url_of(servers[0]).removeprefix("http://"), 1)
            await s.until(lambda: {m.stream for m in s.gateway.fleet} == {StreamState.EXACT})
            _, predicted, _ = await s.complete(prompt(1, 40))
            assert predicted == 32
    finally:
        for server in servers:
            await server.close()
