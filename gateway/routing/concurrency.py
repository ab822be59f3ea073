"""How many answers an engine runs at once, which it does not tell: vLLM's `--max-num-seqs`.

A request beyond that waits for an answer to end, whatever its prompt takes and however much of the cache is
free. It is seen from what engines do tell: while requests wait and exactly as many run as before, again and
again, the seats are taken. Where more run than were believed to fit, or where nobody waited for long, nothing
is believed.
"""

import math

from mypy_extensions import mypyc_attr

from gateway.core.worker import Reported

LEAST = 8
"""A few long prompts, one behind the other, look the same; no engine is run with so few seats."""
IN_A_ROW = 4
KEPT_S = 300.0
"""Engines do not change it while they run. What was believed for a wrong reason must go."""


@mypyc_attr(acyclic=True)
class Seats:
    """Of one worker; `num` is infinite where nothing is known."""

    __slots__ = ("num", "_last", "_num_alike", "_seen_s")

    def __init__(self) -> None:
        self.num = math.inf
        self._last: Reported | None = None
        self._num_alike = 0
        self._seen_s = 0.0

    def __repr__(self) -> str:
        return f"Seats({self.num:g})"

    def look(self, reported: Reported, now: float) -> None:
        """At what it last said; the same word again tells nothing new."""
        last, self._last = self._last, reported
        if last is reported:
            return
        num = reported.num_running
        if num > self.num or now - self._seen_s > KEPT_S:
            self.num = math.inf
        is_alike = last is not None and last.num_running == num and num >= LEAST
        self._num_alike = self._num_alike + 1 if is_alike and reported.num_waiting else 0
        if self._num_alike >= IN_A_ROW:
            self.num, self._seen_s = float(num), now
