"""/v1/responses and /v1/messages: the events that clients' libraries expect, in order."""

import json
from typing import Any

import pytest
from aiohttp import ClientSession

from engines.sim import Sim
from tests.engines.sim.conftest import StartSim

CHAT = [{"role": "user", "content": "hello there"}]


async def post(http: ClientSession, sim: Sim, path: str, body: Any) -> str:
    async with http.post(sim.url + path, json=body | {"model": "m"}) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.text()


def events(text: str) -> list[tuple[str, Any]]:
    lines = [event.split("\n") for event in text.split("\n\n")[:-1]]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in lines]


async def test_a_responses_stream_has_its_events(start_sim: StartSim, http: ClientSession) -> None:
    sim = await start_sim(block_size=4)
    body = {"input": "hello there", "max_output_tokens": 3, "ignore_eos": True}
    whole = json.loads(await post(http, sim, "/v1/responses", body))
    assert (whole["status"], whole["usage"]["input_tokens"]) == ("incomplete", 13)
    text = whole["output"][0]["content"][0]["text"]
    found = events(await post(http, sim, "/v1/responses", body | {"stream": True}))
    names = [name.removeprefix("response.") for name, _ in found]
    assert names[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert names[4:7] == ["output_text.delta"] * 3
    assert names[7:] == ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    assert "".join(data["delta"] for name, data in found if name.endswith("delta")) == text
    assert [data["sequence_number"] for _, data in found] == list(range(len(found)))
    assert found[-1][1]["response"]["usage"]["input_tokens_details"] == {"cached_tokens": 12}


async def test_a_messages_stream_has_its_events(start_sim: StartSim, http: ClientSession) -> None:
    sim = await start_sim(block_size=4)
    body = {"messages": CHAT, "max_tokens": 2, "ignore_eos": True}
    whole = json.loads(await post(http, sim, "/v1/messages", body))
    assert (whole["type"], whole["stop_reason"]) == ("message", "max_tokens")
    found = events(await post(http, sim, "/v1/messages", body | {"stream": True}))
    assert [name for name, _ in found] == [
        "message_start", "content_block_start", "content_block_delta", "content_block_delta",
        "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip
    text = "".join(data["delta"]["text"] for name, data in found if name == "content_block_delta")
    assert text == whole["content"][0]["text"]
    usage = found[-2][1]["usage"]
    assert (usage["cache_read_input_tokens"], usage["output_tokens"]) == (12, 2)


async def test_a_stop_sequence_is_named(start_sim: StartSim, http: ClientSession) -> None:
    sim = await start_sim()
    body = {"messages": CHAT, "max_tokens": 9, "ignore_eos": True}
    text = json.loads(await post(http, sim, "/v1/messages", body))["content"][0]["text"]
    body |= {"stop_sequences": [text.split()[3]]}
    whole = json.loads(await post(http, sim, "/v1/messages", body))
    assert (whole["stop_reason"], whole["stop_sequence"]) == ("stop_sequence", text.split()[3])


def total(answer: Any) -> int:
    """Prompt tokens of an answer; Anthropic's API counts cached ones apart."""
    usage = answer["usage"]
    return int(usage["input_tokens"] + usage.get("cache_read_input_tokens", 0))


TOOL = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


@pytest.mark.parametrize(
    ("path", "tools", "more"),
    [
        ("/v1/responses", [{"type": "function", "name": "read", "parameters": TOOL}], {"input": "hi"}),
        (
            "/v1/messages",
            [{"name": "read", "description": "reads", "input_schema": TOOL}],
            {"messages": CHAT, "max_tokens": 99},
        ),
    ],
)
async def test_prompts_are_counted_as_the_engine_renders_them(
    start_sim: StartSim, http: ClientSession, path: str, tools: Any, more: Any
) -> None:
    """Tools are part of the prompt, as in the chat that the engine makes of the body."""
    sim = await start_sim()
    function = {"name": "read", "description": tools[0].get("description"), "parameters": TOOL}
    given = {key: value for key, value in function.items() if value is not None}
    chat = {
        "messages": [{"role": "user", "content": "hi" if path == "/v1/responses" else "hello there"}],
        "tools": [{"type": "function", "function": given}],
        "max_tokens": 99,
    }
    counted = total(json.loads(await post(http, sim, path, more | {"tools": tools})))
    plain = total(json.loads(await post(http, sim, path, more)))
    chatted = json.loads(await post(http, sim, "/v1/chat/completions", chat))["usage"]["prompt_tokens"]
    assert counted > plain + 20
    assert abs(counted - chatted) <= 12  # fields that one API fills in and the other leaves out


@pytest.mark.parametrize("given", [None, [], 7, [1], {"role": "user"}])
async def test_a_body_without_input_is_rejected(start_sim: StartSim, http: ClientSession, given: Any) -> None:
    sim = await start_sim()
    async with http.post(sim.url + "/v1/responses", json={"model": "m", "input": given}) as answer:
        assert answer.status == 400, await answer.text()
