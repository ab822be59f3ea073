"""Break location: the message and the kind of text at which a prompt diverges from a cached one.

The text itself is shown only if the configuration allows it: prompts are private.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

_KINDS = (
    ("identifier", r"^(?=.*\d)(?=.*[a-fA-F])[0-9a-fA-F]{8,}(-[0-9a-fA-F]{4,})*$"),
    ("date or time", r"\d{1,4}[-/:]\d{1,2}|\d{1,2}\.\d{1,2}\.\d|\b1\d{9}(\d{3})?\b"),
    ("number", r"^\W*\d[\d.,]*\W*$"),
)
_WORD_END = re.compile(r"[\w:./+-]*$")
_WORD_START = re.compile(r"^[\w:./+-]*")
CONTEXT_TOKENS = 12
"""Tokens of context on each side: the digits of a date may differ in one token of several."""
MAX_SHOWN_TOKENS = 32
"""Limit up to which differing tokens count as a stamp within a text; more are another text."""
MAX_WORD = 256
"""Limit on the characters matched, on each side and in total: clients choose the length of words, and some of
the patterns above take quadratic time."""
ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
"""Roles that are shown; any other string in a message's `role` is the client's own text."""


class PrefixBreak(msgspec.Struct, frozen=True):
    """A break of a cached prefix. `token` is the first difference, in the message with that index and role if
    known. `differing_tokens` differ until both prompts are equal again."""

    token: int
    differing_tokens: int
    kind: str
    message: int | None = None
    role: str | None = None
    text: str | None = None


def describe_break(
    token: int,
    num_tokens: int,
    texts: Sequence[str],
    messages: Sequence[Mapping[str, Any]],
    *,
    shows_text: bool,
) -> PrefixBreak:
    """Describe a break. `texts` are the text before the token, the differing text and the text after it, or
    empty if the text is unknown."""
    before, differing, after = texts if len(texts) == 3 else ("", "", "")
    begin, end = _WORD_END.findall(before[-MAX_WORD:])[0], _WORD_START.findall(after[:MAX_WORD])[0]
    word = begin + differing + end
    index = message_at(messages, before) if texts else None
    role = messages[index].get("role") if index is not None else None
    return PrefixBreak(
        token,
        num_tokens,
        kind_of(word) if num_tokens <= MAX_SHOWN_TOKENS else "text",
        index,
        role if isinstance(role, str) and role in ROLES else None,
        word.strip() if shows_text and texts else None,
    )


def kind_of(text: str) -> str:
    """The kind of a text, which reveals nothing of its content."""
    text = text.strip()[:MAX_WORD]
    if not text:
        return "unknown"
    return next((kind for kind, pattern in _KINDS if re.search(pattern, text)), "words")


def message_at(messages: Sequence[Mapping[str, Any]], before: str) -> int | None:
    """Index of the first message that is not wholly within the text `before` a position; None if all are."""
    at = 0
    for index, message in enumerate(messages):
        content = _text_of(message.get("content"))
        if not content:
            continue
        found = before.find(content, at)
        if found < 0:
            return index
        at = found + len(content)
    return None


def _text_of(content: object) -> str:
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        content = "\n".join(text for text in texts if isinstance(text, str))
    return content.strip() if isinstance(content, str) else ""
