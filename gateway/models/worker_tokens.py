"""A worker's answer to `/tokenize`: the tokens of one prompt, read in one place."""

from typing import Annotated

import msgspec

from gateway.core.blocks import Tokens, tokens_of

MAX_TOKEN_ID = 0xFFFF_FFFF


class _Answer(msgspec.Struct):
    tokens: list[Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKEN_ID)]]
    count: int | None = None


_decode = msgspec.json.Decoder(_Answer).decode


def read_tokens(body: bytes) -> Tokens:
    """Raises one of `decoding.UNREADABLE` for what is no list of ids, or not as many as it says."""
    answer = _decode(body)
    if answer.count is not None and answer.count != len(answer.tokens):
        raise ValueError(f"{len(answer.tokens)} tokens and a count of {answer.count}")
    return tokens_of(answer.tokens)
