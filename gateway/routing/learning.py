"""What requests teach of the workers that answered them: their pace, and how long their blocks stay.

    booked: what is before it there ─► first token: how long that took ─► last one: how long the rest did
    once a second: what all of that means, and what events removed

Written to the fleet's members, where the next decision finds it.
"""

import math

from mypy_extensions import mypyc_attr

from gateway.core.decision import Candidate
from gateway.core.fleet import Fleet
from gateway.core.worker import FULL_KV, WorkerId
from gateway.index.base import Index
from gateway.routing.speed_model import Paces

STAYS_STEP = 0.1
"""How much of what is believed of a worker's evictions each second renews."""


@mypyc_attr(acyclic=True)
class Lesson:
    """One request at one worker: what there was to do when it was sent there. One that `waits` for others to
    end tells how long they took, not how fast the worker computes."""

    __slots__ = ("worker", "num_ahead", "num_tokens", "num_running", "num_computed", "waits")

    def __init__(self, chosen: Candidate, num_tokens: int, num_computed: int) -> None:
        self.worker: WorkerId = chosen.worker.id
        self.num_ahead: int = chosen.booked_tokens
        self.num_tokens = num_tokens
        self.num_running: int = chosen.num_in_flight
        self.num_computed = num_computed
        self.waits: bool = chosen.num_in_flight >= chosen.pace.seats or chosen.kv_usage > FULL_KV


class Learning:
    """Of one gateway. `num_tokens` of a lesson are those that the worker computes of its prompt."""

    def __init__(self, fleet: Fleet, index: Index, paces: Paces | None = None) -> None:
        self.paces = paces or Paces()
        self._fleet = fleet
        self._index = index
        self._removed: dict[WorkerId, tuple[int, float]] = {}  # blocks so far, and lately per second
        self._looked_s = 0.0

    def __repr__(self) -> str:
        return f"Learning({self.paces})"

    def booked(self, chosen: Candidate, num_tokens: int) -> Lesson:
        return Lesson(chosen, num_tokens, self.paces.num_computed(chosen.worker.id))

    def began(self, lesson: Lesson, seconds: float | None, now: float) -> None:
        """Its first token came, `seconds` after it was sent where that is known."""
        paces, worker = self.paces, lesson.worker
        if self._fleet.get(worker) is None:
            return  # it left meanwhile, and nobody would drop what is learnt of it now
        if seconds is None or lesson.waits:
            paces.computed(worker, lesson.num_tokens)
        else:
            paces.began(worker, lesson.num_ahead, lesson.num_tokens, lesson.num_running, seconds, now)
        lesson.num_computed = paces.num_computed(worker)
        self._tell(worker)

    def ended(self, lesson: Lesson, num_tokens: int, num_now: int, seconds: float, now: float) -> None:
        """So many tokens came behind the first one, in that time; other answers that run there now."""
        if self._fleet.get(lesson.worker) is None:
            return
        computed = self.paces.num_computed(lesson.worker) - lesson.num_computed
        num_running = (lesson.num_running + num_now) / 2
        self.paces.ended(lesson.worker, num_tokens, num_running, computed, seconds, now)
        self._tell(lesson.worker)

    def look(self, now: float) -> None:
        """Cheap but once a second."""
        if not self.paces.refresh(now):
            return
        passed_s, self._looked_s = now - self._looked_s, now
        for member in self._fleet:
            self.paces.reported(member.worker.id, member.reported, now)
            member.pace = self.paces.pace(member.worker.id)
            member.stays_s = self._stays_s(member.worker.id, member.worker.num_blocks, passed_s)

    def drop(self, worker: WorkerId) -> None:
        """It is another process when it comes back."""
        self.paces.drop(worker)
        self._removed.pop(worker, None)

    def _tell(self, worker: WorkerId) -> None:
        if member := self._fleet.get(worker):
            member.pace = self.paces.pace(worker)

    def _stays_s(self, worker: WorkerId, num_blocks: int | None, passed_s: float) -> float:
        """A cache is turned over once in as long as it takes to evict as many blocks as it has."""
        num_removed = self._index.applied(worker).num_removed
        before, rate = self._removed.get(worker, (num_removed, 0.0))
        if passed_s > 0.0:
            rate += ((num_removed - before) / passed_s - rate) * STAYS_STEP
        self._removed[worker] = (num_removed, rate)
        size = num_blocks or self._index.num_blocks(worker)
        return size / rate if rate > 0.0 and size else math.inf
