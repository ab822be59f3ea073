"""Adapters of a running worker; tests/vllm/test_adapters.py has the real one's answers."""

from typing import Any

import pytest
from aiohttp import ClientSession

from tests.engines.sim.conftest import StartSim

pytestmark = pytest.mark.process

PATH, GONE = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


async def names(http: ClientSession, url: str) -> dict[str, Any]:
    async with http.get(f"{url}/v1/models") as answer:
        return {each["id"]: (each["root"], each["parent"]) for each in (await answer.json())["data"]}


async def test_an_adapter_is_loaded_answers_and_is_unloaded(start_sim: StartSim, http: ClientSession) -> None:
    sim = await start_sim(runtime_lora=True, lora=("first",), alias=("other",))
    body: dict[str, Any] = {"lora_name": "a", "lora_path": "/adapters/a"}
    async with http.post(sim.url + PATH, json=body) as answer:
        assert (answer.status, await answer.text()) == (
            200,
            "Success: LoRA adapter 'a' added successfully.",
        )
    assert (await names(http, sim.url))["a"] == ("/adapters/a", "m")
    asked = {"model": "a", "prompt": [5] * 40, "max_tokens": 2}
    async with http.post(f"{sim.url}/v1/completions", json=asked) as answer:
        assert (await answer.json())["model"] == "a"
    for name, path, status, message in (
        ("a", "/adapters/a", 400, "The lora adapter 'a' has already been loaded."),
        ("other", "/x", 400, "The lora adapter 'other' conflicts with a served base model."),
        ("b", "", 400, "Both 'lora_name' and 'lora_path' must be provided."),
        ("b", "/missing", 404, "Loading lora b failed: No adapter found for /missing"),
    ):
        async with http.post(sim.url + PATH, json={"lora_name": name, "lora_path": path}) as answer:
            assert answer.status == status
            assert (await answer.json())["error"]["message"].startswith(message)
    async with http.post(sim.url + GONE, json={"lora_name": "a"}) as answer:
        assert await answer.text() == "Success: LoRA adapter 'a' removed successfully."
    assert list(await names(http, sim.url)) == ["m", "other", "first"]
    async with http.post(sim.url + GONE, json={"lora_name": "a"}) as answer:
        assert answer.status == 404
        assert (await answer.json())["error"]["message"] == "The lora adapter 'a' cannot be found."


async def test_without_the_flag_there_is_no_such_route(start_sim: StartSim, http: ClientSession) -> None:
    sim = await start_sim()
    async with http.post(sim.url + PATH, json={"lora_name": "a", "lora_path": "/a"}) as answer:
        assert (answer.status, await answer.json()) == (404, {"detail": "Not Found"})


async def test_sglang_has_other_paths_and_answers_an_object(start_sim: StartSim, http: ClientSession) -> None:
    sim = await start_sim(runtime_lora=True, pd_protocol="sglang")
    body = {"lora_name": "a", "lora_path": "/a"}
    async with http.post(f"{sim.url}/load_lora_adapter", json=body) as answer:
        assert (answer.status, (await answer.json())["success"]) == (200, True)
    async with http.post(f"{sim.url}/load_lora_adapter", json=body) as answer:
        reported = await answer.json()
        assert (answer.status, reported["success"], reported["loaded_adapters"]) == (400, False, {"a": "/a"})
        assert "already been loaded" in reported["error_message"]
    async with http.post(f"{sim.url}/unload_lora_adapter", json={"lora_name": "a"}) as answer:
        assert (await answer.json()) == {"success": True, "error_message": None, "loaded_adapters": {}}


async def test_a_restarted_worker_has_the_adapters_of_its_start(
    start_sim: StartSim, http: ClientSession
) -> None:
    sim = await start_sim(runtime_lora=True, lora=("first",))
    async with http.post(sim.url + PATH, json={"lora_name": "a", "lora_path": "/a"}) as answer:
        assert answer.status == 200
    await sim.restart()
    assert list(await names(http, sim.url)) == ["m", "first"]
