"""Bodies of /v1/messages and /v1/responses as the chats that SGLang makes of them. Pure.

Read in the released packages 0.5.10.post1 and 0.5.23: srt/entrypoints/anthropic/{protocol,serving}.py,
srt/entrypoints/openai/{serving_responses,responses_adapters}.py. `tests/data/prompts/sglang-*.json` holds
both to the engine's own code. Versions between them convert in ways of their own: their prompts stay unknown
here, except where they are as in one of the two.

    system text   blocks joined by a line end; late ones stay where they are, or join the first where the
                  template drops them. Up to 0.5.10 the API takes none late
    thinking      earlier thinking is dropped, and `thinking` is refused, unless the worker has a reasoning
                  parser; then its prompts stay unknown here
    tool results  messages of their own in the order of the blocks (0.5.23), or before the rest (0.5.10);
                  references to tools apart from texts
    tools         descriptions are never null; tools that Anthropic runs are left out
    responses     items of one assistant's turn are one message; a developer's text is a system text with a
                  label. `reasoning` without an effort means "medium". Up to 0.5.10 tools, reasoning and
                  template arguments reach no template
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

import msgspec

from gateway.apis.anthropic import Dialect
from gateway.core.decode_errors import UNREADABLE
from gateway.tokenization.chat_template import PromptError

GROUPED, TRANSLATED, NEW_API = (0, 5, 17), (0, 5, 22), (0, 5, 11)
"""First versions with the conversions of messages and of responses that 0.5.23 has; and from which neither is
that of 0.5.10."""
SERVER_TOOLS = ("web_search_", "computer_", "bash_", "text_editor_")
LABEL = "Developer instructions:"
NOT_IN_CHAT = ("id", "status", "type")
_BETWEEN = "this version of SGLang converts such bodies in an unknown way"


def messages_chat(body: Mapping[str, Any], dialect: Dialect) -> dict[str, Any]:
    """Chat of a body of /v1/messages. Raises PromptError where only the worker can render it."""
    is_old = dialect.version < NEW_API
    if not is_old and dialect.version < GROUPED:
        raise PromptError(_BETWEEN)
    given = body.get("messages")
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise PromptError("messages is not a list of messages")
    merges = bool(dialect.merges_system) and not is_old
    late = [
        text for each in given if each.get("role") == "system" and (text := _late_text(each.get("content")))
    ]
    if late and dialect.merges_system is None:
        raise PromptError(
            "a system message after the first, and no local template that shows where the engine puts it"
        )
    lead = [*_system(body.get("system"), is_old), *(late if merges else ())]
    messages: list[dict[str, Any]] = [{"role": "system", "content": "\n".join(lead)}] if lead else []
    for message in given:
        role = message.get("role")
        if role not in ("user", "assistant") and (is_old or role != "system"):
            raise PromptError("a message with a role that SGLang does not know")
        if role != "system" or not merges:
            messages += _converted(message, dialect)
    chat: dict[str, Any] = {"messages": messages}
    if tools := _tools(body, is_old):
        chat |= {"tools": tools, **_tool_choice(body.get("tool_choice"))}
    if not is_old:
        chat |= _thinking(body, dialect)
    return chat


def _system(system: object, is_old: bool) -> list[str]:
    if isinstance(system, str):
        return [system] if (system if is_old else system.strip()) else []
    return [
        block["text"] for block in _blocks(system or []) if block.get("type") == "text" and block.get("text")
    ]


def _late_text(content: object) -> str:
    if isinstance(content, str):
        return content.strip()
    texts = [block["text"].strip() for block in _blocks(content) if block.get("type") == "text"]
    return "\n".join(text for text in texts if text)


def _blocks(content: object) -> Sequence[Mapping[str, Any]]:
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise PromptError("content is neither text nor a list of blocks")
    return content


def _converted(message: Mapping[str, Any], dialect: Dialect) -> list[dict[str, Any]]:
    """The message, with the messages that its tool results become."""
    role, content = message["role"], message.get("content")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    is_old = dialect.version < NEW_API
    made: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    for block in _blocks(content):
        kind = block.get("type")
        if kind == "text":
            text = block.get("text")
            parts += [] if text is None or (is_old and not text) else [{"type": "text", "text": text}]
        elif kind == "image":
            parts += _image(block.get("source"))
        elif kind == "tool_use":
            calls.append(_call(block))
        elif kind == "tool_result" and role == "user":
            if parts and not is_old:
                made.append({"role": "user", "content": _joined(parts)})
                parts = []
            name = block.get("tool_use_id") or block.get("id") or ""
            for result in _results(block.get("content"), is_old):
                made.append({"role": "tool", "tool_call_id": name, "content": result})
        elif kind == "tool_result":
            parts.append({"type": "text", "text": f"Tool result: {_result_text(block.get('content'))}"})
        elif kind in ("thinking", "redacted_thinking"):
            _check_thinking(kind, role, dialect)
        elif kind != "tool_reference" or is_old:
            raise PromptError("a content block of an unknown type")
    said: dict[str, Any] = {"role": role, "tool_calls": calls} if calls else {"role": role}
    if parts:
        said["content"] = _joined(parts)
    elif not calls and (role == "user" or is_old):
        return made
    elif not calls:
        said["content"] = ""
    return [*made, said]


def _check_thinking(kind: str, role: str, dialect: Dialect) -> None:
    if dialect.version < NEW_API or role != "assistant":
        return  # dropped
    if kind == "redacted_thinking":
        raise PromptError("redacted thinking is refused by SGLang")
    if dialect.reasoning_parser is not None:
        raise PromptError("the worker's reasoning parser renders earlier thinking")


def _joined(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _call(block: Mapping[str, Any]) -> dict[str, Any]:
    if not block.get("id"):
        raise PromptError("a tool call without an id: the engine generates one")
    function = {"name": block.get("name") or "", "arguments": block.get("input") or {}}
    return {"id": block["id"], "type": "function", "function": function}


def _image(source: object) -> list[dict[str, Any]]:
    if not isinstance(source, dict):
        return []
    url = source.get("url")
    if source.get("type") == "base64":
        data = source.get("data")
        url = f"data:{source.get('media_type', 'image/png')};base64,{data}" if data else None
    return [{"type": "image_url", "image_url": {"url": url}}] if url else []


def _result_parts(content: Sequence[object], is_old: bool) -> Iterator[dict[str, Any]]:
    for item in content:
        kind = item.get("type") if isinstance(item, dict) else None
        if not isinstance(item, dict) or kind not in ("text", "image", "tool_reference"):
            raise PromptError("a tool result of an unknown type")
        if kind == "text" and item.get("text"):
            yield {"type": "text", "text": item["text"]}
        elif kind == "image":
            yield from _image(item.get("source"))
        elif kind == "tool_reference" and not is_old and (name := item.get("tool_name") or item.get("name")):
            yield {"type": "tool_reference", "name": name}


def _results(content: object, is_old: bool) -> list[str | list[dict[str, Any]]]:
    """Contents of the messages that one tool result becomes."""
    if not isinstance(content, list):
        return [str(content) if content else ""]
    groups: list[list[dict[str, Any]]] = []
    for part in _result_parts(content, is_old):
        is_reference = part["type"] == "tool_reference"
        if not groups or (groups[-1][0]["type"] == "tool_reference") is not is_reference:
            groups.append([])
        groups[-1].append(part)
    return [_joined(group) for group in groups] or [""]


def _result_text(content: object) -> str:
    if not isinstance(content, list):
        return str(content) if content else ""
    return "\n".join(part["text"] for part in _result_parts(content, False) if part["type"] == "text")


def _tools(body: Mapping[str, Any], is_old: bool) -> list[dict[str, Any]]:
    given = body.get("tools") or []
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise PromptError("tools is not a list of tools")
    return [_tool(each, is_old) for each in given if is_old or not _is_anthropic_s(each)]


def _is_anthropic_s(tool: Mapping[str, Any]) -> bool:
    return str(tool.get("type") or "").startswith(SERVER_TOOLS)


def _tool(tool: Mapping[str, Any], is_old: bool) -> dict[str, Any]:
    schema = tool.get("input_schema")
    if not isinstance(schema, dict):
        raise PromptError("a tool without a schema")
    function = {
        "name": tool.get("name"),
        "description": tool.get("description") or "",
        "parameters": schema if "type" in schema else {**schema, "type": "object"},
    }
    if is_old:
        return {"type": "function", "function": function}
    function["strict"] = tool.get("strict", False)
    return {"type": "function", "function": function, "defer_loading": tool.get("defer_loading")}


def _tool_choice(choice: object) -> dict[str, Any]:
    kind = choice.get("type") if isinstance(choice, dict) else "auto"
    if kind == "tool":
        assert isinstance(choice, dict)
        return {"tool_choice": {"type": "function", "function": {"name": choice.get("name")}}}
    if kind not in ("auto", "any", "none"):
        raise PromptError("a tool_choice that SGLang does not know")
    return {"tool_choice": "required" if kind == "any" else kind}


def _thinking(body: Mapping[str, Any], dialect: Dialect) -> dict[str, Any]:
    """Fields of thinking; an effort does not switch it on, as it does in a chat."""
    thinking, output = body.get("thinking"), body.get("output_config")
    if isinstance(thinking, dict):
        if dialect.reasoning_parser is not None:
            raise PromptError("the worker's reasoning parser switches thinking")
        if thinking.get("type") != "disabled":
            raise PromptError("thinking is refused by an SGLang without a reasoning parser")
    effort = output.get("effort") if isinstance(output, dict) else None
    if effort is None:
        return {}
    return {"chat_template_kwargs": {"reasoning_effort": "max" if effort == "xhigh" else effort}}


# --- responses ---


def responses_chat(body: Mapping[str, Any], dialect: Dialect) -> dict[str, Any]:
    """Chat of a body of /v1/responses. Raises PromptError where only the worker can render it."""
    is_old = dialect.version < NEW_API
    if not dialect.has_chats:
        raise PromptError("the engine renders Responses requests of this model differently from chats")
    if not is_old and dialect.version < TRANSLATED:
        raise PromptError(_BETWEEN)
    if body.get("previous_response_id") is not None:
        raise PromptError("previous_response_id adds content that is not in the request")
    given, instructions = body.get("input"), body.get("instructions")
    messages: list[dict[str, Any]] = [{"role": "system", "content": instructions}] if instructions else []
    if isinstance(given, str):
        items: list[dict[str, Any]] = [{"role": "user", "content": given}]
    elif isinstance(given, list) and all(isinstance(item, dict) for item in given):
        items = given
    else:
        raise PromptError("input is neither text nor a list of items")
    if is_old:
        return {"messages": messages + [_old_item(item) for item in items]}
    for item in items:
        if (message := _item(item)) is not None:
            _append(messages, message)
    _join_pieces(messages)
    if dialect.merges_system is None and any(each.get("role") == "system" for each in messages[1:]):
        raise PromptError(
            "a system message after the first, and no local template that shows where the engine puts it"
        )
    chat: dict[str, Any] = {"messages": _led(messages) if dialect.merges_system else messages}
    if tools := _functions(body.get("tools")):
        chat |= {"tools": tools, "tool_choice": _choice(body.get("tool_choice"))}
    if isinstance(reasoning := body.get("reasoning"), dict):
        chat["reasoning_effort"] = reasoning.get("effort", "medium")
    if body.get("chat_template_kwargs") is not None:
        chat["chat_template_kwargs"] = body["chat_template_kwargs"]
    return chat


def _old_item(item: Mapping[str, Any]) -> dict[str, Any]:
    """Item as a message: up to 0.5.10 it is taken as it is, and text is made of one that is no message."""
    if item.get("type") not in (None, "message") or not isinstance(item.get("content"), str):
        raise PromptError("an item that this version of SGLang does not turn into a message")
    return {"role": item.get("role"), "content": item["content"]}


def _item(item: Mapping[str, Any]) -> dict[str, Any] | None:
    """Message of an item; None for one that has no text."""
    kind = item.get("type")
    if kind == "function_call":
        arguments = item.get("arguments")
        function = {"name": item.get("name"), "arguments": arguments if _is_object(arguments) else "{}"}
        call = {"id": item.get("call_id") or item.get("id"), "type": "function", "function": function}
        return {"role": "assistant", "tool_calls": [call]}
    if kind == "function_call_output":
        output = item.get("output", "")
        if isinstance(output, list):
            output = "".join(part.get("text", "") for part in output if isinstance(part, dict))
        return {"role": "tool", "tool_call_id": item.get("call_id"), "content": output}
    if kind == "reasoning":
        texts = _texts(item.get("summary")) or _texts(item.get("content"))
        if not texts and item.get("encrypted_content"):
            raise PromptError("reasoning that is encrypted")
        return {"role": "assistant", "reasoning_content": "\n".join(texts)} if texts else None
    if kind not in (None, "message"):
        raise PromptError("an item of an unknown type")
    message = {name: value for name, value in item.items() if value is not None and name not in NOT_IN_CHAT}
    content = message.get("content")
    if message.get("role") == "developer":
        message["role"], content = "system", _labelled(content)
    if isinstance(content, list):
        content = [_part(part) for part in content]
    return message if content is None else {**message, "content": content}


def _is_object(arguments: object) -> bool:
    """True for an object, or the JSON text of one; anything else is replaced by an empty one."""
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments)
        except UNREADABLE:
            return False
    return isinstance(arguments, dict)


def _texts(parts: object) -> list[str]:
    if not isinstance(parts, list):
        return []
    return [part["text"] for part in parts if isinstance(part, dict) and part.get("text")]


def _labelled(content: object) -> object:
    if isinstance(content, str):
        return f"{LABEL}\n{content}"
    if not isinstance(content, list):
        return content
    for i, part in enumerate(content):
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            return [*content[:i], {**part, "text": f"{LABEL}\n{part['text']}"}, *content[i + 1 :]]
    return [{"type": "input_text", "text": LABEL}, *content]


def _part(part: object) -> object:
    """Part by the name that chats have for it."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("input_text", "output_text"):
        assert isinstance(part, dict)
        return {"type": "text", "text": part.get("text", "")}
    if kind == "input_image":
        assert isinstance(part, dict)
        url = part.get("image_url")
        return {"type": "image_url", "image_url": url if isinstance(url, dict) else {"url": url}}
    return part


def _append(messages: list[dict[str, Any]], message: dict[str, Any]) -> None:
    """Add a message, or add to the assistant's previous one."""
    last = messages[-1] if messages else {}
    is_turn = message.get("role") == last.get("role") == "assistant"
    is_phase = last.get("phase") == message.get("phase") or last.keys() == {"role", "reasoning_content"}
    if not is_turn or not is_phase:
        messages.append(message)
        return
    if message.get("phase") is not None:
        last["phase"] = message["phase"]
    if (content := message.get("content")) not in (None, ""):
        _pieces(last, "content").append(content)
    if calls := message.get("tool_calls"):
        _pieces(last, "tool_calls").append(calls)
    if reasoning := message.get("reasoning_content"):
        _pieces(last, "reasoning_content").append(reasoning)


class _Pieces(list[Any]):
    """Values of one field that a turn's messages brought; joined once all are there."""


def _pieces(message: dict[str, Any], field: str) -> _Pieces:
    held = message.get(field)
    if not isinstance(held, _Pieces):
        held = message[field] = _Pieces([] if held in (None, "") else [held])
    return held


def _join_pieces(messages: Sequence[dict[str, Any]]) -> None:
    for message in messages:
        for field, join in _JOINS.items():
            if isinstance(pieces := message.get(field), _Pieces):
                message[field] = join(pieces)


def _joined_content(contents: Sequence[object]) -> object:
    """Texts as one text; from the first list on, all as parts."""
    texts = list(takewhile(lambda each: isinstance(each, str), contents))
    text = "\n\n".join(map(str, texts))
    rest = contents[len(texts) :]
    if not rest:
        return text
    if len(contents) == 1:
        return contents[0]
    lists = (
        each if isinstance(each, list) else [{"type": "text", "text": each}] for each in (text, *rest) if each
    )
    return [part for each in lists for part in each]


_JOINS: Mapping[str, Callable[[Sequence[Any]], object]] = {
    "content": _joined_content,
    "tool_calls": lambda lists: [call for calls in lists for call in calls],
    "reasoning_content": lambda texts: "\n".join(map(str, texts)),
}


def _led(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages with all system texts in one at the start."""
    texts: list[str] = []
    for message in messages:
        content = message.get("content")
        if message.get("role") == "system" and isinstance(content, str):
            texts.append(content)
        elif message.get("role") == "system" and isinstance(content, list):
            texts += [part["text"] for part in content if isinstance(part, dict) and "text" in part]
    rest = [message for message in messages if message.get("role") != "system"]
    return [{"role": "system", "content": "\n\n".join(texts)}, *rest] if texts else rest


def _functions(tools: object) -> list[dict[str, Any]]:
    if tools is None:
        return []
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise PromptError("tools is not a list of tools")
    if any(tool.get("type") == "custom" for tool in tools):
        raise PromptError("a tool of an unknown type")
    return [_function(tool) for tool in tools if tool.get("type") == "function"]


def _function(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = {name: tool.get(name) for name in ("name", "description", "parameters")}
    return {"type": "function", "function": {**function, "strict": bool(tool.get("strict", False))}}


def _choice(choice: object) -> object:
    if not isinstance(choice, dict):
        return "auto" if choice is None else choice
    function = choice.get("function")
    name = choice.get("name") or (function.get("name") if isinstance(function, dict) else None)
    if choice.get("type") in ("function", "custom") and name:
        return {"type": "function", "function": {"name": name}}
    return "auto"
