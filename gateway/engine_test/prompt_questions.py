"""Questions on prompts: a worker's tokens of texts and chats, by its answers and its own tokenizer, beside
kvgate's."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from gateway.core.request import InferenceRequest
from gateway.engine_test.judgement import prompt_counts
from gateway.engine_test.prompt_check import PromptCheck
from gateway.engine_test.report import EngineFinding
from gateway.engine_test.subject import CHAT, COMPLETIONS, Subject
from gateway.requests.parsing import parse_request

OursOf = Callable[[InferenceRequest], Sequence[int]]
"""kvgate's own tokens of a request; empty where it has no tokenizer for the model."""

TEXTS: Mapping[str, Mapping[str, Any]] = {
    "a sentence": {"prompt": "Once upon a time, in 1984: don't  stop\n\n\nhere."},
    "several scripts": {"prompt": "naïve ünïcode, 中文, 😀"},
    "marks of a template": {"prompt": "<|im_start|>user\n<s>[INST] & more"},
}
CHATS: Mapping[str, Mapping[str, Any]] = {
    "one message": {"messages": [{"role": "user", "content": "What is a cache?"}]},
    "a system message": {
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    },
    "an assistant's turn": {
        "messages": [
            {"role": "user", "content": "One?"},
            {"role": "assistant", "content": "Two."},
            {"role": "user", "content": "Three?"},
        ]
    },
    "content in parts": {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "One"}, {"type": "text", "text": "two"}]}
        ]
    },
    "a tool": {
        "messages": [{"role": "user", "content": "What is the weather?"}],
        "tools": [
            {
                "type": "function",
                "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
            }
        ],
    },
}


async def prompts(subject: Subject, ours_of: OursOf) -> Sequence[EngineFinding]:
    """Send each shape of texts and chats, and judge both kinds apart."""
    found = []
    for name, kind, path, shapes in (
        ("texts", "texts", COMPLETIONS, TEXTS),
        ("prompts", "chats", CHAT, CHATS),
    ):
        checks = [await _check(subject, ours_of, path, shape, fields) for shape, fields in shapes.items()]
        answered = [check for check in checks if check is not None]
        found.append(
            prompt_counts(
                name,
                kind,
                answered,
                needs_ours=not subject.conventions.tokenizes_for_kvgate,
                publishes=subject.publishes,
            )
        )
    return found


async def _check(
    subject: Subject, ours_of: OursOf, path: str, shape: str, fields: Mapping[str, Any]
) -> PromptCheck | None:
    """Ask all sources for one prompt's tokens; None where the worker does not answer it."""
    body = {"model": subject.model, "max_tokens": 1, "temperature": 0, **fields}
    answer = await subject.post(path, body)
    if answer.status != 200:
        return None
    request = parse_request(path, msgspec.json.encode(body))
    counted = answer.usage.prompt_tokens if answer.usage else None
    return PromptCheck(shape, ours_of(request), await subject.tokens_of(request), counted)
