"""Requests and answers over HTTP, in vLLM's shapes (recorded from 0.32)."""

import asyncio
import json
from typing import Any

import pytest
from aiohttp import ClientSession

from engines.sim import Sim
from tests.engines.sim.conftest import StartSim
from tests.support.patience import patience

CHAT = [{"role": "user", "content": "hello there"}]
IDS = list(range(1000, 1100))


async def post(http: ClientSession, sim: Sim, path: str, body: Any, **headers: str) -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    async with http.post(sim.url + path, data=data, headers=names) as answer:
        return answer.status, json.loads(await answer.read())


async def complete(http: ClientSession, sim: Sim, prompt: Any, **fields: Any) -> Any:
    body = {"model": "m", "prompt": prompt, "max_tokens": 3, "ignore_eos": True} | fields
    status, answer = await post(http, sim, "/v1/completions", body)
    assert status == 200, answer
    return answer


async def stream(http: ClientSession, sim: Sim, path: str, body: dict[str, Any]) -> list[Any]:
    """Data of the events in order; "[DONE]" unchanged."""
    async with http.post(sim.url + path, json=body | {"stream": True}) as answer:
        assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        events = (await answer.text()).split("\n\n")
    assert events.pop() == ""
    data = [event.rpartition("data: ")[2] for event in events]
    return [each if each == "[DONE]" else json.loads(each) for each in data]


async def stats(http: ClientSession, sim: Sim) -> Any:
    async with http.get(sim.url + "/sim/stats") as answer:
        return await answer.json()


async def test_a_completion_is_answered(start_sim: StartSim, http: ClientSession) -> None:
    sim = await start_sim(block_size=32)
    status, answer = await post(
        http, sim, "/v1/completions", {"model": "m", "prompt": IDS, "max_tokens": 3}, X_Request_Id="abc"
    )
    assert (status, answer["id"], answer["object"]) == (200, "cmpl-abc", "text_completion")
    (choice,) = answer["choices"]
    assert (choice["finish_reason"], len(choice["text"].split())) == ("length", 3)
    assert answer["usage"] == {
        "prompt_tokens": 100,
        "total_tokens": 103,
        "completion_tokens": 3,
        "prompt_tokens_details": {
            "cached_tokens": 0,
            "created_cache_tokens": None,
            "multimodal_tokens": None,
        },
        "completion_tokens_details": None,
    }
    again = await complete(http, sim, IDS)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 96
    assert again["choices"][0]["text"] == choice["text"], "the same prompt has the same answer"


async def test_a_chat_and_its_stream_have_the_same_text(start_sim: StartSim, http: ClientSession) -> None:
    sim = await start_sim(block_size=4)
    body = {"model": "m", "messages": CHAT, "max_tokens": 4, "ignore_eos": True}
    status, answer = await post(http, sim, "/v1/chat/completions", body, X_Request_Id="abc")
    assert (status, answer["id"]) == (200, "chatcmpl-abc")
    text = answer["choices"][0]["message"]["content"]
    options = {"stream_options": {"include_usage": True}}
    role, *tokens, usage, done = await stream(http, sim, "/v1/chat/completions", body | options)
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in tokens) == text
    assert [chunk["choices"][0]["finish_reason"] for chunk in tokens] == [None, None, None, "length"]
    assert (usage["choices"], usage["usage"]["prompt_tokens_details"]["cached_tokens"]) == ([], 12)
    assert done == "[DONE]"


async def test_a_stream_without_usage_ends_without_it(start_sim: StartSim, http: ClientSession) -> None:
    sim = await start_sim()
    body = {"model": "m", "prompt": IDS, "max_tokens": 2, "ignore_eos": True}
    *tokens, done = await stream(http, sim, "/v1/completions", body)
    assert ([len(chunk["choices"]) for chunk in tokens], done) == ([1, 1], "[DONE]")
    assert "system_fingerprint" in tokens[-1]


async def test_an_answer_may_stop_before_its_limit(start_sim: StartSim, http: ClientSession) -> None:
    sim = await start_sim(mean_output_tokens=1)
    body = {"model": "m", "messages": CHAT, "max_tokens": 50}
    _, answer = await post(http, sim, "/v1/chat/completions", body)
    (choice,) = answer["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", "")
    assert answer["usage"]["completion_tokens"] == 1, "the end token counts"


async def test_prompts_of_all_forms_and_several_choices_are_answered(
    start_sim: StartSim, http: ClientSession
) -> None:
    sim = await start_sim()
    for prompt, num_prompts in (("hello", 1), (["hello", "you"], 2), (IDS, 1), ([IDS, IDS[:9]], 2)):
        answer = await complete(http, sim, prompt, n=2)
        assert [choice["index"] for choice in answer["choices"]] == list(range(2 * num_prompts))
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (109, 12)


async def test_echo_and_ids_are_returned_on_request(start_sim: StartSim, http: ClientSession) -> None:
    sim = await start_sim()
    answer = await complete(http, sim, "hello world", echo=True, return_token_ids=True)
    (choice,) = answer["choices"]
    assert choice["text"].startswith("hello world ")
    assert (len(choice["prompt_token_ids"]), len(choice["token_ids"])) == (4, 3)


async def test_a_stop_string_ends_the_text(start_sim: StartSim, http: ClientSession) -> None:
    sim = await start_sim()
    text = (await complete(http, sim, IDS, max_tokens=9))["choices"][0]["text"]
    word = text.split()[4]
    choice = (await complete(http, sim, IDS, max_tokens=9, stop=[word]))["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", word)
    assert choice["text"] == text[: text.index(word)]


async def test_a_chat_takes_tokens_instead_of_messages(start_sim: StartSim, http: ClientSession) -> None:
    sim = await start_sim()
    body = {"model": "m", "messages": CHAT, "max_tokens": 1, "kv_transfer_params": {"prompt_token_ids": IDS}}
    _, answer = await post(http, sim, "/v1/chat/completions", body)
    assert answer["usage"]["prompt_tokens"] == 100


@pytest.mark.parametrize(
    ("path", "body", "status", "kind", "param"),
    [
        ("/v1/completions", {"model": "m", "prompt": [5] * 1100}, 400, "BadRequestError", "input_tokens"),
        ("/v1/completions", {"model": "m", "prompt": [5] * 1024}, 400, "BadRequestError", "max_tokens"),
        (
            "/v1/completions",
            {"model": "m", "prompt": [5], "max_tokens": 3000},
            400,
            "BadRequestError",
            "max_tokens",
        ),
        (
            "/v1/completions",
            {"model": "m", "prompt": [5], "max_tokens": 0},
            400,
            "BadRequestError",
            "max_tokens",
        ),
        ("/v1/completions", {"model": "zz", "prompt": [5]}, 404, "NotFoundError", "model"),
        ("/v1/completions", {"model": "m"}, 400, "BadRequestError", "prompt"),
        ("/v1/completions", {"model": "m", "prompt": ""}, 400, "BadRequestError", "prompt"),
        ("/v1/completions", {"model": "m", "prompt": [999999]}, 400, "BadRequestError", None),
        ("/v1/chat/completions", {"model": "m"}, 400, "Bad Request", "body.messages"),
        ("/v1/chat/completions", {"model": "m", "messages": "x"}, 400, "Bad Request", "body.messages"),
        ("/v1/chat/completions", b"{nope", 400, "Bad Request", "body"),
    ],
)
async def test_errors_are_those_of_vllm(
    start_sim: StartSim, http: ClientSession, path: str, body: Any, status: int, kind: str, param: str | None
) -> None:
    sim = await start_sim(max_model_len=1024)
    found, answer = await post(http, sim, path, body)
    error = answer["error"]
    assert (found, error["type"], error["param"], error["code"]) == (status, kind, param, status)
    assert list(error) == ["message", "type", "param", "code"]


async def test_unknown_paths_and_methods_are_errors(start_sim: StartSim, http: ClientSession) -> None:
    sim = await start_sim()
    assert await post(http, sim, "/v1/nope", {}) == (404, {"detail": "Not Found"})
    async with http.get(sim.url + "/v1/completions") as answer:
        assert (answer.status, answer.headers["Allow"]) == (405, "POST")
        assert await answer.json() == {"detail": "Method Not Allowed"}


async def test_a_key_protects_the_api_but_not_health(start_sim: StartSim, http: ClientSession) -> None:
    sim = await start_sim(api_key="secret")
    body = {"model": "m", "prompt": IDS}
    assert await post(http, sim, "/v1/completions", body) == (401, {"error": "Unauthorized"})
    status, _ = await post(http, sim, "/v1/completions", body, Authorization="Bearer secret")
    assert status == 200
    async with http.get(sim.url + "/health") as answer:
        assert answer.status == 200


async def test_a_client_that_disconnects_ends_its_request(start_sim: StartSim, http: ClientSession) -> None:
    sim = await start_sim(decode_tokens_per_s=100.0)
    body = {"model": "m", "prompt": IDS, "max_tokens": 2000, "ignore_eos": True, "stream": True}
    async with http.post(sim.url + "/v1/completions", json=body) as answer:
        await answer.content.readuntil(b"\n\n")
        answer.close()
    async with asyncio.timeout(patience(5)):
        while (found := await stats(http, sim))["ranks"][0]["running"] or not found["clients_gone"]:
            pass  # a step in progress is finished first
    rank = found["ranks"][0]
    assert (found["clients_gone"], rank["aborts"], rank["clients"], rank["waiting"]) == (1, 1, 0, 0)
    assert rank["free_blocks"] == 199


async def test_ranks_have_caches_of_their_own(start_sim: StartSim, http: ClientSession) -> None:
    sim = await start_sim(dp_size=2)

    async def cached(rank: str) -> int:
        body = {"model": "m", "prompt": IDS, "max_tokens": 1}
        _, answer = await post(http, sim, "/v1/completions", body, X_data_parallel_rank=rank)
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert [await cached(rank) for rank in "0101"] == [0, 0, 96, 96]
    status, answer = await post(
        http, sim, "/v1/completions", {"model": "m", "prompt": IDS}, X_data_parallel_rank="2"
    )
    assert (status, answer["error"]["message"]) == (400, "data_parallel_rank 2 is out of range [0, 2).")


async def test_an_adapter_is_a_model_with_blocks_of_its_own(start_sim: StartSim, http: ClientSession) -> None:
    sim = await start_sim(lora=("tuned",), alias=("other-name",))
    await complete(http, sim, IDS)
    for name, expected in (("other-name", 96), ("tuned", 0), ("tuned", 96)):
        answer = await complete(http, sim, IDS, model=name)
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == expected


async def test_token_details_can_be_left_out(start_sim: StartSim, http: ClientSession) -> None:
    sim = await start_sim(prompt_tokens_details=False)
    assert (await complete(http, sim, IDS))["usage"]["prompt_tokens_details"] is None


async def test_tokens_are_accepted_and_returned(start_sim: StartSim, http: ClientSession) -> None:
    sim = await start_sim()
    body = {"model": "m", "token_ids": IDS, "sampling_params": {"max_tokens": 2, "ignore_eos": True}}
    _, answer = await post(http, sim, "/inference/v1/generate", body)
    assert len(answer["choices"][0]["token_ids"]) == 2
    status, _ = await post(http, sim, "/inference/v1/generate", body | {"stream": True})
    assert status == 501


async def test_a_returned_answer_is_found_in_the_cache(start_sim: StartSim, http: ClientSession) -> None:
    """Generated text must become the tokens that were generated."""
    sim = await start_sim(block_size=16)
    body: dict[str, Any] = {"model": "m", "messages": list(CHAT), "max_tokens": 100, "ignore_eos": True}
    _, answer = await post(http, sim, "/v1/chat/completions", body)
    body["messages"] += [answer["choices"][0]["message"], {"role": "user", "content": "go on"}]
    _, answer = await post(http, sim, "/v1/chat/completions", body)
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == (13 + 99) // 16 * 16


async def test_requests_run_side_by_side(start_sim: StartSim, http: ClientSession) -> None:
    sim = await start_sim(max_num_seqs=4)
    prompts = [[1000 + i] * 40 for i in range(20)]
    answers = await asyncio.gather(*(complete(http, sim, prompt, max_tokens=20) for prompt in prompts))
    assert all(answer["usage"]["completion_tokens"] == 20 for answer in answers)
    found = (await stats(http, sim))["ranks"][0]
    assert (found["running"], found["waiting"], found["free_blocks"]) == (0, 0, 199)
    assert found["generated_tokens"] == 400


async def test_idle_connections_are_closed_as_by_uvicorn(start_sim: StartSim) -> None:
    sim = await start_sim()
    assert sim._runner is not None
    assert sim._runner.server is not None
    assert sim._runner.server._kwargs["keepalive_timeout"] == 5.0
