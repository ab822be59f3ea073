"""Requests of agents translated to the chat that the engine makes of them: its own code's golden answers."""

import json
from datetime import datetime
from typing import Any

import pytest

from gateway import request
from gateway.apis.anthropic import Dialect
from gateway.apis.to_chat import as_chat, dialect_of
from gateway.app import bundled_tokenizer
from gateway.models.prompt_source import PromptSource
from gateway.observability.metrics import Metrics
from gateway.requests.parsing import BodyRules, parse_request
from gateway.tokenization.chat_template import dump_tools
from gateway.tokenization.prompt_encoder import PromptEncoder, PromptError
from tests.support.agents import AGENT_ANSWERS, MESSAGES, RESPONSES

NOON = datetime(2024, 5, 1, 12)


def golden(name: str) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = json.loads(AGENT_ANSWERS.read_text(encoding="utf-8"))[name]
    return made


def normal(chat: dict[str, Any]) -> dict[str, Any]:
    """Message with arguments as objects, as templates get them, and missing fields as None."""
    for message in chat["messages"]:
        for call in message.get("tool_calls") or ():
            arguments = call["function"]["arguments"]
            call["function"]["arguments"] = json.loads(arguments) if isinstance(arguments, str) else arguments
        if isinstance(content := message.get("content"), list):
            renamed = {"input_text": "text", "output_text": "text"}
            message["content"] = [
                {**part, "type": renamed.get(part["type"], part["type"])} for part in content
            ]
        message.pop("type", None)
    names = ("reasoning_effort", "chat_template_kwargs")
    return {
        "messages": chat["messages"],
        "tools": chat.get("tools"),
        "continue_final_message": chat.get("continue_final_message", False),
        **{name: chat.get(name) for name in names},
    }


def made(route: str, body: dict[str, Any], dialect: Dialect) -> dict[str, Any]:
    chat = normal(dict(as_chat(request(route, body), dialect).fields))
    return {**chat, "tools": dump_tools(chat["tools"])}


@pytest.mark.parametrize("merges", [False, True])
@pytest.mark.parametrize("number", range(len(MESSAGES)))
def test_messages_become_the_chat_that_the_engine_makes(number: int, merges: bool) -> None:
    expected = normal(golden("messages_merged" if merges else "messages")[number])
    expected["tools"] = dump_tools(expected["tools"])
    assert made("/v1/messages", MESSAGES[number], Dialect(merges, "none")) == expected


@pytest.mark.parametrize("number", range(len(RESPONSES)))
def test_responses_become_the_chat_that_the_engine_makes(number: int) -> None:
    expected = normal(golden("responses")[number])
    expected["tools"] = dump_tools(expected["tools"])
    assert made("/v1/responses", RESPONSES[number], Dialect()) == expected


# requests without a translation ----------------------------------------------------------------


def user(content: Any, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": content}], **more}


LATE = {"messages": [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]}
KNOWN = Dialect(False, "none")


@pytest.mark.parametrize(
    ("body", "dialect"),
    [
        (user("a", thinking={"type": "disabled"}), Dialect()),
        ({"model": "m", **LATE}, Dialect()),
        ({"model": "m"}, KNOWN),
        ({"model": "m", "messages": ["a"]}, KNOWN),
        ({"model": "m", "messages": [{"role": "tool", "content": "a"}]}, KNOWN),
        (user(5), KNOWN),
        (user([5]), KNOWN),
        (user([{"type": "text", "text": "a"}, {"type": "server_tool_use"}]), KNOWN),
        (user([{"type": "image", "source": "x"}]), KNOWN),
        (user("a", system=[{"type": "text", "text": 5}]), KNOWN),
        (user("a", system=5), KNOWN),
        (user("a", tools={"a": 1}), KNOWN),
        (user("a", tools=[{"name": "web_search", "type": "web_search_20250305"}]), KNOWN),
        ({"model": "m", "messages": [{"role": "assistant", "content": [{"type": "tool_use"}]}]}, KNOWN),
        ({"model": "m", "messages": [{"role": "system", "content": [{"type": "tool_addition"}]}]}, KNOWN),
    ],
)
def test_messages_without_a_translation_are_rejected(body: dict[str, Any], dialect: Dialect) -> None:
    with pytest.raises(PromptError):
        as_chat(request("/v1/messages", body), dialect)


@pytest.mark.parametrize(
    "body",
    [
        {"previous_response_id": "resp_1", "input": "a"},
        {"input": "a", "truncation": "auto"},
        {"input": 5},
        {"input": ["a"]},
        {"input": [{"type": "item_reference", "id": "x"}]},
        {"input": [{"type": "function_call", "name": "f"}]},
        {"input": [{"type": "reasoning", "encrypted_content": "x", "summary": []}]},
        {"input": [{"type": "message", "role": "assistant", "content": []}]},
        {"input": [{"role": "user", "content": [{"type": "input_file"}]}]},
        {"input": "a", "tools": [{"type": "custom", "name": "patch"}]},
        {"input": "a", "tools": ["x"]},
        {
            "input": [
                {"type": "function_call", "namespace": "n", "name": "f", "arguments": "{}", "call_id": "1"}
            ]
        },
    ],
)
def test_responses_without_a_translation_are_rejected(body: dict[str, Any]) -> None:
    with pytest.raises(PromptError):
        as_chat(request("/v1/responses", {"model": "m", **body}), KNOWN)


def test_an_empty_late_system_message_is_ignored() -> None:
    messages = [*LATE["messages"][:1], {"role": "system", "content": ""}]
    chat = as_chat(request("/v1/messages", {"model": "m", "messages": messages}))
    assert chat.fields["messages"] == LATE["messages"][:1]


def test_salt_and_session_are_kept_in_the_chat() -> None:
    chat = as_chat(request("/v1/responses", {"model": "m", "input": "a", "cache_salt": "s", "user": "u"}))
    assert (chat.cache_salt, chat.session, chat.model) == ("s", "u", "m")


def test_a_model_named_by_the_route_is_the_model_of_the_chat() -> None:
    asked = parse_request("/v1/responses", b'{"input": "a"}', rules=BodyRules(model="m"))
    assert (as_chat(asked).model, as_chat(asked).fields["messages"]) == (
        "m",
        [{"role": "user", "content": "a"}],
    )


# dialects --------------------------------------------------------------------------------------

PLAIN = "{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}"
FIRST = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('no') }}{% endif %}{{ m.content }}{% endfor %}"
)
THINKS = PLAIN + "{% if reasoning_effort == 'none' %}off{% endif %}"
REFUSES = PLAIN + "{% if reasoning_effort == 'none' %}{{ raise_exception('no') }}{% endif %}"


@pytest.mark.parametrize(
    ("template", "dialect"),
    [
        (PLAIN, Dialect(False, "low")),
        (FIRST, Dialect(True, "low")),
        (THINKS, Dialect(False, "none")),
        (REFUSES, Dialect(False, "low")),
        (PLAIN + "{% if false %}{% generation %}{% endgeneration %}{% endif %}", Dialect(True, "low")),
        (PLAIN + "{{ strftime_now('%Y') }}", Dialect(True, "low")),
    ],
)
def test_a_dialect_is_read_off_the_template(template: str, dialect: Dialect) -> None:
    assert dialect_of(PromptEncoder.load(bundled_tokenizer(), template), NOON) == dialect


def test_a_conversation_costs_its_new_messages_only() -> None:
    """Translated conversations continue the run of tokens that is known, as chats do."""
    prompts = PromptSource({"m": PromptEncoder.load(bundled_tokenizer())}, Metrics(), clock=lambda zone: NOON)
    turns = [{"role": "user" if n % 2 == 0 else "assistant", "content": f"turn {n} " * 50} for n in range(7)]
    runs = []
    for num in (1, 3, 5, 7):
        body = {"model": "m", "max_tokens": 5, "system": "Be brief.", "messages": turns[:num]}
        asked = request("/v1/messages", body)
        prompt = prompts.tokenize(asked)
        chat = [{"role": "system", "content": "Be brief."}, *turns[:num]]
        same = prompts.tokenize(request("/v1/chat/completions", {"model": "m", "messages": chat}))
        assert prompt.tokens == same.tokens and prompt.source == "fastokens"
        runs.append(prompt.run)
    assert runs[-1] is not None
