"""Time budget of a worker's `/tokenize`, which follows the time that the worker takes. Pure.

before any answer   a quarter of the limit; the probes of a worker that joins are answers
answered            smoothed time and four mean deviations (the estimator of RFC 6298), or twice the time, or
                    half as much again as the longest time of late; by the size of the body
late                twice as long each time, until an answer comes again: also the late one, which goes on

The longest time is forgotten slowly, by 1 in 256 with each answer: a worker that is busy now and then is slow
for one prompt of many, and the mean of all is no measure for that one.

The budget is never longer than the limit, and never shorter than a twentieth of it: an idle worker answers
within milliseconds, and a pause of its event loop is no reason to route by load.
"""

BYTES_PER_ROUND_TRIP = 16 << 10
"""Bytes of a body that take about as long to tokenize as its round trip: a few milliseconds."""
FIRST_SHARE, LEAST_SHARE = 1 / 4, 1 / 20
MEAN_WEIGHT, DEVIATION_WEIGHT = 1 / 8, 1 / 4
NUM_DEVIATIONS = 4
LONGEST_ROOM, LONGEST_KEPT = 3 / 2, 255 / 256
MAX_BACKOFF = 32


class TokenizeBudget:
    """Budget of one worker, in seconds; `limit_s` bounds it."""

    __slots__ = ("_backoff", "_deviation_s", "_limit_s", "_longest_s", "_mean_s")

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._mean_s: float | None = None  # all three are of one unit of work
        self._deviation_s = self._longest_s = 0.0
        self._backoff = 1

    def __repr__(self) -> str:
        return f"TokenizeBudget({self.seconds(0):.3f} of {self._limit_s} s)"

    def seconds(self, num_bytes: int, num_calls: int = 1) -> float:
        """Longest wait for bodies of so many bytes together, asked for one after the other."""
        if self._mean_s is None:
            expected = FIRST_SHARE * self._limit_s
        else:
            unit_s = self._mean_s + max(self._mean_s, NUM_DEVIATIONS * self._deviation_s)
            expected = max(unit_s, LONGEST_ROOM * self._longest_s) * _work(num_bytes, num_calls)
        return min(max(expected * self._backoff, LEAST_SHARE * self._limit_s), self._limit_s)

    def answered(self, took_s: float, num_bytes: int) -> None:
        """Learn from an answer to a body of so many bytes."""
        unit_s = took_s / _work(num_bytes, 1)
        self._longest_s = max(unit_s, LONGEST_KEPT * self._longest_s)
        if self._mean_s is None:
            self._mean_s, self._deviation_s = unit_s, unit_s / 2
        else:
            self._deviation_s += DEVIATION_WEIGHT * (abs(unit_s - self._mean_s) - self._deviation_s)
            self._mean_s += MEAN_WEIGHT * (unit_s - self._mean_s)
        self._backoff = 1

    def late(self) -> None:
        """Wait longer the next time: the call was given up, and its true time stays unknown."""
        self._backoff = min(2 * self._backoff, MAX_BACKOFF)


def _work(num_bytes: int, num_calls: int) -> float:
    return num_calls + num_bytes / BYTES_PER_ROUND_TRIP
