"""Does a worker make the same tokens of the same prompts as we do (`models/`, `kvgate check`), or as the
other one of a pair (`pairing.py`)? By its `/tokenize`.

Words that a client would not say: nothing is generated, and nothing of it stays in the worker's cache.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import msgspec

from gateway.core.decision import Prompt
from gateway.core.decoding import UNREADABLE
from gateway.core.requests.request import InferenceRequest, parse_request
from gateway.models.prompt_source import tokenize_bodies
from gateway.models.worker_tokens import read_tokens

Ask = Callable[[str, object], Awaitable[bytes | None]]
"""Posts a body to a path of the worker; None where that is not answered with 200."""

NUM_SHOWN = 4

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
_TEXT, _CHAT = "/v1/completions", "/v1/chat/completions"

PROBES: Sequence[tuple[str, str, dict[str, Any]]] = (
    ("a text", _TEXT, {"prompt": "Once upon a time, in 1984: don't  stop\n\n\nhere."}),
    ("a chat of one message", _CHAT, {"messages": [_USER]}),
    ("a text of code", _TEXT, {"prompt": "def f(x):\n\treturn x ** 2  # ünïcode 中文 😀\r\n"}),
    (
        "a text in several scripts",
        _TEXT,
        {"prompt": "शान्ति שלום مرحبا ภาษาไทย é e\u0301 👩\u200d👩\u200d👧 \u3000x"},
    ),
    ("a text of white space", _TEXT, {"prompt": "  \n \t\n\n   x   \n"}),
    ("a text with marks", _TEXT, {"prompt": "<|im_start|>user\n<s>[INST] </s><|endoftext|> <eos> & more"}),
    ("a text without special tokens", _TEXT, {"prompt": "Once upon a time", "add_special_tokens": False}),
    ("a chat with a system message", _CHAT, {"messages": [_SYSTEM, _USER]}),
    ("a chat of several turns", _CHAT, {"messages": [_SYSTEM, _USER, _ASSISTANT, _THEN]}),
    ("a chat with a late system message", _CHAT, {"messages": [_USER, _ASSISTANT, _SYSTEM, _THEN]}),
    ("a chat of content parts", _CHAT, {"messages": [_PARTS, _ASSISTANT, _PARTS]}),
    ("a chat with an empty message", _CHAT, {"messages": [{**_USER, "content": ""}, _ASSISTANT, _THEN]}),
    ("a chat of two users in a row", _CHAT, {"messages": [_USER, _THEN]}),
    ("a chat with a developer", _CHAT, {"messages": [{**_SYSTEM, "role": "developer"}, _USER]}),
    ("a chat with a name", _CHAT, {"messages": [{**_USER, "name": "ann"}]}),
    ("a chat with a call", _CHAT, {"messages": [_USER, _CALLED, _RESULT], "tools": _TOOLS}),
    (
        "a chat with two calls",
        _CHAT,
        {"messages": [_USER, {**_CALLED, "tool_calls": _CALLS}, _RESULT, _RESULT, _ASSISTANT, _THEN]},
    ),
    ("a chat without a prompt to answer", _CHAT, {"messages": [_USER], "add_generation_prompt": False}),
    (
        "a chat to be continued",
        _CHAT,
        {
            "messages": [_USER, _ASSISTANT],
            "add_generation_prompt": False,
            "continue_final_message": True,
        },
    ),
    ("a chat with tools", _CHAT, {"messages": [_SYSTEM, _USER], "tools": _TOOLS}),
)
"""The first two tell whether a worker tokenizes at all. What `/tokenize` reads less of than a chat does
(reasoning, `documents`, truncation) is in none of them."""

PAIR_PROBES = PROBES[0], PROBES[-1]
MUST_ANSWER = 2

Made = Mapping[str, Sequence[int]]
"""A worker's tokens of prompts, by what these are."""


Tokenize = Callable[[InferenceRequest], Prompt]
TextOf = Callable[[str, Sequence[int]], str | None]


@dataclass(frozen=True, slots=True)
class Judgement:
    """`made` by the worker; `difference` is where that is not ours, in words, of `num_compared` prompts that
    both made."""

    made: Made
    num_compared: int = 0
    difference: str | None = None


class Agreement:
    """`tokenize` are our tokens, of a model that has a local tokenizer; `text` is what some of them mean.
    `with_chats`: these can be compared too."""

    def __init__(self, tokenize: Tokenize, text: TextOf, *, with_chats: bool = True) -> None:
        self._tokenize = tokenize
        self._text = text
        self._with_chats = with_chats

    async def differs(self, model: str, ask: Ask) -> str | None:
        """What differs, in words; None where all that the worker answers is ours."""
        return (await self.judge(model, ask)).difference

    async def judge(self, model: str, ask: Ask) -> Judgement:
        """One that answers neither a text nor a chat is asked no more."""
        made: dict[str, Sequence[int]] = {}
        num_compared, difference = 0, None
        for number, (name, path, fields) in enumerate(PROBES):
            if number == MUST_ANSWER and not made:
                break
            request = _request(model, path, fields)
            if not (theirs := await _tokens_of(request, ask)):
                continue
            made[name] = theirs
            is_compared = self._with_chats or path == _TEXT
            tokens = self._tokenize(request).tokens if is_compared else ()
            ours = tokens[0] if tokens else ()
            at = first_difference(ours, theirs) if ours else None
            num_compared += bool(ours)
            if at is not None and difference is None:
                difference = self._words(model, name, ours, theirs, at)
        return Judgement(made, num_compared, difference)

    def _words(self, model: str, name: str, ours: Sequence[int], theirs: Sequence[int], at: int) -> str:
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
        return list(read_tokens(answer or b""))
    except UNREADABLE:
        return []
