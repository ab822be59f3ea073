"""How long a prompt may be: one that none of a model's workers takes is refused here, as they would."""

from collections.abc import Sequence

from gateway.core.fleet import Eligible

REFUSING = frozenset({"vllm"})
"""Engines that refuse a prompt over their context, whatever they were started with. Others may cut it."""


def longest_prompt(eligible: Sequence[Eligible]) -> int:
    """Tokens of the longest prompt that one of these workers takes. 0 where that is not known of each, or it
    counts other tokens than we."""
    longest = 0
    for each in eligible:
        most = each.served.max_model_len
        if not most or each.is_apart or each.member.worker.engine not in REFUSING:
            return 0
        longest = max(longest, most)
    return longest
