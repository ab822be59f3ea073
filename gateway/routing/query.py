"""The query: a request as policies see it."""

from collections.abc import Mapping, Sequence
from typing import Final

from gateway.core.blocks import BlockHash, count_tokens
from gateway.core.decision import Prompt, Query
from gateway.core.fleet import HashGroup
from gateway.core.request import InferenceRequest
from gateway.routing.candidates import CachedPrefix

PREFIX_TOKENS: Final = 256
"""Leading prompt tokens that `Query.prefix` identifies; all of a shorter prompt."""

Hashed = Mapping[HashGroup, Sequence[Sequence[BlockHash]]]
"""The block hashes of each prompt, as workers of each group see them."""


def query_of(
    request: InferenceRequest,
    prompt: Prompt,
    group: HashGroup,
    hashed: Hashed | None,
    cached: CachedPrefix | None = None,
    now_s: float = 0.0,
    *,
    predicts: bool = True,
) -> Query:
    """Return the query of a request. `group` is that of any worker of the model: all serve it by the same
    adapter. `hashed` is None where no policy reads the prefix."""
    return Query(
        request.model,
        count_tokens(prompt.tokens),
        request.session,
        tenant=request.tenant,
        adapter=group.adapter,
        priority=-(request.priority or 0),
        slo_ttft_s=request.slo_ttft_s,
        prefix=prefix_of(hashed) if hashed is not None else None,
        queued_s=request.queued_s,
        cached=cached.block if cached else None,
        cached_tokens=cached.num_tokens if cached else 0,
        computing_tokens=cached.computing_tokens if cached else 0,
        now_s=now_s,
        predicts=predicts,
    )


def prefix_of(hashed: Hashed) -> BlockHash | None:
    """Return the hash of the prompt's prefix: shared by the turns of a conversation, and longer than a
    greeting."""
    for group, prompts in hashed.items():
        for blocks in prompts:
            if blocks:
                return blocks[min(len(blocks), max(PREFIX_TOKENS // group.block_size, 1)) - 1]
    return None
