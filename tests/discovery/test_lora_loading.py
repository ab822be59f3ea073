"""Adapters loaded by workers on a gateway's request: real sockets, simulated engines."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway.config.models import ModelTable
from gateway.config.workers import WorkerTable
from tests.support.stories.adapter_loading import ask_adapters, loading_fleet
from tests.support.stories.joining_fleet import JoiningFleet

pytestmark = pytest.mark.process


async def load(
    f: JoiningFleet, name: str, path: str = "/adapters/x", **more: Any
) -> tuple[int, dict[str, Any]]:
    return await ask_adapters(f, "POST", json={"adapter": name, "path": path, **more})


def outcomes(body: dict[str, Any]) -> dict[str, tuple[bool, bool]]:
    return {each["url"]: (each["is_done"], each["is_listed"]) for each in body["workers"]}


async def complete(f: JoiningFleet, model: str) -> tuple[int, str | None]:
    body = {"model": model, "prompt": [7] * 40, "max_tokens": 2}
    url = f"http://127.0.0.1:{f.gateway.port}/v1/completions"
    async with f.session.post(url, json=body) as answer:
        await answer.read()
        return answer.status, answer.headers.get("x-kvgate-worker")


async def test_an_adapter_is_loaded_by_all_workers_of_its_model_and_serves_the_next_request() -> None:
    async with loading_fleet() as f:
        first, second = [await f.join("m", runtime_lora=True) for _ in range(2)]
        other = await f.join("n", runtime_lora=True)
        assert (await complete(f, "a"))[0] == 404
        status, body = await load(f, "a", model="m")
        assert (status, outcomes(body)) == (200, {first.url: (True, True), second.url: (True, True)})
        assert body["adapter"] == "a" and "error" not in body
        assert (await complete(f, "a"))[0] == 200
        assert first.engine and other.engine
        assert (first.engine.adapters, other.engine.adapters) == ({"a": "/adapters/x"}, {})
        assert await ask_adapters(f, "GET") == (
            200,
            {"adapters": [{"name": "a", "root": "m", "workers": [first.url, second.url], "unusable_at": []}]},
        )
        status, body = await ask_adapters(f, "DELETE", "/a")
        assert (status, outcomes(body)) == (200, {first.url: (True, False), second.url: (True, False)})
        assert (await complete(f, "a"))[0] == 404


async def test_an_adapter_is_loaded_by_chosen_workers_only() -> None:
    async with loading_fleet() as f:
        first, second = [await f.join("m", runtime_lora=True) for _ in range(2)]
        status, body = await load(f, "org/a", workers=[second.url.removeprefix("http://")])
        assert (status, outcomes(body)) == (200, {second.url: (True, True)})
        for _ in range(4):
            assert await complete(f, "org/a") == (200, second.url.removeprefix("http://"))
        assert (await load(f, "org/a", workers=[first.url, first.url]))[0] == 200
        status, body = await ask_adapters(f, "DELETE", f"/org/a?worker={second.url}")
        assert (status, outcomes(body)) == (200, {second.url: (True, False)})
        assert await complete(f, "org/a") == (200, first.url.removeprefix("http://"))


async def test_loading_a_loaded_adapter_succeeds_unless_its_path_differs() -> None:
    async with loading_fleet() as f:
        first, second = [await f.join("m", runtime_lora=True) for _ in range(2)]
        assert (await load(f, "a", workers=[first.url]))[0] == 200
        status, body = await load(f, "a")
        assert (status, outcomes(body)) == (200, {first.url: (True, True), second.url: (True, True)})
        assert body["workers"][0]["message"] == "already loaded"
        status, body = await load(f, "a", "/adapters/y")
        assert (status, outcomes(body)) == (502, {first.url: (False, True), second.url: (False, True)})
        assert "another adapter has this name (from /adapters/x); unload it first" in body["error"]["message"]


async def test_each_failed_worker_has_its_reason() -> None:
    async with loading_fleet() as f:
        good, plain = await f.join("m", runtime_lora=True), await f.join("m")
        status, body = await load(f, "a")
        assert (status, outcomes(body)) == (502, {good.url: (True, True), plain.url: (False, False)})
        assert body["error"]["message"] == (
            f"1 of 2 workers failed: {plain.url}: no /v1/load_lora_adapter: start the engine with "
            "--enable-lora, and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True to load adapters"
        )
        _, body = await load(f, "b", "/missing", workers=[good.url])
        assert "answered 404: Loading lora b failed: No adapter found" in body["error"]["message"]
        await plain.stop()
        _, body = await load(f, "b", workers=[plain.url])
        assert "/v1/load_lora_adapter: " in body["error"]["message"]


async def test_sglang_loads_and_unloads_in_its_own_way() -> None:
    async with loading_fleet() as f:
        sim = await f.join("m", runtime_lora=True, pd_protocol="sglang", lora=("old",))
        status, body = await load(f, "a")
        assert (status, outcomes(body)) == (200, {sim.url: (True, True)})
        listed = (await ask_adapters(f, "GET"))[1]["adapters"]
        assert [(each["name"], each["unusable_at"]) for each in listed] == [("a", []), ("old", [])]
        assert (await ask_adapters(f, "DELETE", "/old?model=m"))[0] == 200
        assert sim.engine and list(sim.engine.adapters) == ["a"]


@pytest.mark.parametrize(
    ("wish", "status", "message"),
    [
        ({"workers": ["http://unknown:1", "x"]}, 404, "no worker 'http://unknown:1', 'x'"),
        ({"workers": ["{m}"], "model": "n"}, 400, "model: 'n' is not served by {m}"),
        ({"model": "gone"}, 404, "model: no worker serves 'gone'; known: m, n"),
        ({}, 400, "model: required, one of: m, n"),
        ({"adapter": "n", "model": "m"}, 409, "adapter: 'n' is a model of {n}"),
        ({"adapter": "fast", "model": "m"}, 409, "adapter: 'fast' is an alias"),
        ({"adapter": "taken", "model": "m"}, 409, "adapter: 'taken' is one of n at {n}"),
        ({"adapter": ""}, 400, "adapter: give 1 to 256 printable characters"),
        ({"path": " "}, 400, "path: give 1 to 256 printable characters"),
    ],
)
async def test_an_invalid_load_reaches_no_worker(wish: dict[str, Any], status: int, message: str) -> None:
    async with loading_fleet(models={"m": ModelTable(aliases=["fast"])}) as f:
        m = await f.join("m", runtime_lora=True)
        n = await f.join("n", runtime_lora=True, lora=("taken",))
        workers = [each.format(m=m.url) for each in wish.get("workers", [])]
        asked = await load(f, **{"name": wish.get("adapter", "a"), "path": "/x", **_rest(wish, workers)})
        assert asked[0] == status
        assert asked[1]["error"]["message"].startswith(message.format(m=m.url, n=n.url))
        assert (
            m.engine and n.engine and list(m.engine.adapters) == [] and list(n.engine.adapters) == ["taken"]
        )


def _rest(wish: dict[str, Any], workers: list[str]) -> dict[str, Any]:
    return {name: wish[name] for name in ("path", "model") if name in wish} | {"workers": workers}


async def test_an_alias_names_its_model_and_a_worker_that_has_not_joined_is_rejected() -> None:
    async with loading_fleet(models={"m": ModelTable(aliases=["fast"])}) as f:
        m = await f.join("m", runtime_lora=True)
        await f.join("n", runtime_lora=True)
        assert outcomes((await load(f, "a", model="fast"))[1]) == {m.url: (True, True)}
        f.gateway.roster.add("http://127.0.0.1:9")
        status, body = await load(f, "b", workers=["http://127.0.0.1:9"])
        assert (status, body["error"]["message"]) == (
            409,
            "http://127.0.0.1:9 has not joined yet. No worker was asked",
        )


async def test_unloading_an_unknown_adapter_is_404() -> None:
    async with loading_fleet() as f:
        m = await f.join("m", runtime_lora=True, lora=("mine",))
        assert (await ask_adapters(f, "DELETE", "/a"))[0] == 404
        status, body = await ask_adapters(f, "DELETE", f"/a?worker={m.url}")
        assert (status, body["error"]["message"]) == (404, f"no adapter 'a' at {m.url}")
        assert (await ask_adapters(f, "DELETE", "/m"))[0] == 404, "a model is no adapter"
        assert (await ask_adapters(f, "DELETE", "/mine?model=gone"))[0] == 404


class Keyed:
    """Worker under a path, with its own key, that loads slowly or never answers."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, Any]] = []
        self.models = [{"id": "k", "root": "k", "parent": None, "owned_by": "vllm"}]
        self.answers = asyncio.Event()
        app = web.Application()
        app.router.add_get("/under/health", self._well)
        app.router.add_get("/under/v1/models", self._list)
        app.router.add_post("/under/v1/load_lora_adapter", self._load)
        self.server = TestServer(app)

    async def _well(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _list(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": self.models})

    async def _load(self, request: web.Request) -> web.Response:
        self.seen.append((request.path, request.headers.get("authorization", ""), await request.json()))
        await self.answers.wait()
        return web.Response(text="Success")


async def test_a_worker_is_asked_with_its_own_key_under_its_own_path(tmp_path: Path) -> None:
    worker, key = Keyed(), tmp_path / "key"
    key.write_text("its-own")
    async with worker.server:
        url = f"http://127.0.0.1:{worker.server.port}/under"
        tables = {url: WorkerTable(key_file=str(key))}
        async with loading_fleet(
            worker=[url], workers=tables, tokenizer_probe=False, admin_adapter_timeout_s=0.5
        ) as f:
            await f.until(lambda: _has_joined(f))
            status, body = await load(f, "a")
            assert (status, body["workers"][0]["message"]) == (
                502,
                "no answer to /v1/load_lora_adapter within 0.5 s",
            )
            worker.answers.set()
            status, body = await load(f, "a")
            assert status == 200
            assert body["workers"][0]["message"] == (
                "Success; but it does not list it: is there more than one API server behind this address?"
            )
            request = {"lora_name": "a", "lora_path": "/adapters/x"}
            assert worker.seen == [("/under/v1/load_lora_adapter", "Bearer its-own", request)] * 2


async def _has_joined(f: JoiningFleet) -> bool:
    return len(f.gateway.fleet) == 1


async def test_names_that_changed_at_an_engine_are_found_on_request() -> None:
    async with loading_fleet() as f:
        sim = await f.join("m", runtime_lora=True)
        request = {"lora_name": "a", "lora_path": "/x"}
        async with f.session.post(f"{sim.url}/v1/load_lora_adapter", json=request) as answer:
            assert answer.status == 200
        status, body = await ask_adapters(f, "POST", "/names", json={})
        assert (status, [each["name"] for each in body["adapters"]]) == (200, ["a"])
        assert (await complete(f, "a"))[0] == 200
