"""Budgets for copies: when a prefix that many requests share is worth a copy on one more worker.

A request that goes where its prefix is cached waits longer than it would at another worker with a copy.
These waits add up to the prefix's budget, and once that pays for the copy, the next request makes it: rent
until the rents add up to the price, then buy. That is never more than twice as dear as the best choice in
hindsight. A wait halves every HALF_S, so that a prefix that is no longer hot buys nothing. The first copy of
a prefix costs no budget.
"""

from typing import Final

from gateway.core.blocks import BlockHash

HALF_S: Final = 30.0
MAX_PREFIXES: Final = 10_000
"""Prefixes with a budget; those least lately waited for are forgotten."""


class CopyBudgets:
    def __init__(self) -> None:
        self._saved: dict[BlockHash, tuple[float, float]] = {}

    def __repr__(self) -> str:
        return f"CopyBudgets({len(self._saved)} prefixes)"

    def twin(self) -> "CopyBudgets":
        other = CopyBudgets()
        other._saved = dict(self._saved)
        return other

    def of(self, prefix: BlockHash, now_s: float) -> float:
        """Seconds that a copy of a prefix may cost."""
        found = self._saved.get(prefix)
        return _left(found, now_s) if found else 0.0

    def waited(self, prefix: BlockHash, seconds: float, now_s: float) -> None:
        """Add what one more copy would have spared a request."""
        if seconds <= 0.0:
            return
        saved = self._saved
        found = saved.pop(prefix, None)
        saved[prefix] = (_left(found, now_s) if found else 0.0) + seconds, now_s
        if len(saved) > MAX_PREFIXES:
            del saved[next(iter(saved))]

    def spent(self, prefix: BlockHash) -> None:
        """Begin again: a copy is made."""
        self._saved.pop(prefix, None)


def _left(saved: tuple[float, float], now_s: float) -> float:
    seconds, at_s = saved
    return float(seconds * 0.5 ** (max(now_s - at_s, 0.0) / HALF_S))
