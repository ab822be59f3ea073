"""Concurrency limit: the number of requests that an engine runs at once (vLLM's `--max-num-seqs`), inferred,
since engines do not report it.

A request beyond the limit waits for an answer to end, however short its prompt and however much cache is
free. The limit is inferred from reported load: while requests wait and the number of running ones stays the
same, report after report, the limit is reached. It is unknown again once more requests run, or after a long
time without waiting requests.
"""

import math

from mypy_extensions import mypyc_attr

from gateway.core.worker import ReportedLoad

LEAST = 8
"""A few long prompts, one after the other, look the same; no engine runs with so low a limit."""
IN_A_ROW = 4
KEPT_S = 300.0
"""Engines do not change the limit while they run, but a wrong inference must expire."""


@mypyc_attr(acyclic=True)
class ConcurrencyLimit:
    """The concurrency limit of one worker; `num` is infinite where it is unknown."""

    __slots__ = ("num", "_last", "_num_alike", "_seen_s")

    def __init__(self) -> None:
        self.num = math.inf
        self._last: ReportedLoad | None = None
        self._num_alike = 0
        self._seen_s = 0.0

    def __repr__(self) -> str:
        return f"ConcurrencyLimit({self.num:g})"

    def look(self, reported: ReportedLoad, now: float) -> None:
        """Learn from the worker's latest report; the same report again adds nothing."""
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
