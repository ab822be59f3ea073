"""The speed of KV transfers from one worker to another, learnt from finished transfers.

The estimate begins at TOKENS_PER_S and moves towards each observation by a part of their difference, in the
logarithm, of which at most MOST counts: one request that waited for something unseen must not halve the
estimate. Observations of short prompts measure overhead, and are ignored.
"""

import math
from typing import Final

STEP: Final = 0.1
MOST: Final = math.log(4)
TOKENS_PER_S: Final = 90_000.0
"""The first estimate: 128 KiB a token (an 8B model's) at 100 Gbit/s."""
LATENCY_S: Final = 0.015
"""A transfer of nothing: two requests and a handshake."""
MIN_TOKENS: Final = 256
"""Shorter prompts say nothing about the speed: this many take some milliseconds to transfer."""


class TransferSpeed:
    """The speed estimate for all pairs; `latency_s` is the time of an empty transfer."""

    def __init__(self, *, tokens_per_s: float = TOKENS_PER_S, latency_s: float = LATENCY_S) -> None:
        self._log = math.log(tokens_per_s)
        self._latency_s = latency_s

    def __repr__(self) -> str:
        return f"TransferSpeed({self.tokens_per_s:.0f} tokens/s)"

    @property
    def tokens_per_s(self) -> float:
        return math.exp(self._log)

    def seconds(self, num_tokens: int) -> float:
        return self._latency_s + num_tokens / math.exp(self._log)

    def transferred(self, num_tokens: int, seconds: float, ahead_s: float = 0.0) -> None:
        """Learn from a transfer: its tokens were fetched, and the next one computed, in `seconds`. Ignored
        where half of that was the decode worker's queue: a queue must not look like a slow link, or all
        prompts would be computed where the queue is."""
        if num_tokens >= MIN_TOKENS and seconds > 0 and ahead_s < seconds / 2:
            taken = max(seconds - ahead_s - self._latency_s, seconds / 4)
            off = math.log(num_tokens / taken) - self._log
            self._log += STEP * min(max(off, -MOST), MOST)
