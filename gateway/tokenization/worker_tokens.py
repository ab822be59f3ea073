"""Bodies of a worker's `/tokenize`, and the tokens in its answers."""

from collections.abc import Generator
from typing import Annotated, Any

import msgspec

from gateway.core.blocks import Tokens, tokens_of
from gateway.core.rendering import VLLM, Rendering
from gateway.core.request import InferenceRequest
from gateway.core.route_table import RouteKind

MAX_TOKEN_ID = 0xFFFF_FFFF

_CHAT_FIELDS = (
    "messages",
    "tools",
    "tool_choice",
    "documents",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
    "reasoning_effort",
    "mm_processor_kwargs",
)


STEP_BYTES = 64 << 10
"""Bytes of an answer that are decoded in one go: some 10,000 tokens, in .3 ms."""

_TokenId = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKEN_ID)]


class _Answer(msgspec.Struct):
    tokens: list[_TokenId]
    count: int | None = None


_decode = msgspec.json.Decoder(_Answer).decode
_decode_ids = msgspec.json.Decoder(list[_TokenId]).decode


def read_tokens(body: bytes) -> Tokens:
    """Decode an answer. Raises one of `decoding.UNREADABLE` for an invalid list of ids, or a count that does
    not match."""
    answer = _decode(body)
    if answer.count is not None and answer.count != len(answer.tokens):
        raise ValueError(f"{len(answer.tokens)} tokens and a count of {answer.count}")
    return tokens_of(answer.tokens)


def read_tokens_in_steps(body: bytes) -> Generator[None, None, Tokens]:
    """Decode an answer as `read_tokens` does, a long one in steps; returns the tokens at the end."""
    if len(body) <= STEP_BYTES:
        return read_tokens(body)
    begin = body.find(b"[", body.find(b'"tokens"')) + 1
    end = body.find(b"]", begin)
    rest = body[:begin] + body[end:]
    if not 0 < begin <= end or len(rest) > STEP_BYTES:
        raise ValueError("no list of tokens, or much else")
    answer, tokens, at = _decode(rest), tokens_of(()), begin
    while at < end:
        comma = body.find(b",", at + STEP_BYTES, end)
        to = comma if comma >= 0 else end
        tokens.extend(_decode_ids(b"[" + body[at:to] + b"]"))
        at = to + 1
        yield
    if answer.tokens or answer.count not in (None, len(tokens)):
        raise ValueError(f"{len(tokens)} tokens and a count of {answer.count}")
    return tokens


_SGLANG_FIELDS = (
    "messages",
    "tools",
    "tool_choice",
    "continue_final_message",
    "chat_template_kwargs",
    "reasoning",
    "reasoning_effort",
)
"""With `add_generation_prompt` SGLang's `/tokenize` renders a chat in another way than for an answer."""


def tokenize_bodies(
    request: InferenceRequest, model: str | None = None, rendering: Rendering = VLLM
) -> list[dict[str, Any]]:
    """Bodies for the `/tokenize` of a worker of a rendering, one for each prompt of a request, by which it
    makes the tokens that it would compute."""
    fields, model = request.fields, model or request.model
    is_sglang = rendering.engine == "sglang"
    if request.kind is RouteKind.CHAT:
        names = _SGLANG_FIELDS if is_sglang else _CHAT_FIELDS
        return [{"model": model, **{name: fields[name] for name in names if name in fields}}]
    prompt = fields.get("prompt")
    texts = prompt if isinstance(prompt, list) else [prompt]
    special = is_sglang or fields.get("add_special_tokens", True)
    return [{"model": model, "prompt": text, "add_special_tokens": special} for text in texts]
