"""The types that a request's fields must have: what is wrong is refused by the field's name."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from gateway.core.decode_errors import UNREADABLE
from gateway.core.errors import InvalidRequest
from gateway.core.json_values import json_type

MAX_ITEMS: Final = 1 << 16
"""Messages, tools, content parts and prompts of one request. No prompt of today has as many; an engine works
for minutes on a list of millions, and answers no probe meanwhile."""
MESSAGES: Final = "messages"
LISTS: Final = frozenset(
    {MESSAGES, "prompt", "input", "tools", "documents", "queries", "items", "inputs", "texts", "data"}
)
"""Fields of the top level that hold at most MAX_ITEMS, but for token ids."""


_decode_items = msgspec.json.Decoder(list[msgspec.Raw]).decode


def typed(fields: Mapping[str, Any], name: str, kind: type, called: str) -> Any:
    value = fields.get(name)
    if value is not None and not isinstance(value, kind):
        raise InvalidRequest(f"'{name}' must be {called}, not {json_type(value)}", param=name)
    return value


def check_scalars(fields: Mapping[str, Any]) -> None:
    """Check the scalars of the top level that routing reads. Raises InvalidRequest."""
    typed(fields, "stream", bool, "a boolean")
    typed(fields, "cache_salt", str, "a string")
    typed(fields, "user", str, "a string")


def too_many(name: str) -> InvalidRequest:
    return InvalidRequest(
        f"'{name}' holds more than {MAX_ITEMS:,} items; send fewer in one request", param=name
    )


def check_lists(top: Mapping[str, Any], messages: object) -> None:
    """Check that no list has too many items; `messages` are the decoded ones. Raises InvalidRequest."""
    for name in LISTS.intersection(top):
        value = top[name]
        if type(value) is msgspec.Raw:
            value = _items_of(value)
        if type(value) is list and len(value) > MAX_ITEMS and not _is_number(value[0]):
            raise too_many(name)
    for number, message in enumerate(messages if type(messages) is list else ()):
        content = message.get("content") if type(message) is dict else None
        if type(content) is list and len(content) > MAX_ITEMS:
            raise too_many(f"messages[{number}].content")


def _items_of(raw: msgspec.Raw) -> list[msgspec.Raw]:
    """The items of a JSON list that may be too long; empty for all others."""
    view = bytes(raw)
    if view[:1] != b"[" or view.count(b",") < MAX_ITEMS:
        return []
    try:
        return _decode_items(view)
    except UNREADABLE:
        return []  # what is wrong with it is left to the engine


def _is_number(item: object) -> bool:
    if type(item) is msgspec.Raw:
        return bytes(item)[:1].isdigit()
    return type(item) is int


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
