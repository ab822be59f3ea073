"""Prompt limit: a prompt too long for all workers of a model is rejected here, as the workers would."""

from collections.abc import Sequence

from gateway.core.fleet import EligibleWorker

REFUSING = frozenset({"vllm"})
"""Engines that always reject a prompt over their context; others may truncate it."""


def longest_prompt(eligible: Sequence[EligibleWorker]) -> int:
    """Return the tokens of the longest prompt that a worker accepts; 0 where a worker's limit is unknown, or
    its tokens differ from the gateway's."""
    longest = 0
    for each in eligible:
        most = each.served.max_model_len
        if not most or each.is_apart or each.member.worker.engine not in REFUSING:
            return 0
        longest = max(longest, most)
    return longest
