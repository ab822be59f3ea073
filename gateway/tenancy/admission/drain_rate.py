"""Drain rate of a queue: the one estimate of how long its requests wait.

A request leaves a queue when a worker has room: at the end of an answer where requests in flight are bounded,
at the end of a computed prompt where predicted TTFT is. So both are counted, requests and tokens of prompts,
and the slower one bounds the queue.

    rate = (some requests + those that left) / (their predicted time + time of waiting)

The prediction counts as so many requests that have left already, and as fewer the more have. It is all there
is while the first answers run; what has been seen outweighs it soon, however wrong it is.
"""

import math
from typing import Final

from mypy_extensions import mypyc_attr

MEMORY_S: Final = 20.0
"""Seconds: long enough to see several requests of a busy fleet leave, short enough to follow a worker that
joins."""
PRIOR_REQUESTS: Final = 4.0
"""Weight of the prediction before a request has left, in requests: 16 makes the early and the late errors of
`loadtest/bench_waits.py` larger."""


@mypyc_attr(acyclic=True)
class PredictedRate:
    """Requests and tokens per second that leave a queue by the speed of the workers; infinite where nothing
    bounds them."""

    __slots__ = ("requests_per_s", "tokens_per_s")

    def __init__(self, requests_per_s: float, tokens_per_s: float) -> None:
        self.requests_per_s = requests_per_s
        self.tokens_per_s = tokens_per_s

    def __repr__(self) -> str:
        return f"PredictedRate({self.requests_per_s:.3g} requests/s, {self.tokens_per_s:.0f} tokens/s)"


@mypyc_attr(acyclic=True)
class DrainRate:
    """Moving sums of the requests and tokens that leave a queue; only the time between `begin` and `end`
    counts."""

    def __init__(self) -> None:
        self._requests = 0.0
        self._tokens = 0.0
        self._seconds = 0.0
        self._at_s: float | None = None  # time of the last update while something waits

    def __repr__(self) -> str:
        return f"DrainRate({self._requests:.1f} requests, {self._tokens:.0f} tokens in {self._seconds:.1f} s)"

    def begin(self, now: float) -> None:
        """Start the clock: the queue is no longer empty."""
        if self._at_s is None:
            self._at_s = now

    def end(self, now: float) -> None:
        self._advance(now)
        self._at_s = None

    def left(self, num_tokens: int, now: float) -> None:
        """Count a request that left the queue to be served."""
        self._advance(now)
        self._requests += 1.0
        self._tokens += num_tokens

    def seconds_for(
        self, num_requests: float, num_tokens: float, predicted: PredictedRate, now: float
    ) -> float:
        """Seconds until so many requests, with so many tokens together, have left."""
        self._advance(now)
        if num_requests <= 0.0:
            return 0.0
        weight = PRIOR_REQUESTS * PRIOR_REQUESTS / (PRIOR_REQUESTS + self._requests)
        seconds = weight / predicted.requests_per_s + self._seconds
        by_requests_s = num_requests * seconds / (weight + self._requests)
        weight = max(weight * num_tokens / num_requests, 1.0)  # in tokens
        seconds = weight / predicted.tokens_per_s + self._seconds
        return max(by_requests_s, num_tokens * seconds / (weight + self._tokens))

    def _advance(self, now: float) -> None:
        if self._at_s is None or now <= self._at_s:
            return
        kept = math.exp((self._at_s - now) / MEMORY_S)
        self._requests *= kept
        self._tokens *= kept
        self._seconds = self._seconds * kept + MEMORY_S * (1 - kept)
        self._at_s = now
