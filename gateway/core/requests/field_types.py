"""The types that a request's fields must have: what is wrong is refused by the field's name."""

from collections.abc import Mapping
from typing import Any

from gateway.core.errors import InvalidRequest


def typed(fields: Mapping[str, Any], name: str, kind: type, called: str) -> Any:
    value = fields.get(name)
    if value is not None and not isinstance(value, kind):
        raise InvalidRequest(f"'{name}' must be {called}, not {json_type(value)}", param=name)
    return value


def check_messages(fields: Mapping[str, Any]) -> None:
    messages = typed(fields, "messages", list, "a list of messages")
    if messages is None:
        raise InvalidRequest("you must provide a messages parameter", param="messages")
    for i, message in enumerate(messages):
        where = f"messages[{i}]"
        if not isinstance(message, dict):
            raise InvalidRequest(f"'{where}' must be an object, not {json_type(message)}", param=where)
        if not isinstance(message.get("role"), str):
            raise InvalidRequest(f"'{where}.role' must be a string", param=f"{where}.role")


def check_prompt(fields: Mapping[str, Any]) -> None:
    prompt = fields.get("prompt")
    if prompt is None and "prompt_embeds" in fields:
        return
    if not _is_prompt(prompt):
        called = "a string, a list of strings, a list of token ids or a list of lists of token ids"
        raise InvalidRequest(f"'prompt' must be {called}, not {json_type(prompt)}", param="prompt")


def _is_prompt(prompt: object) -> bool:
    if isinstance(prompt, str):
        return True
    if not isinstance(prompt, list) or not prompt:
        return False
    if isinstance(prompt[0], list):
        return all(isinstance(ids, list) and _are_ids(ids) for ids in prompt)
    return _are_ids(prompt) or all(isinstance(text, str) for text in prompt)


def _are_ids(ids: list[Any]) -> bool:
    return all(type(i) is int and 0 <= i < 1 << 32 for i in ids)


def json_type(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
