"""A body of /v1/messages as the chat that vLLM makes of it. Pure; checked against the engine by tests/vllm.

What it strips and rewrites: billing headers of a coding agent, which would change with each request; thinking
that is opaque; tool results, which become messages of their own before the one that brought them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.tokenization.chat_template import PromptError

BILLING = "x-anthropic-billing-header"
_CHANGES = ("tool_addition", "tool_removal")


@dataclass(frozen=True, slots=True)
class Dialect:
    """Properties that the engine derives from a model's template. `merges_system`: it takes system messages
    at the start only; `disabled_effort` is the `reasoning_effort` by which it does not think. None: unknown.
    `has_chats`: it makes responses as it makes chats. Conversions of some engines depend on `version` and
    `reasoning_parser`."""

    merges_system: bool | None = None
    disabled_effort: str | None = None
    has_chats: bool = True
    engine: str = "vllm"
    version: tuple[int, ...] = ()
    reasoning_parser: str | None = None


def chat_of(body: Mapping[str, Any], dialect: Dialect) -> dict[str, Any]:
    """The chat's fields that make its prompt. Raises PromptError where only the worker can render it."""
    given = body.get("messages")
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise PromptError("messages is not a list of messages")
    merges = dialect.merges_system
    late = [text for each in given if each.get("role") == "system" and (text := _system_text(each))]
    if late and merges is None:
        raise PromptError(
            "a system message after the first, and no local template that shows where the engine puts it"
        )
    lead = "".join([*_texts(body.get("system")), *(late if merges else ())])
    messages: list[dict[str, Any]] = [{"role": "system", "content": lead}] if lead else []
    for message in given:
        if message.get("role") != "system":
            messages += _converted(message)
        elif not merges and (text := _system_text(message)):
            messages.append({"role": "system", "content": text})
    chat: dict[str, Any] = {"messages": messages}
    for name, value in (
        ("tools", _tools(body, given)),
        ("chat_template_kwargs", body.get("chat_template_kwargs")),
        ("reasoning_effort", _effort(body, dialect)),
        ("cache_salt", body.get("cache_salt")),
    ):
        if value is not None:
            chat[name] = value
    return chat


def _texts(system: object) -> Iterator[str]:
    """Texts of the field `system`."""
    if isinstance(system, str):
        yield system  # as it is: only blocks lose their billing header
        return
    for block in _blocks(system or []):
        text = block.get("text")
        if block.get("type") == "text" and text and not text.startswith(BILLING):
            yield text


def _system_text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return "" if content.startswith(BILLING) else content
    return "".join(_texts(content))


def _blocks(content: object) -> Sequence[Mapping[str, Any]]:
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise PromptError("content is neither text nor a list of blocks")
    return content


def _converted(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The message, behind those that its tool results become."""
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant"):
        raise PromptError("a message is neither a user's, an assistant's nor the system's")
    if isinstance(content, str):
        yield {"role": role, "content": content}
        return
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for block in _blocks(content):
        kind = block.get("type")
        if kind == "tool_result" and role == "user":
            yield from _results(block)
        elif kind == "tool_result":
            result = block.get("content")
            parts.append({"type": "text", "text": f"Tool result: {str(result) if result else ''}"})
        elif kind == "text":
            parts += [{"type": "text", "text": block["text"]}] if block.get("text") else []
        elif kind == "image":
            parts += [_image(block["source"])] if block.get("source") else []
        elif kind == "thinking":
            thoughts += [block["thinking"]] if block.get("thinking") is not None else []
        elif kind == "tool_use":
            calls.append(_call(block))
        elif kind not in ("redacted_thinking", "tool_reference"):
            raise PromptError("a content block of an unknown type")
    made: dict[str, Any] = {"role": role}
    if thoughts:
        made["reasoning"] = "".join(thoughts)
    if calls:
        made["tool_calls"] = calls
    if parts:
        is_text = len(parts) == 1 and parts[0]["type"] == "text"
        made["content"] = parts[0]["text"] if is_text else parts
    if role == "assistant" or "content" in made:
        yield made


def _call(block: Mapping[str, Any]) -> dict[str, Any]:
    if not block.get("id"):
        raise PromptError("a tool call without an id: the engine generates one")
    function = {"name": block.get("name") or "", "arguments": block.get("input") or {}}
    return {"id": block["id"], "type": "function", "function": function}


def _results(block: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    content, images, references = block.get("content"), [], []
    text = content if isinstance(content, str) else ""
    if isinstance(content, list):
        texts = []
        for item in content:
            kind = item.get("type") if isinstance(item, dict) else None
            if kind == "text":
                texts.append(item.get("text", ""))
            elif kind == "image":
                images.append(_image(item.get("source", {})))
            elif kind == "tool_reference" and (name := item.get("tool_name") or item.get("name")):
                references.append({"type": "tool_reference", "name": name})
        text = "\n".join(texts)
    message = {"role": "tool", "tool_call_id": block.get("tool_use_id") or ""}
    yield {**message, "content": text}
    if images:
        yield {"role": "user", "content": images}
    if references:
        yield {**message, "content": references}


def _image(source: object) -> dict[str, Any]:
    if not isinstance(source, dict):
        raise PromptError("an image without a source")
    url = source.get("url", "")
    if source.get("type") != "url":
        url = f"data:{source.get('media_type', 'image/jpeg')};base64,{source.get('data', '')}"
    return {"type": "image_url", "image_url": {"url": url}}


def _effort(body: Mapping[str, Any], dialect: Dialect) -> str | None:
    """Thinking that is turned off goes before how much of it is wanted."""
    thinking, output = body.get("thinking"), body.get("output_config")
    if isinstance(thinking, dict) and thinking.get("type") == "disabled":
        if dialect.disabled_effort is None:
            raise PromptError("thinking is turned off, and no local template that shows how")
        return dialect.disabled_effort
    effort = output.get("effort") if isinstance(output, dict) else None
    return effort if isinstance(effort, str) else None


def _tools(body: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]] | None:
    """The tools that are in effect at the end of the conversation."""
    given = body.get("tools")
    if given is not None and not (isinstance(given, list) and all(isinstance(each, dict) for each in given)):
        raise PromptError("tools is not a list of tools")
    changes = [
        block
        for message in messages
        if isinstance(message.get("content"), list)
        for block in _blocks(message["content"])
        if block.get("type") in _CHANGES
    ]
    if changes:
        raise PromptError("tools that change within the conversation are not supported")
    return None if given is None else [_tool(each) for each in given]


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    schema = tool.get("input_schema")
    if not isinstance(schema, dict):
        raise PromptError("a tool without a schema")
    function = {
        "name": tool.get("name"),
        "description": tool.get("description"),
        "parameters": schema if "type" in schema else {**schema, "type": "object"},
        "strict": tool.get("strict"),
        "defer_loading": tool.get("defer_loading"),
    }
    return {"type": "function", "function": function}
