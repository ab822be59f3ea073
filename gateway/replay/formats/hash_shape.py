"""Block size of hashed prompts, from their lengths and their numbers of hashes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

USUAL = (512, 16)
"""Block sizes of Mooncake's and of Qwen's traces, preferred where several fit."""
SIZES = (*USUAL, *(1 << power for power in range(17) if 1 << power not in USUAL))
MIN_FIT = 0.9
"""Share of rows that a block size must fit; the others are skipped as broken."""
MAX_LOOKED_AT = 10_000
"""Rows by which a block size is judged."""

Shape = tuple[int, int, int]
"""Prompt tokens, answer tokens, hashes."""


def _covers(length: int, output: int, size: int) -> int:
    return -(-length // size)


def _full(length: int, output: int, size: int) -> int:
    return length // size


def _with_answer(length: int, output: int, size: int) -> int:
    return -(-(length + output) // size)


RULES: Mapping[str, Callable[[int, int, int], int]] = {
    "prompts": _covers,
    "full blocks": _full,
    "prompts and answers": _with_answer,
}
"""Number of hashes that a row has of a size: of all blocks, of full blocks alone, or of the answer's too."""


@dataclass(frozen=True, slots=True)
class HashShape:
    """Tokens of a hash, and the rule by which rows have them."""

    size: int
    rule: str = "prompts"

    def fits(self, row: Shape) -> bool:
        length, output, num_hashes = row
        return RULES[self.rule](length, output, self.size) == num_hashes


def shape_of(rows: Sequence[Shape], forced: int | None = None) -> HashShape:
    """Find the shape that the rows have. Raises ValueError where they have none."""
    rows = rows[:MAX_LOOKED_AT]
    if forced:
        best = max((HashShape(forced, rule) for rule in RULES), key=lambda shape: _num_fits(shape, rows))
        num = _num_fits(best, rows)
        if num < MIN_FIT * len(rows):
            raise ValueError(f"--trace-block-size {forced} fits {num:,} of {len(rows):,} requests")
        return best
    if all(num_hashes <= 1 for _, _, num_hashes in rows):
        return HashShape(USUAL[0])
    shapes = [HashShape(size, rule) for rule in RULES for size in (*SIZES, *_other_sizes(rows, rule))]
    best = max(shapes, key=lambda shape: _num_fits(shape, rows))
    num = _num_fits(best, rows)
    if num < MIN_FIT * len(rows):
        raise ValueError(
            f"hash_ids have no common block size: {best.size} tokens fit best, {num:,} of {len(rows):,} "
            "requests; give it as --trace-block-size"
        )
    return best


def _other_sizes(rows: Sequence[Shape], rule: str) -> list[int]:
    """Sizes beside the powers of two, where the rows leave one only."""
    low, high = 1, 1 << 30
    for length, output, num_hashes in rows:
        tokens = length + output if rule == "prompts and answers" else length
        if rule == "full blocks":
            low = max(low, tokens // (num_hashes + 1) + 1)
            high = min(high, tokens // num_hashes if num_hashes else high)
        elif num_hashes:
            low = max(low, -(-tokens // num_hashes))
            high = min(high, (tokens - 1) // (num_hashes - 1) if num_hashes > 1 else high)
    return [low] if low == high else []


def _num_fits(shape: HashShape, rows: Sequence[Shape]) -> int:
    return sum(map(shape.fits, rows))
