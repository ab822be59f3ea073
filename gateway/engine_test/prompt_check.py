"""Tokens of one prompt by every source that has them. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PromptCheck:
    """A prompt of some `shape`: its tokens by kvgate (`ours`) and by the worker's own tokenizer (`theirs`),
    empty where unknown, and the prompt tokens that the answer `counted`, None where it counts none."""

    shape: str
    ours: Sequence[int]
    theirs: Sequence[int]
    counted: int | None

    @property
    def is_compared(self) -> bool:
        """True if two sources know it."""
        return bool(self.ours or self.theirs) and (
            self.counted is not None or bool(self.ours and self.theirs)
        )

    def difference(self) -> str | None:
        """The first two sources that differ, in words; None where all agree."""
        ours, theirs, counted = self.ours, self.theirs, self.counted
        if theirs and counted not in (None, len(theirs)):
            return f"{self.shape}: {len(theirs)} by its own tokenizer, {counted} counted"
        if ours and counted not in (None, len(ours)):
            return f"{self.shape}: {len(ours)} by kvgate, {counted} counted"
        if ours and theirs and list(ours) != list(theirs):
            pairs = enumerate(zip(ours, theirs, strict=False))
            at = next((i for i, (one, other) in pairs if one != other), min(len(ours), len(theirs)))
            return f"{self.shape}: other tokens by kvgate than by its own tokenizer, from token {at + 1} on"
        return None
