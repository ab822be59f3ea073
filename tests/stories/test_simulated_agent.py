"""A coding agent's loop with the vendors' own clients, through the gateway, against simulated engines."""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from gateway.app import bundled_tokenizer
from loadtest import sdks
from loadtest.fleet import SIM_READY, first_match, running
from tests.support.gateway_process import GatewayProcess

pytestmark = pytest.mark.process

PARAMETERS = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "lines": {"type": "integer", "minimum": 1}},
    "required": ["path", "lines"],
    "additionalProperties": False,
}
NAMES = ("read_file", "list_files")
SYSTEM = "You are a coding agent. Read before you write. " * 20
TASK = {"role": "user", "content": "Find the fault."}
MANY = 400


@pytest.fixture(scope="module")
def gateway() -> Iterator[GatewayProcess]:
    with running("sim", "--decode-tokens-per-s", "20000") as sim:
        (url,) = first_match(sim, SIM_READY)
        with GatewayProcess("--worker", url, "--tokenizer", f"m={bundled_tokenizer()}") as gateway:
            yield gateway
            (verified,) = [worker["predictions"] for worker in gateway.workers()]
            assert (verified["exact_share"], verified["token_parity"]) == (1.0, "agree"), verified
            assert 'kvgate_prompt_token_mismatch{worker="' in gateway.metrics()
            assert not [
                line
                for line in gateway.metrics().splitlines()
                if line.startswith("kvgate_prompt_token_mismatch{") and not line.endswith(" 0.0")
            ]


@pytest.fixture(scope="module")
def client(gateway: GatewayProcess) -> "Iterator[sdks.openai.OpenAI]":
    with sdks.openai.OpenAI(base_url=gateway.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


def functions() -> Any:
    return [{"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in NAMES]


@pytest.mark.parametrize("stream", [False, True])
def test_an_agents_loop_of_chats(client: "sdks.openai.OpenAI", stream: bool) -> None:
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, TASK]
    given: Any = {"model": "m", "tools": functions(), "max_tokens": MANY, "messages": messages}
    if stream:
        with client.chat.completions.stream(**given) as events:
            first = events.get_final_completion().choices[0]
    else:
        first = client.chat.completions.create(**given).choices[0]
    calls = first.message.tool_calls
    assert first.finish_reason == "tool_calls" and calls and len(calls) == 2
    assert {call.function.name for call in calls} == set(NAMES)
    for call in calls:
        jsonschema.validate(json.loads(call.function.arguments), PARAMETERS)
    messages.append({"role": "assistant", "tool_calls": [call.model_dump() for call in calls]})
    messages += [{"role": "tool", "tool_call_id": call.id, "content": "42 lines"} for call in calls]
    last = client.chat.completions.create(**given)
    assert last.choices[0].message.content and not last.choices[0].message.tool_calls
    assert last.usage and last.usage.prompt_tokens_details
    assert (last.usage.prompt_tokens_details.cached_tokens or 0) > 100


@pytest.mark.parametrize("stream", [False, True])
def test_an_agents_loop_of_responses(client: "sdks.openai.OpenAI", stream: bool) -> None:
    tools: Any = [{"type": "function", "name": name, "parameters": PARAMETERS} for name in NAMES]
    items: list[Any] = [TASK]
    given: Any = {"model": "m", "instructions": SYSTEM, "tools": tools, "max_output_tokens": MANY}
    if stream:
        with client.responses.stream(input=items, **given) as events:
            first = events.get_final_response()
    else:
        first = client.responses.create(input=items, **given)
    calls = [item for item in first.output if item.type == "function_call"]
    assert {call.name for call in calls} == set(NAMES)
    for call in calls:
        jsonschema.validate(json.loads(call.arguments), PARAMETERS)
    items += [call.model_dump(exclude={"parsed_arguments"}, exclude_none=True) for call in calls]
    items += [{"type": "function_call_output", "call_id": call.call_id, "output": "42"} for call in calls]
    last = client.responses.create(input=items, **given)
    assert last.output_text
    assert last.usage and last.usage.input_tokens_details.cached_tokens > 100


@pytest.mark.parametrize("stream", [False, True])
def test_an_agents_loop_of_messages(gateway: GatewayProcess, stream: bool) -> None:
    tools: Any = [{"name": name, "input_schema": PARAMETERS} for name in NAMES]
    messages: list[Any] = [TASK]
    given: Any = {"model": "m", "system": SYSTEM, "tools": tools, "max_tokens": MANY, "messages": messages}
    with sdks.anthropic.Anthropic(base_url=gateway.url, api_key="none", max_retries=0) as client:
        if stream:
            with client.messages.stream(**given) as events:
                first = events.get_final_message()
        else:
            first = client.messages.create(**given)
        assert first.stop_reason == "tool_use"
        calls = [block for block in first.content if block.type == "tool_use"]
        assert {call.name for call in calls} == set(NAMES)
        for call in calls:
            jsonschema.validate(call.input, PARAMETERS)
        messages.append({"role": "assistant", "content": [call.model_dump() for call in calls]})
        results = [{"type": "tool_result", "tool_use_id": call.id, "content": "42"} for call in calls]
        messages.append({"role": "user", "content": results})
        last = client.messages.create(**given)
        assert (last.content[0].type, last.stop_reason) == ("text", "end_turn")
        counted = client.messages.count_tokens(
            model="m", system=SYSTEM, tools=tools, messages=messages
        ).input_tokens
    assert last.usage.cache_read_input_tokens
    assert counted == last.usage.input_tokens + last.usage.cache_read_input_tokens > 100


def test_the_choice_of_tools(client: "sdks.openai.OpenAI") -> None:
    def called(**fields: Any) -> list[str]:
        given: Any = {"model": "m", "messages": [TASK], "tools": functions(), "max_tokens": MANY, **fields}
        message = client.chat.completions.create(**given).choices[0].message
        return [call.function.name for call in message.tool_calls or []]  # type: ignore[union-attr]

    assert called(tool_choice="none") == []
    assert len(called(parallel_tool_calls=False)) == 1
    named = {"type": "function", "function": {"name": "list_files"}}
    assert called(tool_choice=named) == ["list_files"]


def test_structured_outputs_stops_logprobs_and_n(client: "sdks.openai.OpenAI") -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "place", "schema": PARAMETERS}}
    given: Any = {"model": "m", "messages": [TASK], "max_tokens": MANY}
    answer = client.chat.completions.create(**given, response_format=form, n=2, temperature=1)
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice in answer.choices:
        jsonschema.validate(json.loads(choice.message.content or ""), PARAMETERS)
    words = client.chat.completions.create(**given, logprobs=True, top_logprobs=2)
    content = words.choices[0].logprobs and words.choices[0].logprobs.content
    assert content and "".join(each.token for each in content) == words.choices[0].message.content
    assert {len(each.top_logprobs) for each in content[:-1]} == {2}
    stop = content[2].token
    stopped = client.chat.completions.create(**given, stop=[stop]).choices[0]
    assert stopped.finish_reason == "stop" and stop not in (stopped.message.content or "")


def test_simulated_answers_say_so(client: "sdks.openai.OpenAI") -> None:
    answer = client.chat.completions.with_raw_response.create(model="m", messages=[TASK])  # type: ignore[list-item]
    assert answer.headers["x-simulated"] == "kvgate sim"
    assert json.loads(answer.text)["system_fingerprint"].endswith("-sim")
