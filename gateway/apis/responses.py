"""A body of /v1/responses as the chat that vLLM makes of it. Pure; checked against the engine by tests/vllm.

Items become messages: what an assistant thought, said and called in one turn are several items, one message.
Prompts that only the worker knows (an earlier response) raise PromptError.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.apis.anthropic import Dialect
from gateway.tokenization.chat_template import PromptError

BEFORE = ("previous_response_id", "previous_input_messages", "prompt", "conversation")
"""Fields that bring in what is not in the body."""
NOT_RENDERED = ("custom", "namespace", "mcp")
"""Tools that the engine makes functions of, by rules of their own; it leaves out what else is no function."""
TEXTS = ("input_text", "output_text", "text")


def chat_of(body: Mapping[str, Any], dialect: Dialect) -> dict[str, Any]:
    """The chat's fields that make its prompt. Raises PromptError where only the worker can render it."""
    if not dialect.has_chats:
        raise PromptError("the engine renders Responses requests of this model differently from chats")
    for field in BEFORE:
        if body.get(field) is not None:
            raise PromptError(f"{field} adds content that is not in the request")
    if body.get("truncation") not in (None, "disabled"):
        raise PromptError("the engine truncates the prompt")
    given, instructions = body.get("input"), body.get("instructions")
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    is_open = False
    if isinstance(given, str):
        messages.append({"role": "user", "content": given})
    elif isinstance(given, list) and all(isinstance(item, dict) for item in given):
        for item in given:
            _add(messages, item, may_join=len(messages) > bool(instructions))
        is_open = bool(given) and _is_open(given[-1])
    else:
        raise PromptError("input is neither text nor a list of items")
    chat: dict[str, Any] = {"messages": messages}
    if is_open:
        chat |= {"add_generation_prompt": False, "continue_final_message": True}
    reasoning = body.get("reasoning")
    for name, value in (
        ("tools", _tools(body.get("tools"))),
        ("chat_template_kwargs", body.get("chat_template_kwargs")),
        ("reasoning_effort", reasoning.get("effort") if isinstance(reasoning, dict) else None),
        ("cache_salt", body.get("cache_salt")),
    ):
        if value is not None:
            chat[name] = value
    return chat


def _is_open(item: Mapping[str, Any]) -> bool:
    """Partial answer that the engine continues."""
    is_said = item.get("type", "message") in ("message", "reasoning")
    return is_said and item.get("status") in ("in_progress", "incomplete")


def _add(messages: list[dict[str, Any]], item: Mapping[str, Any], *, may_join: bool) -> None:
    """Add an item as a message, or to the assistant's previous one where that has none of its kind yet."""
    kind, role = item.get("type"), item.get("role")
    last = messages[-1] if may_join and messages[-1]["role"] == "assistant" else None
    if kind == "function_call":
        if item.get("namespace"):
            raise PromptError("a call of a namespace's tool")
        function = {"name": item["name"], "arguments": item["arguments"]}
        call = {"id": item["call_id"], "type": "function", "function": function}
        if last is None:
            messages.append({"role": "assistant", "tool_calls": [call]})
        else:
            last.setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        content = _content(item.get("output"))
        messages.append({"role": "tool", "content": content, "tool_call_id": item.get("call_id")})
    elif kind == "reasoning":
        _join(messages, last, "reasoning", _reasoning(item))
    elif role == "assistant":
        _join(messages, last, "content", _said(item.get("content")))
    elif isinstance(role, str) and kind in (None, "message"):
        messages.append({"role": role, "content": _content(item.get("content"))})
    else:
        raise PromptError("an item of an unknown type")


def _join(messages: list[dict[str, Any]], last: dict[str, Any] | None, field: str, text: str) -> None:
    if last is not None and last.get(field) is None:
        last[field] = text
    else:
        messages.append({"role": "assistant", field: text})


def _reasoning(item: Mapping[str, Any]) -> str:
    if item.get("encrypted_content"):
        raise PromptError("reasoning that is encrypted")
    for field in ("content", "summary"):
        if item.get(field):
            text: str = item[field][0]["text"]
            return text
    return ""


def _said(content: object) -> str:
    """The first of its parts: the engine takes no more."""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and content and isinstance(content[0].get("text"), str):
        text: str = content[0]["text"]
        return text
    raise PromptError("an assistant's message without a text")


def _content(content: object) -> object:
    """Parts by the names that chats have for them."""
    if not isinstance(content, list):
        return content
    parts = []
    for part in content:
        kind = part.get("type")
        if kind in TEXTS:
            parts.append({"type": "text", "text": part["text"]})
        elif kind == "input_image" and isinstance(part.get("image_url"), str):
            parts.append({"type": "image_url", "image_url": {"url": part["image_url"]}})
        else:
            raise PromptError("a content part of an unknown type")
    return parts


def _tools(tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]] | None:
    if not tools:
        return None
    if any(tool.get("type") in NOT_RENDERED for tool in tools):
        raise PromptError("a tool of an unknown type")
    names = ("name", "description", "parameters", "strict", "defer_loading")
    return [
        {"type": "function", "function": {name: tool.get(name) for name in names}}
        for tool in tools
        if tool.get("type") == "function"
    ]
