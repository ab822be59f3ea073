"""Probes of token parity: prompts that a worker and the gateway, or two workers, both tokenize. Pure.

They are unlike any client's: nothing is generated, and none of them stays in the worker's cache.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from gateway.core.request import InferenceRequest
from gateway.requests.parsing import parse_request

_TEXT, _CHAT = "/v1/completions", "/v1/chat/completions"


class ProbePrompt(NamedTuple):
    """Prompt to compare: its name in messages, a route that takes it, and the fields of its body."""

    name: str
    path: str
    fields: Mapping[str, Any]

    @property
    def is_chat(self) -> bool:
        return self.path == _CHAT

    def request(self, model: str) -> InferenceRequest:
        return parse_request(self.path, msgspec.json.encode({"model": model, **self.fields}))


_SYSTEM = {"role": "system", "content": "You are  brief.\n"}
_USER = {"role": "user", "content": " What is 1234 * 5,678?\n\n\tShow  it: naïve ünïcode, 中文, 😀 "}
_ASSISTANT = {"role": "assistant", "content": "7006652"}
_THEN = {"role": "user", "content": "And by 2?"}
_ADD = {
    "name": "add",
    "description": "Adds.",
    "parameters": {"type": "object", "properties": {"a": {"type": "number"}}},
}
_TOOL = {"type": "function", "function": _ADD}
_TOOLS = [_TOOL, {"type": "function", "function": {**_ADD, "name": "ünder_line", "description": "中文"}}]
_CALL = {"id": "call10000", "type": "function", "function": {"name": "add", "arguments": '{"a": 1.5}'}}
_CALLS = [_CALL, {**_CALL, "id": "call20000"}]
_CALLED = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
_RESULT = {"role": "tool", "tool_call_id": "call10000", "content": ' {"sum": 1.5}\n'}
_PARTS = {"role": "user", "content": [{"type": "text", "text": "One."}, {"type": "text", "text": " Two?\n"}]}
PROBES: Sequence[ProbePrompt] = (
    ProbePrompt("a text", _TEXT, {"prompt": "Once upon a time, in 1984: don't  stop\n\n\nhere."}),
    ProbePrompt("a chat of one message", _CHAT, {"messages": [_USER]}),
    ProbePrompt("a text of code", _TEXT, {"prompt": "def f(x):\n\treturn x ** 2  # ünïcode 中文 😀\r\n"}),
    ProbePrompt(
        "a text in several scripts",
        _TEXT,
        {"prompt": "शान्ति שלום مرحبا ภาษาไทย é e\u0301 👩\u200d👩\u200d👧 \u3000x"},
    ),
    ProbePrompt("a text of white space", _TEXT, {"prompt": "  \n \t\n\n   x   \n"}),
    ProbePrompt(
        "a text with marks", _TEXT, {"prompt": "<|im_start|>user\n<s>[INST] </s><|endoftext|> <eos> & more"}
    ),
    ProbePrompt(
        "a text without special tokens", _TEXT, {"prompt": "Once upon a time", "add_special_tokens": False}
    ),
    ProbePrompt("a chat with a system message", _CHAT, {"messages": [_SYSTEM, _USER]}),
    ProbePrompt("a chat of several turns", _CHAT, {"messages": [_SYSTEM, _USER, _ASSISTANT, _THEN]}),
    ProbePrompt(
        "a chat with a late system message", _CHAT, {"messages": [_USER, _ASSISTANT, _SYSTEM, _THEN]}
    ),
    ProbePrompt("a chat of content parts", _CHAT, {"messages": [_PARTS, _ASSISTANT, _PARTS]}),
    ProbePrompt(
        "a chat with an empty message", _CHAT, {"messages": [{**_USER, "content": ""}, _ASSISTANT, _THEN]}
    ),
    ProbePrompt("a chat of two users in a row", _CHAT, {"messages": [_USER, _THEN]}),
    ProbePrompt("a chat with a developer", _CHAT, {"messages": [{**_SYSTEM, "role": "developer"}, _USER]}),
    ProbePrompt("a chat with a name", _CHAT, {"messages": [{**_USER, "name": "ann"}]}),
    ProbePrompt("a chat with a call", _CHAT, {"messages": [_USER, _CALLED, _RESULT], "tools": _TOOLS}),
    ProbePrompt(
        "a chat with two calls",
        _CHAT,
        {"messages": [_USER, {**_CALLED, "tool_calls": _CALLS}, _RESULT, _RESULT, _ASSISTANT, _THEN]},
    ),
    ProbePrompt(
        "a chat without a prompt to answer", _CHAT, {"messages": [_USER], "add_generation_prompt": False}
    ),
    ProbePrompt(
        "a chat to be continued",
        _CHAT,
        {
            "messages": [_USER, _ASSISTANT],
            "add_generation_prompt": False,
            "continue_final_message": True,
        },
    ),
    ProbePrompt("a chat with tools", _CHAT, {"messages": [_SYSTEM, _USER], "tools": _TOOLS}),
)
"""Prompts to compare; the first two show whether a worker tokenizes at all. Fields that `/tokenize` ignores
(reasoning, `documents`, truncation) are in none of them."""

PAIR_PROBES = PROBES[0], PROBES[-1]
DAY_PROBES = PROBES[1], ProbePrompt("a chat with tools alone", _CHAT, {"messages": [_USER], "tools": _TOOLS})
"""Chats in which templates print the day: without a system message, which some print it in."""
MUST_ANSWER = 2
"""Probes after which a worker that has answered none gets no more."""
