"""Proof that a worker keeps prompts of different `cache_salt`s apart: the requests, and the verdict. Pure.

1  a prompt that is nowhere cached, salt A
2  the same again                              must be a hit, else the worker reports nothing to judge by
3  the same, salt B                            must be none

A hit at 3 is a proof to the contrary also where 2 was none: the worker may have answered from another rank.
"""

import random
from collections.abc import Sequence
from typing import Any

from gateway.core.eligibility import Isolation, SaltProof
from gateway.core.usage import Usage
from gateway.core.usage_reading import read_usage
from gateway.discovery.probed import Facts

PATH = "/v1/completions"
BLOCK = 16
"""Fewest tokens per block assumed: of an engine that reports none, or has blocks of single tokens."""
FIRST_ID, LAST_ID = 32, 1000
"""Token ids of the prompt: in every vocabulary, and behind most special tokens."""


def requests_of(facts: Facts, rng: random.Random) -> list[dict[str, Any]]:
    """The bodies to send, one after the other; none where the endpoint serves no base model."""
    base = next((model for model in facts.models if not model.parent), None)
    if base is None:
        return []
    block = max((metrics.block_size or 0 for metrics in facts.ranks.values()), default=0) or BLOCK
    num = 2 * max(block, BLOCK) + 1
    if base.max_model_len is not None:
        num = min(num, base.max_model_len - 1)
    prompt = [rng.randrange(FIRST_ID, LAST_ID) for _ in range(num)]
    one, other = (f"kvgate-{rng.getrandbits(128):032x}" for _ in range(2))
    body = {"model": base.id, "prompt": prompt, "max_tokens": 1, "temperature": 0}
    return [body | {"cache_salt": salt} for salt in (one, one, other)]


def verdict_of(answers: Sequence[bytes | None]) -> SaltProof:
    """The proof that the answers to `requests_of` give; None stands for a request that failed."""
    usages = [read_usage(answer or b"") for answer in answers]
    if len(usages) < 3 or not all(isinstance(usage, Usage) for usage in usages):
        return SaltProof(Isolation.UNKNOWN, f"it does not answer {PATH} with token ids and a cache_salt")
    _, again, other = (_cached(usage) for usage in usages)
    if other:
        return SaltProof(
            Isolation.SHARED, f"it ignores cache_salt: {other} tokens of another salt's prompt were cached"
        )
    if not again:
        return SaltProof(Isolation.UNKNOWN, "it reports no cached tokens of a repeated prompt")
    return SaltProof(Isolation.APART, f"{again} tokens cached under their own salt, none under another")


def _cached(usage: object) -> int:
    return (usage.cached_tokens or 0) if isinstance(usage, Usage) else 0
