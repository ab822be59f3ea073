"""Usage redaction: hides the number of cached prompt tokens in answers, with 0 in place of each count.

In the APIs of OpenAI and Anthropic as vLLM has them, the counts are in an object named `usage`:

    cached_tokens, cached_tokens_per_turn, cache_read_input_tokens         were cached
    created_cache_tokens, cache_write_tokens, cache_creation_input_tokens  were not, so the rest was
    input_tokens                                                           in Anthropic's less those: they are
                                                                           added again

Within a JSON string quotes are escaped, so `"usage":{` is never text that a model wrote.
"""

import re
from typing import Any, Final

import msgspec

from gateway.core.decode_errors import UNREADABLE

MAX_USAGE_BYTES: Final = 8192
"""Size that no usage reaches; a longer object of that name (an echoed schema) is passed on as it is."""
_MARK: Final = re.compile(rb'"usage"\s{0,64}:\s{0,64}\{')
_MAYBE: Final = re.compile(rb'"(?:u(?:s(?:a(?:g(?:e(?:"\s{0,64}(?::\s{0,64})?)?)?)?)?)?)?\Z')
"""Possible beginning of a mark, at the end of the bytes so far: never long, so that little is held back."""
_MASKED: Final = frozenset(
    {"cached_tokens", "cache_read_input_tokens", "created_cache_tokens"}
    | {"cache_write_tokens", "cache_creation_input_tokens"}
)
_PER_TURN: Final = "cached_tokens_per_turn"
_OF_INPUT: Final[tuple[str, ...]] = ("cache_read_input_tokens", "cache_creation_input_tokens")


class UsageRedactor:
    """Redacts an answer's body fed in any splits, holding back what may be an unfinished `usage`."""

    __slots__ = ("_carry",)

    def __init__(self) -> None:
        self._carry = b""

    def feed(self, data: bytes) -> bytes:
        data, self._carry = self._carry + data, b""
        out, at, checked = [], 0, 0
        for mark in _MARK.finditer(data):
            begin = mark.end() - 1
            if begin < max(at, checked):
                continue  # within the one before, or within one that is too long: scanned once
            size = _end_of_object(data[begin : begin + MAX_USAGE_BYTES])
            if not size:
                if len(data) - begin >= MAX_USAGE_BYTES:
                    checked = begin + MAX_USAGE_BYTES
                    continue
                out.append(data[at : mark.start()])
                self._carry = data[mark.start() :]
                return b"".join(out)
            out += (data[at:begin], masked(data[begin : begin + size]))
            at = begin + size
        rest = data[at:]
        if maybe := _MAYBE.search(rest):
            rest, self._carry = rest[: maybe.start()], rest[maybe.start() :]
        return b"".join([*out, rest])

    def flush(self) -> bytes:
        """Return the held-back bytes at the end of a body."""
        carry, self._carry = self._carry, b""
        return carry


def masked(usage: bytes) -> bytes:
    """Redact one whole object; unchanged where it has no counts, or is invalid."""
    try:
        fields = msgspec.json.decode(usage)
        return msgspec.json.encode(fields) if _mask(fields) else usage
    except UNREADABLE:
        return usage


def _mask(value: Any) -> bool:
    """Redact in place; returns True if there was something to redact."""
    if isinstance(value, list):
        return any([_mask(item) for item in value])
    if not isinstance(value, dict):
        return False
    is_masked = any([_mask(item) for item in value.values()])
    if type(value.get("input_tokens")) is int and "input_tokens_details" not in value:
        value["input_tokens"] += sum(n for name in _OF_INPUT if type(n := value.get(name)) is int)
    # Not `_MASKED & value.keys()`: that is a set, and mypyc requires the frozenset of the annotation.
    for name in [each for each in value if each in _MASKED]:
        if value[name] is not None and type(value[name]) is not dict:  # a number, in any notation
            value[name], is_masked = 0, True
    if isinstance(value.get(_PER_TURN), list):
        value[_PER_TURN], is_masked = [0] * len(value[_PER_TURN]), True
    return is_masked


def _end_of_object(text: bytes) -> int:
    """Return the end of the first object in `text`, 0 if it is not complete."""
    depth, is_text, is_escaped = 0, False, False
    for at, byte in enumerate(text):
        if is_text:
            is_escaped, is_text = byte == 0x5C and not is_escaped, byte != 0x22 or is_escaped
        elif byte == 0x22:
            is_text = True
        elif byte == 0x7B:
            depth += 1
        elif byte == 0x7D:
            depth -= 1
            if not depth:
                return at + 1
    return 0
