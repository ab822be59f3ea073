"""Figures of the last hour in intervals of ten seconds, for `/admin/traffic`.

They are differences of what the metrics count anyway, taken every SAMPLE_S: a request costs nothing more.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import sub
from typing import Any, NamedTuple

from gateway.admin.console.pooled_bound import PooledBound, PooledCounts
from gateway.core.worker import WorkerId
from gateway.observability.metrics import (
    ITL_BOUNDS_S,
    REQUEST_BOUNDS_S,
    TTFT_BOUNDS_S,
    Metrics,
    WorkerMetrics,
)

SAMPLE_S = 2.0
INTERVAL_S = 10
NUM_INTERVALS = 360
GOOD = "2xx"


def by_range(bounds: Sequence[float], counts: Sequence[int]) -> dict[str, int]:
    """Counts of a histogram by the range of their bucket, as in 0.05-0.1; without those that are 0."""
    names = zip(["0", *map(str, bounds)], [*map(str, bounds), "inf"], strict=True)
    return {f"{low}-{high}": num for (low, high), num in zip(names, counts, strict=True) if num}


class WorkerCounts(NamedTuple):
    """Counts of one worker's traffic so far."""

    prompt_tokens: int
    output_tokens: int
    reported_prompt_tokens: int
    reported_cached_tokens: int
    predicted_cached_tokens: int
    ttft: tuple[int, ...]
    itl: tuple[int, ...]

    @classmethod
    def of(cls, counted: WorkerMetrics) -> "WorkerCounts":
        return cls(
            counted.prompt_tokens,
            counted.completion_tokens,
            counted.reported_prompt_tokens,
            counted.reported_cached_tokens,
            counted.compared_predicted_tokens,
            tuple(counted.ttft_s.counts),
            tuple(counted.itl_s.counts),
        )


NO_COUNTS = WorkerCounts.of(WorkerMetrics())


@dataclass(slots=True)
class Interval:
    """Counts of one interval."""

    number: int
    answers: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    tokens: list[int] = field(default_factory=lambda: [0] * 5)
    ttft: list[int] = field(default_factory=lambda: [0] * (len(TTFT_BOUNDS_S) + 1))
    itl: list[int] = field(default_factory=lambda: [0] * (len(ITL_BOUNDS_S) + 1))
    e2e: list[int] = field(default_factory=lambda: [0] * (len(REQUEST_BOUNDS_S) + 1))
    pooled: PooledCounts | None = None

    def add_worker(self, now: WorkerCounts, before: WorkerCounts) -> None:
        self.tokens = [
            total + more - less for total, more, less in zip(self.tokens, now[:5], before[:5], strict=True)
        ]
        _add(self.ttft, now.ttft, before.ttft)
        _add(self.itl, now.itl, before.itl)

    def describe(self) -> dict[str, Any]:
        prompt, output, compared, cached, predicted = self.tokens
        return {
            "id": self.number,
            "answers": dict(self.answers),
            "errors": dict(self.errors),
            "prompt_tokens": prompt,
            "output_tokens": output,
            "reported_prompt_tokens": compared,
            "reported_cached_tokens": cached,
            "predicted_cached_tokens": predicted,
            "ttft": by_range(TTFT_BOUNDS_S, self.ttft),
            "itl": by_range(ITL_BOUNDS_S, self.itl),
            "e2e": by_range(REQUEST_BOUNDS_S, self.e2e),
            "pooled": self.pooled._asdict() if self.pooled else None,
        }


class TrafficHistory:
    """The latest intervals; `pooled` is None where the hit rate of one large cache is not estimated."""

    def __init__(
        self, metrics: Metrics, pooled: PooledBound | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        """Start an empty history; `clock` is Unix time."""
        self._metrics, self._pooled, self._clock = metrics, pooled, clock
        self._intervals: deque[Interval] = deque(maxlen=NUM_INTERVALS)
        self._workers: dict[WorkerId, WorkerCounts] = {}
        self._answers: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self._e2e: tuple[int, ...] = (0,) * (len(REQUEST_BOUNDS_S) + 1)
        self._pooled_before = pooled.counts if pooled else None

    def sample(self) -> None:
        """Add what was counted since the last call to the interval of now."""
        metrics, before = self._metrics, self._workers
        interval = self._interval()
        self._workers = {name: WorkerCounts.of(counted) for name, counted in metrics.items()}
        for name, counts in self._workers.items():
            if counts != (known := before.get(name, NO_COUNTS)):
                interval.add_worker(counts, known)
        answers: Counter[str] = Counter()
        for (_, _, status_class), num in metrics.requests.items():
            answers[status_class] += num
        interval.answers += answers - self._answers
        interval.errors += metrics.errors - self._errors
        self._answers, self._errors = answers, metrics.errors.copy()
        e2e = _sum(
            [each.counts for (_, status), each in metrics.request_s.items() if status == GOOD], self._e2e
        )
        _add(interval.e2e, e2e, self._e2e)
        self._e2e = e2e
        if self._pooled and self._pooled_before:
            counts_now = self._pooled.counts
            more = PooledCounts(*map(sub, counts_now, self._pooled_before))
            interval.pooled = PooledCounts(
                *map(sum, zip(more, interval.pooled or (0,) * len(more), strict=True))
            )
            self._pooled_before = counts_now

    def latest(self, num_intervals: int = NUM_INTERVALS) -> list[Mapping[str, Any]]:
        """Intervals among the latest ones, oldest first."""
        least = int(self._clock() // INTERVAL_S) - num_intervals
        return [each.describe() for each in self._intervals if each.number > least]

    def _interval(self) -> Interval:
        number = int(self._clock() // INTERVAL_S)
        if not self._intervals or self._intervals[-1].number < number:
            self._intervals.append(Interval(number))
        return self._intervals[-1]


def _add(total: list[int], more: Sequence[int], less: Sequence[int]) -> None:
    for i, num in enumerate(map(sub, more, less)):
        total[i] += num


def _sum(several: Sequence[Sequence[int]], like: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(sum, zip(*several, strict=True))) if several else (0,) * len(like)


async def keep_sampled(history: TrafficHistory) -> None:
    while True:
        await asyncio.sleep(SAMPLE_S)
        history.sample()
