"""Predicted cached tokens beside those that the engine reported: an error, an unknown surplus, or agreement.

A worker without exact KV events (none, or a stream with gaps) has more cached than kvgate sent there: above
all its own answers, which the next turn of a chat repeats. Its prediction is the least that is cached; tokens
beyond that are *unknown*, no error. Fewer tokens than predicted are an error everywhere.
"""

from typing import NamedTuple

from gateway.core.decision import Decision
from gateway.core.usage import Usage


class Compared(NamedTuple):
    """A prediction beside the report, in tokens. `error` is reported minus predicted, `unknown` the tokens
    beyond what could be known; one of them is 0."""

    error: int
    unknown: int


def prediction_error(predicted: int, reported: int, block_size: int) -> int:
    """Reported minus predicted tokens; 0 where an engine without blocks agrees within a block.

    Engines with blocks reuse whole ones. A count that is no multiple of a block (llama.cpp and MLX keep each
    token) is known to the gateway to a block only, which is the grain of its own bookkeeping.
    """
    error = reported - predicted
    return 0 if reported % block_size and abs(error) < block_size else error


def compared(decision: Decision, usage: Usage) -> Compared:
    """Compare a decision with a usage that reports cached tokens. A surplus of a prompt that the engine
    counts otherwise than kvgate is an error: other tokens are looked up than are cached."""
    cached = usage.cached_tokens or 0
    error = prediction_error(decision.overlap_tokens, cached, decision.worker.block_size or 1)
    if error > 0 and usage.prompt_tokens in (0, decision.num_tokens) and not decision.is_exact:
        return Compared(0, error)
    return Compared(error, 0)
