"""Bodies of a worker's `/tokenize`, and the tokens in its answers."""

from typing import Annotated, Any

import msgspec

from gateway.core.blocks import Tokens, tokens_of
from gateway.core.requests.request import InferenceRequest
from gateway.core.requests.routes import RouteKind

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


class _Answer(msgspec.Struct):
    tokens: list[Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKEN_ID)]]
    count: int | None = None


_decode = msgspec.json.Decoder(_Answer).decode


def read_tokens(body: bytes) -> Tokens:
    """Decode an answer. Raises one of `decoding.UNREADABLE` for an invalid list of ids, or a count that does
    not match."""
    answer = _decode(body)
    if answer.count is not None and answer.count != len(answer.tokens):
        raise ValueError(f"{len(answer.tokens)} tokens and a count of {answer.count}")
    return tokens_of(answer.tokens)


def tokenize_bodies(request: InferenceRequest, model: str | None = None) -> list[dict[str, Any]]:
    """Bodies for a worker's `/tokenize`, one for each prompt of a request."""
    fields, model = request.fields, model or request.model
    if request.kind is RouteKind.CHAT:
        kept = {name: fields[name] for name in _CHAT_FIELDS if name in fields}
        return [{"model": model, **kept}]
    prompt = fields.get("prompt")
    texts = prompt if isinstance(prompt, list) else [prompt]
    special = fields.get("add_special_tokens", True)
    return [{"model": model, "prompt": text, "add_special_tokens": special} for text in texts]
