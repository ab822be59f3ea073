"""Concurrency limit: the number of requests that an engine runs at once (vLLM's `--max-num-seqs`), as the
engine reports it, or inferred.

A request beyond the limit waits for an answer to end, however short its prompt and however much cache is
free. The limit is inferred from two sources, where the cache is not full:

    reports    the most that ran while requests waited, once report after report comes near it and none
               exceeds it, and the prompts ahead do not explain the waiting. Reports fluctuate below the
               limit, as an engine fills the places of ended answers with its next step
    ledger     the most answers that ran, once first token after first token brings them back to it while
               others wait, and the latest report agrees: faster, for there are many first tokens a second

More running requests raise an inferred limit; far more without a waiting one, or a long time without a full
batch, remove it.
"""

import math
from typing import Final

from mypy_extensions import mypyc_attr

from gateway.core.worker import FULL_KV, ReportedLoad

LEAST: Final = 8
"""A few long prompts, one after the other, look the same; no engine runs with so low a limit."""
IN_A_ROW: Final = 4
NEAR: Final = 0.85
"""Share of the most that ran, from which a report counts as near it."""
AT_PEAK: Final = 16
OF: Final = 64
"""The ledger shows a limit where so many of so many first tokens bring the running answers to their peak.
Without a limit, every other one of those would exceed it."""
MIN_WAITING: Final = 3
KEPT_S: Final = 300.0
"""Engines do not change the limit while they run, but a wrong inference must expire."""


@mypyc_attr(acyclic=True)
class ConcurrencyLimit:
    """The concurrency limit of one worker; `num` is infinite where it is unknown."""

    __slots__ = ("num", "_last", "_most", "_num_near", "_seen_s", "_peak", "_num_at_peak", "_num_begun")

    def __init__(self) -> None:
        self.num = math.inf
        self._last: ReportedLoad | None = None
        self._most = 0
        self._num_near = 0
        self._seen_s = 0.0
        self._peak = self._num_at_peak = self._num_begun = 0

    def __repr__(self) -> str:
        return f"ConcurrencyLimit({self.num:g})"

    def look(
        self,
        reported: ReportedLoad,
        now: float,
        declared: int | None = None,
        *,
        is_computing: bool = False,
    ) -> None:
        """Learn from the worker's latest report; the same report again adds nothing. The `declared` limit is
        true unless more requests run. `is_computing`: requests wait for the prompts before them."""
        last, self._last = self._last, reported
        if declared is not None and reported.num_running <= declared:
            self.num, self._seen_s = float(declared), now
            return
        if last is reported:
            return
        num = reported.num_running
        if now - self._seen_s > KEPT_S or (num * NEAR > self.num and not reported.num_waiting):
            self.num = math.inf
        elif num > self.num:
            self.num = float(num)
        is_short = is_computing or reported.kv_usage > FULL_KV or num < max(float(LEAST), self._most * NEAR)
        if is_short or not reported.num_waiting:
            self._num_near = self._most = 0
            return
        self._num_near = 1 if num > self._most else self._num_near + 1  # running requests may still rise
        self._most = max(self._most, num)
        if self._num_near > IN_A_ROW:
            self._set(float(self._most), now)

    def began(self, num_decoding: int, num_waiting: int, now: float) -> None:
        """Learn from a first token: `num_decoding` answers run with this one, and `num_waiting` requests have
        no first token, as the ledger counts."""
        if num_decoding > self._peak or self._num_begun >= OF:
            self._peak, self._num_at_peak, self._num_begun = num_decoding, 0, 0
        self._num_begun += 1
        if num_decoding < self._peak or num_waiting < MIN_WAITING:
            return
        self._num_at_peak += 1
        if self._num_at_peak >= AT_PEAK and self._peak >= LEAST and self._is_reported(self._peak):
            self._set(float(self._peak), now)

    def _is_reported(self, num: int) -> bool:
        """True if the latest report shows about so many running, others waiting, and room in the cache."""
        last = self._last
        if last is None or not last.num_waiting or last.kv_usage > FULL_KV:
            return False
        return num * NEAR <= last.num_running <= num / NEAR

    def _set(self, num: float, now: float) -> None:
        self._seen_s = now
        self.num = num if math.isinf(self.num) else max(self.num, num)
