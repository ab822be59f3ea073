"""Whether one engine answers at an address, or several by turns: a balancer in between. Pure.

A process that was restarted began later than the one before it. Who sees it begin earlier, or count less
again and again, speaks to several: what one holds would be taken for what another has.
"""

from collections import deque
from datetime import UTC, datetime

SAME_WITHIN_S = 0.5
CALM_LOOKS = 12
"""Looks in a row that must find the same one, before an address that had several is believed again: two by
turns, or by chance, do not look like one for so long."""
FALLS, WITHIN_LOOKS = 3, 12
"""Counters that fall so often within so many looks are of several: nobody restarts an engine like that."""


class Identity:
    """What was seen at one address. `reason` says why there are several, None where there is one."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._began_s: float | None = None
        self._num_same = 0
        self._num_looks = 0
        self._falls: deque[int] = deque(maxlen=FALLS)

    def __repr__(self) -> str:
        return f"Identity({self.reason or 'one'})"

    def saw(self, began_s: float | None, *, has_fallen: bool = False) -> str | None:
        """A look: when the process that answered began (Unix time), where it tells, and whether its counters
        were less than at the last one. Returns `reason`."""
        self._num_looks += 1
        is_same = not has_fallen
        if began_s is not None:
            before, self._began_s = self._began_s, began_s
            is_same = before is None or abs(began_s - before) <= SAME_WITHIN_S
            if before is not None and began_s < before - SAME_WITHIN_S:
                self._are_several(f"that began at {_time(began_s)} and at {_time(before)}")
        elif has_fallen:
            self._falls.append(self._num_looks)
            if len(self._falls) == FALLS and self._num_looks - self._falls[0] < WITHIN_LOOKS:
                self._are_several("whose counters are not of one")
        self._num_same = self._num_same + 1 if is_same else 0
        if self.reason and self._num_same >= CALM_LOOKS:
            self.reason = None
            self._falls.clear()
        return self.reason

    def _are_several(self, which: str) -> None:
        if self.reason is None:
            self.reason = f"several engines answer here, {which}: is it a balancer? Give the address of each"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%H:%M:%S")
