"""State and tokens of a worker, and the small models."""

import json
from typing import Any

import pytest
from aiohttp import ClientSession

from engines.sim import Sim
from engines.vllm import Vllm
from tests.engines.sim.conftest import StartSim

CHAT = [{"role": "user", "content": "hello there"}]


async def get(http: ClientSession, sim: Sim, path: str) -> Any:
    async with http.get(sim.url + path) as answer:
        assert answer.status == 200
        return json.loads(await answer.read() or b"null")


async def post(http: ClientSession, sim: Sim, path: str, body: Any) -> Any:
    async with http.post(sim.url + path, json=body) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()


async def test_health_and_version_are_reported(start_sim: StartSim, http: ClientSession) -> None:
    sim = await start_sim()
    assert await get(http, sim, "/health") is None
    assert await get(http, sim, "/ping") is None
    assert await get(http, sim, "/load") == {"server_load": 0}
    assert await get(http, sim, "/version") == {"version": "0.32.0"}
    old = await start_sim(event_wire="array")
    assert await get(http, old, "/version") == {"version": "0.23.0"}


async def test_models_share_a_root_and_adapters_have_a_parent(
    start_sim: StartSim, http: ClientSession
) -> None:
    sim = await start_sim(alias=("other",), lora=("tuned",), max_model_len=512)
    answer = await get(http, sim, "/v1/models")
    found = [(each["id"], each["root"], each["parent"], each["max_model_len"]) for each in answer["data"]]
    assert found == [("m", "m", None, 512), ("other", "m", None, 512), ("tuned", "tuned", "m", None)]


async def test_tokenize_gives_the_tokens_of_a_prompt(start_sim: StartSim, http: ClientSession) -> None:
    """Recorded from vLLM 0.32 with the same tokenizer."""
    sim = await start_sim(max_model_len=1024)
    text = await post(
        http, sim, "/tokenize", {"model": "m", "prompt": "hello world", "return_token_strs": True}
    )
    assert text == {
        "count": 4,
        "max_model_len": 1024,
        "tokens": [761, 311, 1491, 562],
        "token_strs": ["hel", "lo", "Ġwor", "ld"],
    }
    chat = await post(http, sim, "/tokenize", {"model": "m", "messages": CHAT})
    assert chat["tokens"] == [1, 1645, 201, 761, 311, 1313, 2, 201, 1, 383, 635, 820, 201]
    assert await post(http, sim, "/detokenize", {"tokens": [1000, 1001]}) == {"prompt": "subbo"}
    count = await post(http, sim, "/v1/messages/count_tokens", {"model": "m", "messages": CHAT})
    assert count["input_tokens"] == 13


async def test_our_adapter_reads_its_metrics(start_sim: StartSim, http: ClientSession) -> None:
    sim = await start_sim()
    await post(http, sim, "/v1/completions", {"model": "m", "prompt": [5] * 40, "max_tokens": 2})
    async with http.get(sim.url + "/metrics") as answer:
        text = await answer.text()
    assert 0 in Vllm().parse_metrics(text)
    assert 'vllm:prompt_tokens_total{engine="0",model_name="m"} 40.0' in text


async def test_a_reset_empties_the_cache(start_sim: StartSim, http: ClientSession) -> None:
    sim = await start_sim()
    await post(http, sim, "/v1/completions", {"model": "m", "prompt": [5] * 40, "max_tokens": 1})
    assert len((await get(http, sim, "/sim/cache"))["0"]) == 2
    assert await post(http, sim, "/reset_prefix_cache", None) == {"success": True}
    assert await get(http, sim, "/sim/cache") == {"0": []}


async def test_small_models_are_deterministic(start_sim: StartSim, http: ClientSession) -> None:
    sim = await start_sim()
    body: dict[str, Any] = {"model": "m", "input": ["one", "two", "one"]}
    vectors = [each["embedding"] for each in (await post(http, sim, "/v1/embeddings", body))["data"]]
    assert vectors[0] == vectors[2] != vectors[1]
    body = {"model": "m", "query": "q", "documents": ["a", "b", "c"], "top_n": 2}
    results = (await post(http, sim, "/v1/rerank", body))["results"]
    assert [each["relevance_score"] for each in results] == sorted(
        (each["relevance_score"] for each in results), reverse=True
    )
    assert len(results) == 2
    scores = await post(http, sim, "/v1/score", {"model": "m", "text_1": "q", "text_2": ["a", "b"]})
    assert [each["index"] for each in scores["data"]] == [0, 1]


@pytest.mark.parametrize("form", ["int", "bytes"])
async def test_the_cache_is_listed_with_both_hashes(
    start_sim: StartSim, http: ClientSession, form: str
) -> None:
    sim = await start_sim(hash=form)
    await post(http, sim, "/v1/completions", {"model": "m", "prompt": [5] * 20, "max_tokens": 1})
    (((name, ours, copies),),) = (await get(http, sim, "/sim/cache")).values()
    assert isinstance(name, int if form == "int" else str)
    assert (ours, copies) == (sim.ranks[0].scheduler.cache.held()[0][1], 1)
