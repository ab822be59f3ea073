"""Whom a request that takes two workers has tried in vain, and who is left out of its next decision for that.

prefill failed     that worker is to blame
transfer failed    one of the two is, and nobody says which: the prefill worker is left out; a decode worker
                   that had nothing of two of them, or of all that are left, is left out in their place
"""

from collections.abc import Collection

from gateway.core.worker import WorkerId


class Tried:
    __slots__ = ("num", "_prefills", "_decodes", "_unfetched")

    def __init__(self) -> None:
        self.num = 0
        self._prefills: set[WorkerId] = set()
        self._decodes: set[WorkerId] = set()
        self._unfetched: dict[WorkerId, WorkerId] = {}
        """Prefill workers whose blocks did not arrive, and who did not get them."""

    def __repr__(self) -> str:
        return f"Tried({self.num}, {sorted(self.left_out)})"

    @property
    def left_out(self) -> Collection[WorkerId]:
        return {*self._prefills, *self._unfetched, *self._decodes}

    def prefill_failed(self, prefill: WorkerId) -> None:
        self.num += 1
        self._prefills.add(prefill)

    def transfer_failed(self, prefill: WorkerId, decode: WorkerId) -> bool:
        """Whether that decode worker is to be blamed, if there is another one."""
        self.num += 1
        self._unfetched[prefill] = decode
        return list(self._unfetched.values()).count(decode) > 1

    def blame(self, decode: WorkerId) -> None:
        """What did not arrive there may arrive elsewhere."""
        self._decodes.add(decode)
        self._unfetched = {prefill: other for prefill, other in self._unfetched.items() if other != decode}

    def turn(self) -> bool:
        """Nobody is left: the decode workers are to blame then, the last one first. False if none is."""
        if not self._unfetched:
            return False
        self.blame(list(self._unfetched.values())[-1])
        return True
