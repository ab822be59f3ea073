"""Workers that failed a disaggregated request, and those that its next decision excludes.

prefill failed     the prefill worker is excluded
transfer failed    one of the two is at fault, unknown which: the prefill worker is excluded; a decode worker
                   that got nothing from two of them, or from all that are left, is excluded instead
"""

from collections.abc import Collection

from gateway.core.worker import WorkerId


class FailedPairs:
    __slots__ = ("num", "_prefills", "_decodes", "_unfetched")

    def __init__(self) -> None:
        self.num = 0
        self._prefills: set[WorkerId] = set()
        self._decodes: set[WorkerId] = set()
        self._unfetched: dict[WorkerId, WorkerId] = {}
        """Prefill workers with blocks that did not arrive, and the decode worker that did not get them."""

    def __repr__(self) -> str:
        return f"FailedPairs({self.num}, {sorted(self.excluded)})"

    @property
    def excluded(self) -> Collection[WorkerId]:
        return {*self._prefills, *self._unfetched, *self._decodes}

    def prefill_failed(self, prefill: WorkerId) -> None:
        self.num += 1
        self._prefills.add(prefill)

    def transfer_failed(self, prefill: WorkerId, decode: WorkerId) -> bool:
        """True where the decode worker is at fault, if another one is left."""
        self.num += 1
        self._unfetched[prefill] = decode
        return list(self._unfetched.values()).count(decode) > 1

    def blame(self, decode: WorkerId) -> None:
        """Exclude a decode worker; blocks that did not arrive there may arrive elsewhere."""
        self._decodes.add(decode)
        self._unfetched = {prefill: other for prefill, other in self._unfetched.items() if other != decode}

    def turn(self) -> bool:
        """Exclude decode workers instead of prefill workers, the last one first. False if none failed."""
        if not self._unfetched:
            return False
        self.blame(list(self._unfetched.values())[-1])
        return True
