"""Answers of a worker's `/tokenize`: decodes the tokens of one prompt."""

from typing import Annotated

import msgspec

from gateway.core.blocks import Tokens, tokens_of

MAX_TOKEN_ID = 0xFFFF_FFFF


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
