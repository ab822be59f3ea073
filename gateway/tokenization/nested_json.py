"""JSON inside JSON: the arguments of tool calls, texts that a renderer decodes after the body they came in.

    {"messages": [{"tool_calls": [{"function": {"arguments": "{\\"a\\": [1, 1]}"}}]}]}
                                                └ a text to the body's own decoder and its limits

`excess` counts what such texts hold before any is decoded: a decoder keeps the interpreter lock to the end of
a text, and makes up to 200 bytes of two. A text that holds too much makes a prompt that is not rendered, so
that its request is routed by load; the engine gets it as it came.

Never compiled (`setup.py`): it runs in threads beside the event loop, which machine code would hold up.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

MAX_TEXT_CHARS = 1 << 20
"""Characters of one text: some 4 ms where all are escapes. It is more than any context has of one call."""
MAX_TEXT_VALUES = 1 << 14
"""Values of one text, names counted too: 2 ms of a decoder."""
MAX_ALL_VALUES = 1 << 17
"""Values of all texts of a conversation, as of its body (`requests/large_body.py`)."""

_TEXT_OR_MARK = re.compile(r'"(?:[^"\\]++|(?:\\.)++)*+"?|[\[{,:]', re.DOTALL)
"""A value, or a name, follows each mark. A text without an end goes to the end of all: it is read once."""
_QUOTE = '"'


def excess(messages: Iterable[object]) -> str:
    """Return which limit the arguments of the messages' tool calls are over; empty where they are within."""
    texts = [text for message in messages for text in _arguments(message)]
    if sum(map(len, texts)) <= MAX_TEXT_VALUES:
        return ""
    num_values = 0
    for text in texts:
        if len(text) > MAX_TEXT_CHARS:
            return f"arguments of a tool call are over {MAX_TEXT_CHARS:,} characters"
        num_here = num_values_of(text, MAX_TEXT_VALUES)
        if num_here > MAX_TEXT_VALUES:
            return f"arguments of a tool call hold over {MAX_TEXT_VALUES:,} values"
        num_values += num_here
        if num_values > MAX_ALL_VALUES:
            return f"arguments of all tool calls hold over {MAX_ALL_VALUES:,} values"
    return ""


def num_values_of(text: str, most: int) -> int:
    """Return how many values and names a JSON text holds, brackets and commas of its own texts left out; of
    one that holds more than `most`, `most` + 1."""
    num = 0
    for found in _TEXT_OR_MARK.finditer(text):
        num += text[found.start()] != _QUOTE
        if num > most:
            break
    return num


def _arguments(message: object) -> Iterator[str]:
    calls = message.get("tool_calls") if isinstance(message, Mapping) else None
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, Mapping) else None
        arguments = function.get("arguments") if isinstance(function, Mapping) else None
        if isinstance(arguments, str):
            yield arguments
