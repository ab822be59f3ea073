"""Hit rule: how much of a cached prefix an engine reuses. Pure.

plain         all full blocks before the prompt's last token, which is always computed
match unit    a multiple of it: hybrid models resume only where all their kinds of layers can
speculation   a block (or unit) less: EAGLE, MTP and their like need the hidden states of the last one, and
              drop it from each hit
"""

from typing import Final, NamedTuple


class HitRule(NamedTuple):
    """Hit rule of an engine. `unit_tokens` is 0 where a block is the unit. `drops_last` holds for versions
    before `drops_until`, where there is one: newer ones hash what follows a block too, and reuse all."""

    unit_tokens: int = 0
    drops_last: bool = False
    drops_until: tuple[int, ...] | None = None

    def settled(self, *, is_newer: bool) -> "HitRule":
        """Return the rule as it holds for one version, which `is_newer` than those that drop, or not."""
        drops_last = self.drops_last and not is_newer
        return HitRule(self.unit_tokens, drops_last) if self.unit_tokens or drops_last else PLAIN

    def num_reused(self, num_blocks: int, block_size: int) -> int:
        """Return how many of the leading cached blocks an engine reuses, of as many as it could."""
        unit = self.unit_tokens
        if not num_blocks or not (unit or self.drops_last):
            return num_blocks
        num_tokens = num_blocks * block_size
        if self.drops_last:
            num_tokens -= min(unit or block_size, block_size)
        if unit:
            num_tokens -= num_tokens % unit
        return num_tokens // block_size


PLAIN: Final = HitRule()
