"""Token parity: compares a worker's `/tokenize` with the local tokenizer (`models/`, `kvgate check`), or with
the other worker of a disaggregated pair (`pairing.py`).

The prompts are unlike any client's: nothing is generated, and none of them stays in the worker's cache.
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
"""Posts a body to a path of the worker; returns None unless the status is 200."""

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
"""Prompts to compare; the first two show whether a worker tokenizes at all. Fields that `/tokenize` ignores
(reasoning, `documents`, truncation) are in none of them."""

PAIR_PROBES = PROBES[0], PROBES[-1]
MUST_ANSWER = 2

Made = Mapping[str, Sequence[int]]
"""Worker's tokens by the name of the probe."""


Tokenize = Callable[[InferenceRequest], Prompt]
TextOf = Callable[[str, Sequence[int]], str | None]


@dataclass(frozen=True, slots=True)
class ParityResult:
    """Result of a comparison: tokens `made` by the worker; the first `difference` in words, if any, among
    `num_compared` prompts that both tokenized."""

    made: Made
    num_compared: int = 0
    difference: str | None = None


class ParityCheck:
    """Compares the local tokens of a model (`tokenize`) with a worker's; `text` decodes tokens for messages.
    `with_chats`: chats can be compared too."""

    def __init__(self, tokenize: Tokenize, text: TextOf, *, with_chats: bool = True) -> None:
        self._tokenize = tokenize
        self._text = text
        self._with_chats = with_chats

    async def differs(self, model: str, ask: Ask) -> str | None:
        """First difference in words; None where all of the worker's tokens are equal."""
        return (await self.compare(model, ask)).difference

    async def compare(self, model: str, ask: Ask) -> ParityResult:
        """Compare all probes. A worker that answers neither a text nor a chat gets no more of them."""
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
        return ParityResult(made, num_compared, difference)

    def _words(self, model: str, name: str, ours: Sequence[int], theirs: Sequence[int], at: int) -> str:
        one, other = (self._shown(model, ids[at : at + NUM_SHOWN]) for ids in (ours, theirs))
        return (
            "the worker tokenizes prompts differently, so its cached blocks cannot be found: in "
            f"{name} from token {at} on, {one} here and {other} there; check that --tokenizer is this "
            "model's, with the chat template that the worker uses"
        )

    def _shown(self, model: str, ids: Sequence[int]) -> str:
        return f"{list(ids)} {self._text(model, ids)!r}" if ids else "none"


async def made_by(model: str, ask: Ask) -> Made:
    """Worker's tokens of a text and of a chat; without those that it does not answer."""
    requests = {name: _request(model, path, fields) for name, path, fields in PAIR_PROBES}
    made = {name: await _tokens_of(request, ask) for name, request in requests.items()}
    return {name: tokens for name, tokens in made.items() if tokens}


def parity_difference(one: Made, other: Made) -> str | None:
    """First difference between two workers' tokens of the same prompt, in words; None where there is none."""
    for name in one if one != other else ():
        at = first_difference(one[name], other.get(name, one[name]))
        if at is not None:
            first, second = one[name][at : at + NUM_SHOWN], other[name][at : at + NUM_SHOWN]
            return f"in {name} they differ from token number {at} on, {list(first)} and {list(second)}"
    return None


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """First position at which two sequences differ, or one ends; None where they are equal."""
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
