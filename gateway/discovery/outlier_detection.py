"""How a worker that answers its probes does with requests, and whether it is left out for that. Pure.

    failures in a row ──► ejected for a while, the longer the more often; then one request may try
    no step though requests wait ──► ejected until steps move, or, where nothing waits there any more,
                                     until one request may try

A worker that failed, and has been let in again, is ejected with its next failure, unless it answered before.
"""

from dataclasses import dataclass

LONGEST_S = 300.0
"""Ejected for at most so long at a time: what was mended should not have to wait for longer."""
WELL_AFTER = 5
"""Answers behind an ejection after which it is forgotten."""


@dataclass(frozen=True, slots=True)
class Rules:
    """0 means never."""

    num_failures: int = 5
    eject_s: float = 10.0
    stalled_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Ejection:
    """`cause` is for metrics, `reason` for people."""

    cause: str
    reason: str


@dataclass(frozen=True, slots=True)
class Progress:
    """What a worker told of its engine's work: `tokens` and `kv_usage` move with its steps. `num_here` are
    requests that it said it has, running or waiting, or that it was sent and has not begun to answer."""

    tokens: float
    kv_usage: float
    num_here: int


class Conduct:
    """One worker's. `ejection` is why it is left out, None where it is not. Seconds on the caller's clock."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self.ejection: Ejection | None = None
        self.num_ejections = 0
        self._num_failures = 0
        self._answered = 0
        self._until_s = 0.0
        self._last: Progress | None = None
        self._moved_s = 0.0

    def __repr__(self) -> str:
        return f"Conduct({self.ejection.reason if self.ejection else 'well'})"

    def failed(self, reason: str, num_answered: int) -> Ejection | None:
        """A request failed there, after it had answered so many since it joined. Why it is to be left out, if
        it is: `eject` does it."""
        if num_answered != self._answered:
            self._num_failures = 0
        if num_answered >= self._answered + WELL_AFTER:
            self.num_ejections = 0
        self._answered = num_answered
        self._num_failures += 1
        limit = 1 if self.num_ejections else self._rules.num_failures
        if self.ejection or not limit or self._num_failures < limit or not self._rules.num_failures:
            return None
        times = (
            "its first since it was let in again" if self.num_ejections else f"{self._num_failures} in a row"
        )
        return Ejection("failures", f"requests failed there, {times}: {reason}")

    def looked(self, progress: Progress | None, now: float) -> Ejection | None:
        """It answered its probes, and perhaps told of its work. Why it is to be left out, if it is."""
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
        return Ejection("stalled", f"no step in {still_s:.0f} s, with {progress.num_here} requests there")

    def eject(self, ejection: Ejection, now: float) -> float:
        """Leave it out; for how many seconds."""
        seconds = min(self._rules.eject_s * 2.0**self.num_ejections, LONGEST_S)
        self.ejection, self._until_s = ejection, now + seconds
        self.num_ejections += 1
        self._num_failures = 0
        return seconds

    def may_return(self, now: float) -> bool:
        """Whether it is let in again: its time is over, and no request of before is still stuck there."""
        if self.ejection is None or now < self._until_s:
            return False
        is_stuck = self._is_stalled and self._last is not None and self._last.num_here and now > self._moved_s
        return not is_stuck

    def returned(self, now: float) -> None:
        self.ejection, self._moved_s = None, now

    @property
    def _is_stalled(self) -> bool:
        return self.ejection is not None and self.ejection.cause == "stalled"
