"""How fast a prompt's cache goes from one worker to another: learnt from what happened.

It begins as configured and moves towards each observation by a part of what they differ by, in the logarithm,
and by no more than a factor of MOST: one request that waited for something unseen must not halve what is
believed. Observations of little work are made of overhead, and are left out.
"""

import math

STEP = 0.1
MOST = math.log(4)
MIN_TOKENS = 256
"""Of a prompt that tells something of a speed: some milliseconds on the way."""


class TransferSpeed:
    """Of all pairs; `latency_s` is what a transfer of nothing takes."""

    def __init__(self, *, tokens_per_s: float, latency_s: float) -> None:
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
        """So many tokens were fetched, and the next one computed, in that time. Where half of it went to what
        the decode worker had ahead, it tells nothing: a queue must not look like a slow link, or all would
        be computed where the queue is."""
        if num_tokens >= MIN_TOKENS and seconds > 0 and ahead_s < seconds / 2:
            taken = max(seconds - ahead_s - self._latency_s, seconds / 4)
            off = math.log(num_tokens / taken) - self._log
            self._log += STEP * min(max(off, -MOST), MOST)
