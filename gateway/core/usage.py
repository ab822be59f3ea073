"""Token counts that an engine reports of an answer: the values, and their wire formats as msgspec structs.

`usage_reading` decodes and judges them; it is compiled, and compiled modules keep no types for msgspec.
"""

from typing import Annotated, TypeAlias

import msgspec

MAX_LEN = 1 << 24
"""Tokens of a sequence at a worker that does not say; the longest contexts today are 10 million."""
MAX_ANSWERS = 1 << 14
"""Answers of one request: as many as vLLM gives at most (VLLM_MAX_N_SEQUENCES)."""
MAX_TURNS = 128
"""Turns of a response: with tools of the engine's own, each turn's prompt is counted again."""


class UsageLimit(msgspec.Struct, frozen=True, gc=False):
    """The most tokens that an answer can be about. SGLang adds up the cached tokens of each of `num_answers`
    to a prompt, and counts the prompt once."""

    prompt: int
    output: int
    num_answers: int = 1


WIDEST = UsageLimit(MAX_LEN * MAX_TURNS, MAX_LEN * MAX_TURNS, MAX_ANSWERS)
"""Where it is not known what was asked."""


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Token counts as the engine reported them; None for those that it did not report. `has_null`: it wrote
    null for the cached tokens, or for their details; None: details without cached tokens, which are unknown.
    """

    prompt_tokens: int = 0
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    has_null: bool | None = False


class RefusedUsage(msgspec.Struct, frozen=True):
    """A usage that cannot be, and why, in words."""

    why: str


# wire formats ----------------------------------------------------------------------------------

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


class Details(msgspec.Struct):
    """Details of the prompt's or the input's tokens."""

    cached_tokens: Count | None | msgspec.UnsetType = msgspec.UNSET


class ReportedUsage(msgspec.Struct):
    """Usage by any of the routes: that of /v1/messages counts cached tokens apart from its input."""

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    prompt_tokens_details: Details | None | msgspec.UnsetType = msgspec.UNSET
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    input_tokens_details: Details | None | msgspec.UnsetType = msgspec.UNSET
    cache_read_input_tokens: Count | None | msgspec.UnsetType = msgspec.UNSET
    cache_creation_input_tokens: Count | None = None


NULL = msgspec.Raw(b"null")


class ResponseObject(msgspec.Struct):
    """The `response` in an event of /v1/responses, or the `message` in one of /v1/messages."""

    usage: msgspec.Raw = NULL


class MessageStart(msgspec.Struct):
    """The event that begins a stream of /v1/messages."""

    message: ResponseObject


class LlamaTimings(msgspec.Struct):
    """llama.cpp's own: the tokens of a prompt that came from the cache."""

    cache_n: Count


class AnswerWithUsage(msgspec.Struct):
    """The parts of an answer, or of an event's data, that report usage."""

    usage: msgspec.Raw = NULL
    response: ResponseObject | None = None
    meta_info: msgspec.Raw = NULL
    """That of SGLang's own /generate."""
    timings: msgspec.Raw = NULL
