"""Traffic of a group of workers over the last minutes, as differences of counts that grow."""

import math
from collections import deque
from typing import NamedTuple

KEPT_S = 300.0


class Counts(NamedTuple):
    """Sums since the start, or of a window.

    requests         sent to workers
    prompt_tokens    to be computed: arrived, and not cached
    handed_tokens    that prefill workers of the same model computed for them
    output_tokens    of the answers, by their length lately
    in_time, late    first tokens within the TTFT objective, and after it
    unserved         requests that no worker got: none was up, or the queue rejected them
    num_running, num_waiting   as workers reported them at each round
    kv_usage         of their caches at the same time, as shares of one
    prompt_squares   prompt tokens that were computed, squared for each prompt
    """

    requests: float = 0.0
    prompt_tokens: float = 0.0
    output_tokens: float = 0.0
    in_time: float = 0.0
    late: float = 0.0
    unserved: float = 0.0
    num_running: float = 0.0
    kv_usage: float = 0.0
    handed_tokens: float = 0.0
    num_waiting: float = 0.0
    prompt_squares: float = 0.0

    @property
    def num_running_of_cache(self) -> float:
        """Answers that fill a cache, shared prefixes counted once; infinite where that was not seen."""
        return self.num_running / self.kv_usage if self.num_running and self.kv_usage else math.inf

    def plus(self, other: "Counts") -> "Counts":
        return Counts(*[a + b for a, b in zip(self, other, strict=True)])

    def minus(self, other: "Counts") -> "Counts":
        """The difference; a count that fell (a booking was cancelled) counts as 0."""
        return Counts(*[max(a - b, 0.0) for a, b in zip(self, other, strict=True)])


class TrafficWindow(NamedTuple):
    """Counts of the last `seconds`."""

    seconds: float
    counts: Counts

    @property
    def requests_per_s(self) -> float:
        """Requests that came, served or not."""
        return (self.counts.requests + self.counts.unserved) / self.seconds

    @property
    def prompt_tokens_per_s(self) -> float:
        return self.counts.prompt_tokens / self.seconds

    @property
    def output_tokens_per_s(self) -> float:
        return self.counts.output_tokens / self.seconds

    @property
    def attainment(self) -> float | None:
        """Share of requests that met the objective; None where there were none."""
        counts = self.counts
        num = counts.in_time + counts.late + counts.unserved
        return counts.in_time / num if num else None


class History:
    """Sums of one group, kept for KEPT_S."""

    def __init__(self) -> None:
        self.total = Counts()
        self._kept: deque[tuple[float, Counts]] = deque()

    def __repr__(self) -> str:
        return f"History({self.total}, {len(self._kept)} samples)"

    def add(self, more: Counts, now: float) -> None:
        """Add what came since the last call."""
        if not self._kept:
            self._kept.append((now, self.total))
        self.total = self.total.plus(more)
        if now > self._kept[-1][0]:
            self._kept.append((now, self.total))
        while len(self._kept) > 2 and self._kept[1][0] <= now - KEPT_S:
            self._kept.popleft()

    def window(self, seconds: float) -> TrafficWindow:
        """The window of about `seconds` before the last sample: at least that much, where it was seen."""
        if len(self._kept) < 2:
            return TrafficWindow(seconds, Counts())
        now = self._kept[-1][0]
        at_s, before = self._kept[0]
        for each in reversed(self._kept):
            if each[0] <= now - seconds:
                at_s, before = each
                break
        return TrafficWindow(max(now - at_s, 1e-9), self.total.minus(before))
