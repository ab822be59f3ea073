"""Detection of a load balancer in front of several engines, where one engine is expected. Pure.

A process that was restarted began later than the one before it. An address that shows an earlier start, or
falling counters again and again, leads to several engines: their caches would be taken for one.
"""

from collections import deque
from datetime import UTC, datetime

SAME_WITHIN_S = 0.5
CALM_LOOKS = 12
"""Probes in a row that must find the same engine before an address that had several is trusted again: two
engines in turn, or by chance, do not look like one for so long."""
FALLS, WITHIN_LOOKS = 3, 12
"""Falls of counters within so many probes that mean several engines: restarts are not that frequent."""


class EngineIdentity:
    """Engine identities seen at one address. `reason` describes several engines, None where there is one."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._began_s: float | None = None
        self._num_same = 0
        self._num_looks = 0
        self._falls: deque[int] = deque(maxlen=FALLS)

    def __repr__(self) -> str:
        return f"EngineIdentity({self.reason or 'one'})"

    def saw(self, began_s: float | None, *, has_fallen: bool = False) -> str | None:
        """Record a probe: the start time of the answering process (Unix time), if reported, and whether its
        counters fell. Returns `reason`."""
        self._num_looks += 1
        is_same = not has_fallen
        if began_s is not None:
            before, self._began_s = self._began_s, began_s
            is_same = before is None or abs(began_s - before) <= SAME_WITHIN_S
            if before is not None and began_s < before - SAME_WITHIN_S:
                self._are_several(f"started at {_time(began_s)} and at {_time(before)}")
        elif has_fallen:
            self._falls.append(self._num_looks)
            if len(self._falls) == FALLS and self._num_looks - self._falls[0] < WITHIN_LOOKS:
                self._are_several("with inconsistent counters")
        self._num_same = self._num_same + 1 if is_same else 0
        if self.reason and self._num_same >= CALM_LOOKS:
            self.reason = None
            self._falls.clear()
        return self.reason

    def _are_several(self, which: str) -> None:
        if self.reason is None:
            self.reason = (
                f"several engines answer here, {which}: is it a load balancer? Give each engine's address"
            )


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%H:%M:%S")
