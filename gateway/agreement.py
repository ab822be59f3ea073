"""Does a worker make the same tokens of the same prompts as we do (`kvgate check`), or as the other one of a
pair (`pairing.py`)? By its `/tokenize`.

Words that a client would not say: nothing is generated, and nothing of it stays in the worker's cache.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import msgspec

from gateway.core.blocks import Tokens
from gateway.core.decision import Prompt
from gateway.core.request import InferenceRequest, parse_request
from gateway.prompts import tokenize_bodies

Ask = Callable[[str, object], Awaitable[bytes | None]]
"""Posts a body to a path of the worker; None where that is not answered with 200."""

NUM_SHOWN = 4

_SYSTEM = {"role": "system", "content": "You are  brief.\n"}
_USER = {"role": "user", "content": " What is 1234 * 5,678?\n\n\tShow  it: naïve ünïcode, 中文, 😀 "}
_ASSISTANT = {"role": "assistant", "content": "7006652"}
_TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"a": {"type": "number"}}},
    },
}
PROBES: Sequence[tuple[str, str, dict[str, Any]]] = (
    ("a text", "/v1/completions", {"prompt": "Once upon a time, in 1984: don't  stop\n\n\nhere."}),
    ("a text of code", "/v1/completions", {"prompt": "def f(x):\n\treturn x ** 2  # ünïcode 中文 😀\r\n"}),
    ("a chat of one message", "/v1/chat/completions", {"messages": [_USER]}),
    ("a chat with a system message", "/v1/chat/completions", {"messages": [_SYSTEM, _USER]}),
    (
        "a chat of several turns",
        "/v1/chat/completions",
        {"messages": [_SYSTEM, _USER, _ASSISTANT, {"role": "user", "content": "And by 2?"}]},
    ),
    ("a chat with tools", "/v1/chat/completions", {"messages": [_USER], "tools": [_TOOL]}),
)
PAIR_PROBES = PROBES[0], PROBES[-1]

Made = Mapping[str, Sequence[int]]
"""A worker's tokens of prompts, by what these are."""


class _Tokens(msgspec.Struct):
    tokens: list[int]


_tokens = msgspec.json.Decoder(_Tokens).decode


class Agreement:
    """`tokenize` are our tokens, of a model that has a local tokenizer; `text` is what some of them mean."""

    def __init__(
        self,
        tokenize: Callable[[InferenceRequest], Prompt],
        text: Callable[[str, Sequence[int]], str | None],
    ) -> None:
        self._tokenize = tokenize
        self._text = text

    async def differs(self, model: str, ask: Ask) -> str | None:
        """What differs, in words; None where all that the worker answers is ours."""
        for name, path, fields in PROBES:
            request = _request(model, path, fields)
            ours = self._tokenize(request).tokens
            theirs = await _tokens_of(request, ask)
            if ours and theirs and (at := first_difference(ours[0], theirs)) is not None:
                return self._words(model, name, ours[0], theirs, at)
        return None

    def _words(self, model: str, name: str, ours: Tokens, theirs: Sequence[int], at: int) -> str:
        one, other = (self._shown(model, ids[at : at + NUM_SHOWN]) for ids in (ours, theirs))
        return (
            "its prompts have other tokens than ours, so nothing that it holds will be seen: in "
            f"{name} they differ from number {at} on, ours {one}, its {other}; is --tokenizer this model's, "
            "with the chat template that the worker uses?"
        )

    def _shown(self, model: str, ids: Sequence[int]) -> str:
        return f"{list(ids)} {self._text(model, ids)!r}" if ids else "none"


async def made_by(model: str, ask: Ask) -> Made:
    """What a worker makes of a text and of a chat; without those that it does not answer."""
    requests = {name: _request(model, path, fields) for name, path, fields in PAIR_PROBES}
    made = {name: await _tokens_of(request, ask) for name, request in requests.items()}
    return {name: tokens for name, tokens in made.items() if tokens}


def disagreement(one: Made, other: Made) -> str | None:
    """Where two workers make different tokens of the same prompt, in words."""
    for name in one if one != other else ():
        at = first_difference(one[name], other.get(name, one[name]))
        if at is not None:
            first, second = one[name][at : at + NUM_SHOWN], other[name][at : at + NUM_SHOWN]
            return f"in {name} they differ from token number {at} on, {list(first)} and {list(second)}"
    return None


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The first position at which they differ, or one ends; None where they are equal."""
    pairs = zip_longest(one, other)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), None)


def _request(model: str, path: str, fields: Mapping[str, Any]) -> InferenceRequest:
    return parse_request(path, msgspec.json.encode({"model": model, **fields}))


async def _tokens_of(request: InferenceRequest, ask: Ask) -> list[int]:
    (body,) = tokenize_bodies(request)
    return _read(await ask("/tokenize", body))


def _read(answer: bytes | None) -> list[int]:
    try:
        return _tokens(answer or b"").tokens
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []
