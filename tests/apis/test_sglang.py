"""Bodies of agents as SGLang converts them. The oracle is its own code, as in
tests/tokenization/test_sglang.py."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pytest

from gateway import request
from gateway.apis.to_chat import as_chat, dialect_of
from gateway.core.rendering import Rendering
from gateway.tokenization.chat_template import MediaError
from gateway.tokenization.prompt_encoder import PromptError
from gateway.tokenization.sglang import SglangEncoder
from tests.support import corpus
from tests.support.agents import MESSAGES, OUTPUT, PNG, RESPONSES, asked, message, response, said, text
from tests.support.corpus import SGLANG_VERSIONS, TEMPLATE_NAMES
from tests.support.sglang_encoders import NEW, OLD, TOKENIZER, load_encoder, version_of

Bodies = Sequence[Mapping[str, Any]]
NOW = datetime(2024, 7, 26)
CALLS = [{"type": "function_call", "name": "f", "arguments": "{}", "call_id": each} for each in "123"]


def prompt(prompts: SglangEncoder, route: str, body: Mapping[str, Any], now: datetime = NOW) -> str:
    chat = as_chat(request(route, dict(body)), dialect_of(prompts, now))
    return corpus.digest(prompts.chat(chat.fields, now))


def judge(route: str, bodies: Bodies, version: str, template: str) -> tuple[list[str], list[str]]:
    """Bodies with another prompt than the engine's, and reasons why others have none here."""
    golden, prompts = corpus.sglang_golden(version), load_encoder(template, version_of(version))
    theirs = golden.messages if route == "/v1/messages" else golden.responses
    wrong, unknown = [], []
    for body, each in zip(bodies, theirs[template], strict=True):
        if each == "-":
            continue
        try:
            if prompt(prompts, route, body, golden.asked_at) != each:
                wrong.append(corpus.name_of(dict(body)))
        except PromptError as exc:
            unknown.append(type(exc).__name__ if isinstance(exc, MediaError) else str(exc))
    return wrong, unknown


@pytest.mark.slow
@pytest.mark.parametrize("template", TEMPLATE_NAMES)
@pytest.mark.parametrize(("route", "bodies"), [("/v1/messages", MESSAGES), ("/v1/responses", RESPONSES)])
def test_prompts_of_the_newest_version_are_the_engine_s(route: str, bodies: Bodies, template: str) -> None:
    assert judge(route, bodies, SGLANG_VERSIONS[0], template) == ([], [])


@pytest.mark.slow
@pytest.mark.parametrize("template", TEMPLATE_NAMES)
def test_prompts_of_the_older_version_are_the_engine_s(template: str) -> None:
    """Version 0.5.10 drops images before a template of text, and text of responses that are no chats."""
    wrong, unknown = judge("/v1/messages", MESSAGES, SGLANG_VERSIONS[1], template)
    assert wrong == [] and set(unknown) <= {"MediaError"} and len(unknown) <= 3
    wrong, unknown = judge("/v1/responses", RESPONSES, SGLANG_VERSIONS[1], template)
    assert wrong == [] and len(unknown) <= 4


@pytest.mark.parametrize(
    ("body", "version", "reason"),
    [
        (message(("user", "a")), (0, 5, 14), "converts such bodies in an unknown way"),
        (message(("critic", "a")), NEW, "role"),
        (message(("system", "a")), OLD, "role"),
        (message(("user", 5)), NEW, "blocks"),
        (message(("user", [{"type": "no such"}])), NEW, "unknown type"),
        (message(("assistant", [{"type": "tool_use", "name": "f"}])), NEW, "without an id"),
        (message(("user", "a"), tools=[{"name": "f"}]), NEW, "schema"),
        (message(("user", "a"), tools=5), NEW, "not a list of tools"),
        (message(("user", "a"), thinking={"type": "adaptive"}), NEW, "without a reasoning parser"),
        (message(("assistant", [{"type": "redacted_thinking", "data": "x"}])), NEW, "redacted"),
    ],
)
def test_messages_that_only_the_worker_renders_have_no_prompt(
    body: dict[str, Any], version: tuple[int, ...], reason: str
) -> None:
    with pytest.raises(PromptError, match=reason):
        prompt(load_encoder("chatml", version), "/v1/messages", body)


@pytest.mark.parametrize(
    ("body", "version", "reason"),
    [
        (response("a"), (0, 5, 21), "converts such bodies in an unknown way"),
        (response("a", previous_response_id="resp_1"), NEW, "previous_response_id"),
        (response(5), NEW, "neither text nor a list"),
        (response([{"type": "no such"}]), NEW, "unknown type"),
        (response([{"type": "reasoning", "summary": [], "encrypted_content": "x"}]), NEW, "encrypted"),
        (response("a", tools=[{"type": "custom", "name": "f"}]), NEW, "unknown type"),
        (response([OUTPUT]), OLD, "does not turn into a message"),
    ],
)
def test_responses_that_only_the_worker_renders_have_no_prompt(
    body: dict[str, Any], version: tuple[int, ...], reason: str
) -> None:
    with pytest.raises(PromptError, match=reason):
        prompt(load_encoder("chatml", version), "/v1/responses", body)


@pytest.mark.parametrize(
    "body",
    [
        message(("user", "a"), thinking={"type": "disabled"}),
        message(("assistant", [{"type": "thinking", "thinking": "x"}]), ("user", "b")),
    ],
)
def test_thinking_before_a_reasoning_parser_has_no_prompt(body: dict[str, Any]) -> None:
    prompts = SglangEncoder.load_as(Rendering("sglang", NEW, "qwen3"), TOKENIZER)
    with pytest.raises(PromptError, match="reasoning parser"):
        prompt(prompts, "/v1/messages", body)


def test_tools_that_anthropic_runs_are_left_out() -> None:
    plain = message(("user", "a"))
    served = {**plain, "tools": [{"type": "web_search_20250305", "name": "web_search"}]}
    assert prompt(load_encoder("dump"), "/v1/messages", served) == prompt(
        load_encoder("dump"), "/v1/messages", plain
    )


def test_parts_and_texts_of_one_turn_are_joined() -> None:
    def chat(*items: dict[str, Any]) -> Any:
        made = as_chat(
            request("/v1/responses", response(list(items))), dialect_of(load_encoder("chatml"), NOW)
        )
        return made.fields["messages"]

    plain = {"role": "assistant", "content": "x"}
    assert chat(plain, {**plain, "content": "y"}) == [{"role": "assistant", "content": "x\n\ny"}]
    (joined,) = chat(plain, said("y"))
    assert joined["content"] == [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]
    (labelled,) = chat(asked("rules", "developer"))
    assert labelled["content"] == [{"type": "text", "text": "Developer instructions:\nrules"}]
    (mixed,) = chat(plain, plain, said("y"), plain, {"type": "reasoning", "summary": [{"text": "z"}]}, *CALLS)
    assert [part["text"] for part in mixed["content"]] == ["x\n\nx", "y", "x"]
    assert [call["id"] for call in mixed["tool_calls"]] == ["1", "2", "3"]
    assert mixed["reasoning_content"] == "z"


def test_texts_before_a_tool_result_stay_before_it() -> None:
    result = {
        "type": "tool_result",
        "tool_use_id": "t",
        "content": [text("r"), {"type": "image", "source": PNG}],
    }
    body = message(("user", [text("before"), result, text("after")]))
    chat = as_chat(request("/v1/messages", body), dialect_of(load_encoder("chatml"), NOW))
    assert [each["role"] for each in chat.fields["messages"]] == ["user", "tool", "user"]
