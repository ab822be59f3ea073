"""Outlier detection: ejection of workers that answer probes but fail requests. Pure.

    failures in a row ──► ejected for a while, longer each time; then one request may try
    no step though requests wait ──► ejected until steps move, or, where nothing waits there any more,
                                     until one request may try

A worker that failed and was readmitted is ejected with its next failure, unless it answered before.
"""

from dataclasses import dataclass

LONGEST_S = 300.0
"""Longest ejection: a repaired worker should not have to wait for longer."""
WELL_AFTER = 5
"""Successful answers after which an ejection is forgotten."""


@dataclass(frozen=True, slots=True)
class OutlierRules:
    """Thresholds of outlier detection; 0 means never."""

    num_failures: int = 5
    eject_s: float = 10.0
    stalled_s: float = 60.0
    max_ejected_percent: float = 10.0

    def bound(self, num_workers: int) -> int:
        """Return how many of a model's workers may be ejected for failed requests: at least one."""
        return max(1, int(num_workers * self.max_ejected_percent / 100.0))


@dataclass(frozen=True, slots=True)
class Ejection:
    """Ejection of a worker: `cause` for metrics, `reason` for people. `is_bounded`: requests may be the
    cause, so that only a share of a model's workers is ejected."""

    cause: str
    reason: str
    is_bounded: bool = False


@dataclass(frozen=True, slots=True)
class EngineProgress:
    """Progress of an engine: `tokens` and `kv_usage` move with its steps; `num_here` requests run or wait
    there, as reported, or were sent and have no answer yet."""

    tokens: float
    kv_usage: float
    num_here: int


class OutlierState:
    """Outlier state of one worker. `ejection` is set while it is ejected. Times are seconds on the caller's
    clock."""

    def __init__(self, rules: OutlierRules) -> None:
        self._rules = rules
        self.ejection: Ejection | None = None
        self.num_ejections = 0
        self._num_failures = self._num_sent = self._num_at_ejection = 0
        self._answered = 0
        self._until_s = 0.0
        self._last: EngineProgress | None = None
        self._moved_s = 0.0

    def __repr__(self) -> str:
        return f"OutlierState({self.ejection.reason if self.ejection else 'well'})"

    def failed(self, reason: str, num_answered: int, *, is_silent: bool = False) -> Ejection | None:
        """Count a failed request of a worker with `num_answered` successes since it joined; `is_silent`: it
        accepted no connection in time. Returns the ejection that is due (see `eject`), or None."""
        if num_answered != self._answered:
            self._num_failures = self._num_sent = 0
        if num_answered >= self._answered + WELL_AFTER:
            self.num_ejections = 0
        self._answered = num_answered
        self._num_failures += 1
        self._num_sent += not is_silent
        limit = 1 if self.num_ejections else self._rules.num_failures
        if self.ejection or not limit or self._num_failures < limit or not self._rules.num_failures:
            return None
        times = "the first since readmission" if self.num_ejections else f"{self._num_failures} in a row"
        return Ejection("failures", f"failed requests ({times}): {reason}", is_bounded=self._num_sent > 0)

    def has_answered(self, num_answered: int) -> bool:
        """Return True if the worker answered a request since its last failure."""
        return num_answered != self._answered

    def looked(self, progress: EngineProgress | None, now: float) -> Ejection | None:
        """Check the progress of a worker that answered its probe. Returns the ejection that is due,
        or None."""
        if progress is None:
            return None
        last = self._last
        has_moved = last is None or (progress.tokens, progress.kv_usage) != (last.tokens, last.kv_usage)
        self._last = progress
        if has_moved or not progress.num_here:
            self._moved_s = now
            if has_moved and self._is_stalled:
                self._until_s = now
            return None
        still_s = now - self._moved_s
        if not self._rules.stalled_s or self.ejection or still_s < self._rules.stalled_s:
            return None
        return Ejection("stalled", f"no engine step in {still_s:.0f} s, with {progress.num_here} requests")

    def eject(self, ejection: Ejection, now: float) -> float:
        """Eject the worker; returns for how many seconds."""
        seconds = min(self._rules.eject_s * 2.0**self.num_ejections, LONGEST_S)
        self.ejection, self._until_s = ejection, now + seconds
        self.num_ejections += 1
        self._num_at_ejection, self._num_failures, self._num_sent = self._num_failures, 0, 0
        return seconds

    def acquit(self, num: int, now: float) -> bool:
        """Take back `num` failures, which were the requests' own fault. True if the worker was ejected for no
        others, and may return at once."""
        self._num_failures = max(0, self._num_failures - num)
        self._num_sent = max(0, self._num_sent - num)
        if self.ejection is None or self.ejection.cause != "failures" or num < self._num_at_ejection:
            return False
        self._until_s = now
        self.num_ejections -= 1
        return True

    def may_return(self, now: float) -> bool:
        """Return True if the ejection is over, and no earlier request is still stuck there."""
        if self.ejection is None or now < self._until_s:
            return False
        is_stuck = self._is_stalled and self._last is not None and self._last.num_here and now > self._moved_s
        return not is_stuck

    def returned(self, now: float) -> None:
        self.ejection, self._moved_s = None, now

    @property
    def _is_stalled(self) -> bool:
        return self.ejection is not None and self.ejection.cause == "stalled"
