"""Allocation of mask bits to workers: allocated, retired, swept off the edges, free again."""

from gateway.core.worker import WorkerId
from gateway.index.base import Holdings


class WorkerBits:
    """Bits of the edges' masks: `live` of known workers, `hidden` of blocks that are only remembered
    (holder.py), `swept` those that the sweep under way takes off the edges."""

    __slots__ = ("live", "hidden", "swept", "workers", "_retired", "_holdings")

    def __init__(self, holdings: Holdings | None = None) -> None:
        self._holdings = holdings
        self.live = self.hidden = self.swept = self._retired = 0
        self.workers: dict[int, WorkerId] = {}

    def __repr__(self) -> str:
        return f"Bits(live={self.live:b}, hidden={self.hidden:b}, swept={self.swept:b})"

    def allocate(self, worker: WorkerId) -> int:
        bit = self._free()
        self.workers[bit] = worker
        self.live |= bit
        if self._holdings is not None:
            self._holdings.begin(bit, worker, is_hidden=False)
        return bit

    def allocate_hidden(self, worker: WorkerId) -> int:
        """Allocate a bit that no lookup sees."""
        bit = self._free()
        self.hidden |= bit
        if self._holdings is not None:
            self._holdings.begin(bit, worker, is_hidden=True)
        return bit

    def retire(self, bit: int) -> None:
        """Retire a live or hidden bit (0: none); a sweep removes its blocks."""
        if bit and self._holdings is not None:
            self._holdings.end(bit)
        if bit & self.live:
            del self.workers[bit]
        self.live &= ~bit
        self.hidden &= ~bit
        self._retired |= bit

    def begin_sweep(self) -> bool:
        """Start sweeping the retired bits; False if there are none."""
        self.swept, self._retired = self._retired, 0
        return self.swept != 0

    def _free(self) -> int:
        """Return the lowest free bit, so that masks stay small integers."""
        free = ~(self.live | self.hidden | self._retired | self.swept)
        return free & -free
