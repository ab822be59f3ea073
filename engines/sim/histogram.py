"""Prometheus histogram: cumulative buckets, sum and count, with vLLM's bucket bounds."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

# fmt: off
TTFT_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
          40.0, 80.0, 160.0, 640.0, 2560.0)
ITL_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
         80.0)
E2E_S = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
         480.0, 960.0, 1920.0, 7680.0)
# fmt: on


class SimHistogram:
    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def __repr__(self) -> str:
        return f"SimHistogram(count={self.count}, sum={self.sum:.6g})"

    @property
    def count(self) -> int:
        return sum(self._counts)

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def buckets(self) -> Iterator[tuple[str, int]]:
        """Buckets as (le, observations up to it), the last one "+Inf"."""
        names = [*map(str, self._bounds), "+Inf"]
        return zip(names, accumulate(self._counts), strict=True)
