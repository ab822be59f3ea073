"""How fast workers compute prompts, and how fast KV goes from one to another: learnt from what happened.

A speed begins as configured and moves towards each observation by a part of what they differ by, in the
logarithm, and by no more than a factor of MOST: one request that waited for something unseen must not halve
what is believed. Observations of little work are made of overhead, and are left out.
"""

import math

from gateway.core.worker import WorkerId

STEP = 0.1
MOST = math.log(4)
MIN_TOKENS = 256
"""Of a prompt that tells something of a speed: some 10 ms of work."""


class Speeds:
    """Tokens per second; `transfer_latency_s` is what a transfer of nothing takes."""

    def __init__(
        self, *, prefill_tokens_per_s: float, transfer_tokens_per_s: float, transfer_latency_s: float
    ) -> None:
        self._prior = math.log(prefill_tokens_per_s)
        self._prefill: dict[WorkerId, float] = {}
        self._transfer = math.log(transfer_tokens_per_s)
        self._latency_s = transfer_latency_s

    def __repr__(self) -> str:
        known = {worker: round(math.exp(speed)) for worker, speed in self._prefill.items()}
        return f"Speeds(prefill={known}, transfer={math.exp(self._transfer):.0f})"

    def prefill(self, worker: WorkerId) -> float:
        return math.exp(self._prefill.get(worker, self._prior))

    def transfer_s(self, num_tokens: int) -> float:
        return self._latency_s + num_tokens / math.exp(self._transfer)

    def prefilled(self, worker: WorkerId, num_tokens: int, seconds: float) -> None:
        """So many tokens, and those that were ahead of them, were computed in that time."""
        if num_tokens >= MIN_TOKENS and seconds > 0:
            believed = self._prefill.get(worker, self._prior)
            self._prefill[worker] = _moved(believed, num_tokens / seconds)

    def transferred(self, num_tokens: int, seconds: float) -> None:
        """So many tokens were fetched, and the next one computed, in that time."""
        if num_tokens >= MIN_TOKENS and seconds > 0:
            taken = max(seconds - self._latency_s, seconds / 4)
            self._transfer = _moved(self._transfer, num_tokens / taken)

    def drop(self, worker: WorkerId) -> None:
        self._prefill.pop(worker, None)


def _moved(believed: float, seen: float) -> float:
    return believed + STEP * min(max(math.log(seen) - believed, -MOST), MOST)
