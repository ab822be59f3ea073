"""Features of a run of messages, as bits: what a template may treat in a way of its own.

A conversation is cut only where all its features were tried (`template_stability.prove`). Whatever no probe
has is ODD, and never cut: other roles and keys, words of the template in others than the assistant's
messages, roles in an order that is in none of the tables.
"""

from collections.abc import Sequence
from typing import Any, Final

from gateway.tokenization.chat_template import Message
from gateway.tokenization.template_reading import MAX_MARKUP_CHARS, Markup

IRREGULAR, CALLS, REASONING, LATE_SYSTEM, NAMED, MARKUP, USER, ODD, SAID, MARKED_CALL = (
    1 << i for i in range(10)
)
#  Those of messages behind a cut are shifted.
BEHIND: Final = 16
#  In the order in which they are allowed: where two exclude each other the more wanted one is first.
TOLERABLE: Final[tuple[int, ...]] = (
    *(CALLS, REASONING, SAID, MARKED_CALL, USER, NAMED, MARKUP, IRREGULAR, LATE_SYSTEM),
)
NAMES: Final = {
    IRREGULAR: "roles out of order",
    CALLS: "calls",
    REASONING: "reasoning",
    LATE_SYSTEM: "a late system message",
    NAMED: "names",
    MARKUP: "words of the template in a reply",
    USER: "a question",
    SAID: "text beside a call",
    MARKED_CALL: "words of the template beside a call",
}
"""Features in words."""

#  Pairs of consecutive roles in a regular conversation; "" is its start, "call" calls tools.
REGULAR: Final = frozenset(
    {("", "system"), ("", "user"), ("system", "user"), ("user", "assistant"), ("user", "call")}
    | {("assistant", "user"), ("call", "tool"), ("tool", "tool"), ("tool", "assistant"), ("tool", "call")}
    | {("user", "system"), ("assistant", "system"), ("tool", "system"), ("system", "assistant")}
)
#  Those out of order that there are probes for.
UNUSUAL: Final = frozenset(
    {("", "assistant"), ("", "call"), ("user", "user"), ("assistant", "assistant"), ("assistant", "call")}
    | {("assistant", "tool"), ("user", "tool"), ("tool", "user"), ("call", "user"), ("system", "system")}
    | {("system", "call")}
)
KNOWN_KEYS: Final = {
    "role",
    "content",
    "tool_calls",
    "reasoning",
    "reasoning_content",
    "tool_call_id",
    "name",
}
CALL_KEYS: Final = {"id", "index", "function", "type"}


def kind_of(message: Message) -> str:
    return "call" if message.get("tool_calls") else message["role"]


def features(messages: Sequence[Message], before: str, markup: Markup) -> int:
    """Features of `messages` that follow a message of the kind `before`."""
    found = 0
    for message in messages:
        kind = "call" if "tool_calls" in message else message["role"]
        if (before, kind) not in REGULAR:
            found |= IRREGULAR if (before, kind) in UNUSUAL else ODD
        found |= _feature(message, kind, before, markup)
        before = kind
    return found


def _feature(message: Message, kind: str, before: str, markup: Markup) -> int:
    content, found = message["content"], 0
    if type(content) is str:
        text = content
    elif all(part.keys() == {"type", "text"} and part["type"] == "text" for part in content):
        text = "\n".join(part["text"] for part in content)
    else:
        return ODD
    if kind == "user":
        found |= USER
    elif kind == "tool":
        found |= CALLS
    elif kind == "system":
        found |= LATE_SYSTEM if before else 0
    elif kind == "call":
        found |= SAID if text else 0
    elif kind != "assistant":
        return ODD
    if len(message) > 2:
        found |= _extra(message, kind)
        text += _reasoning(message) if found & REASONING and not found & ODD else ""
    return found | _marked(text, kind, markup)


def _marked(text: str, kind: str, markup: Markup) -> int:
    """Feature of a text with words of the template: the assistant's may have those that were tried."""
    if len(text) <= MAX_MARKUP_CHARS and text.strip() in markup.exact:
        return ODD
    if markup.folds:
        text = text.casefold()
    found = 0
    for each in markup.all:
        if each in text:
            if each not in markup.tried:
                return ODD
            found |= MARKED_CALL if kind == "call" else MARKUP if kind == "assistant" else ODD
    return found


def _extra(message: Message, kind: str) -> int:
    """Features of a message with more than text."""
    if not message.keys() <= KNOWN_KEYS:
        return ODD
    found = 0
    if "name" in message:
        found |= NAMED
    if "reasoning" in message or "reasoning_content" in message:
        is_usual = type(_reasoning(message)) is str and message["role"] == "assistant"
        found |= REASONING if is_usual else ODD
    if "tool_call_id" in message and (kind != "tool" or type(message["tool_call_id"]) is not str):
        found |= ODD
    if "tool_calls" in message and not (message["role"] == "assistant" and message["tool_calls"]):
        found |= ODD
    for call in message.get("tool_calls", ()):
        function = call["function"]
        is_usual = call.keys() <= CALL_KEYS and call.get("index") is None
        is_usual = is_usual and function.keys() == {"arguments", "name"}
        found |= CALLS if is_usual and type(function["name"]) is str else ODD
    return found


def _reasoning(message: Message) -> Any:
    """Reasoning of an assistant's message; engines that know one of its names leave out the other."""
    return message["reasoning"] if "reasoning" in message else message["reasoning_content"]
