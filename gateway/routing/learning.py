"""Learning from answered requests: each worker's speed model, and the lifetime of its blocks.

    booked: work ahead there ─► first token: its duration ─► last token: the duration of the rest
    once a second: the models are updated, and the blocks that events removed are counted

The results are written to the fleet's members, where the next decision reads them.
"""

import math
from typing import Final

from mypy_extensions import mypyc_attr

from gateway.core.decision import Candidate
from gateway.core.fleet import Fleet
from gateway.core.ledger import Ledger
from gateway.core.worker import FULL_KV, WorkerId
from gateway.index.base import Index
from gateway.routing.speed_model import SpeedModels

STAYS_STEP: Final = 0.1
"""Weight of one second in the moving average of a worker's evictions."""


@mypyc_attr(acyclic=True)
class SpeedObservation:
    """A request at a worker, with the worker's load when it was sent, and `num_beside` other answers that ran
    there at its first token. The TTFT of a request that `waits` for others to end measures their duration,
    not the worker's speed."""

    __slots__ = ("worker", "num_ahead", "num_tokens", "num_running", "num_beside", "num_computed", "waits")

    def __init__(self, chosen: Candidate, num_tokens: int, num_computed: int) -> None:
        self.worker: WorkerId = chosen.worker.id
        self.num_ahead: int = chosen.booked_tokens
        self.num_tokens = num_tokens
        self.num_running: int = chosen.num_in_flight
        self.num_beside: int = chosen.num_in_flight
        self.num_computed = num_computed
        self.waits: bool = chosen.num_in_flight >= chosen.speed.max_running or chosen.kv_usage > FULL_KV


class Learning:
    """Learning of one gateway. A lesson's `num_tokens` are the prompt tokens that the worker computes."""

    def __init__(
        self,
        fleet: Fleet,
        index: Index,
        speed_models: SpeedModels | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        self._ledger = ledger or Ledger()
        self.speed_models = speed_models or SpeedModels()
        self._fleet = fleet
        self._index = index
        self._removed: dict[WorkerId, tuple[int, float]] = {}  # blocks so far, and lately per second
        self._looked_s = 0.0

    def __repr__(self) -> str:
        return f"Learning({self.speed_models})"

    def booked(self, chosen: Candidate, num_tokens: int) -> SpeedObservation:
        return SpeedObservation(chosen, num_tokens, self.speed_models.num_computed(chosen.worker.id))

    def began(self, lesson: SpeedObservation, seconds: float | None, now: float) -> None:
        """Learn from a first token, which came `seconds` after the request was sent, where that is known."""
        speed_models, worker = self.speed_models, lesson.worker
        if self._fleet.get(worker) is None:
            return  # the worker was dropped: its model would never be dropped again
        if seconds is None or lesson.waits:
            speed_models.computed(worker, lesson.num_tokens)
        else:
            speed_models.began(worker, lesson.num_ahead, lesson.num_tokens, lesson.num_running, seconds, now)
        lesson.num_computed = speed_models.num_computed(worker)
        load = self._ledger.load(worker)
        speed_models.admitted(worker, load.num_decoding, load.num_in_flight - load.num_decoding, now)
        lesson.num_beside = max(load.num_decoding - 1, 0)
        self._publish(worker)

    def ended(self, lesson: SpeedObservation, num_tokens: int, seconds: float, now: float) -> None:
        """Learn from a complete answer, which is released: tokens after the first one, and their time."""
        if self._fleet.get(lesson.worker) is None:
            return
        computed = self.speed_models.num_computed(lesson.worker) - lesson.num_computed
        num_running = (lesson.num_beside + self._ledger.load(lesson.worker).num_decoding) / 2
        self.speed_models.ended(lesson.worker, num_tokens, num_running, computed, seconds, now)
        self._publish(lesson.worker)

    def look(self, now: float) -> None:
        """Update all members, once a second; other calls are cheap."""
        if not self.speed_models.refresh(now):
            return
        passed_s, self._looked_s = now - self._looked_s, now
        for member in self._fleet:
            worker = member.worker
            num_booked = self._ledger.load(worker.id).booked_tokens
            self.speed_models.reported(worker.id, member.reported, now, num_booked, worker.max_running)
            member.speed = self.speed_models.speed(member.worker.id)
            member.stays_s = self._stays_s(member.worker.id, member.worker.num_blocks, passed_s)

    def drop(self, worker: WorkerId) -> None:
        """Forget a worker: it is another process when it comes back."""
        self.speed_models.drop(worker)
        self._removed.pop(worker, None)

    def _publish(self, worker: WorkerId) -> None:
        if member := self._fleet.get(worker):
            member.speed = self.speed_models.speed(worker)

    def _stays_s(self, worker: WorkerId, num_blocks: int | None, passed_s: float) -> float:
        """Return the block lifetime: the time in which the worker evicts as many blocks as its cache has."""
        num_removed = self._index.applied(worker).num_removed
        before, rate = self._removed.get(worker, (num_removed, 0.0))
        if passed_s > 0.0:
            rate += ((num_removed - before) / passed_s - rate) * STAYS_STEP
        self._removed[worker] = (num_removed, rate)
        size = num_blocks or self._index.num_blocks(worker)
        return size / rate if rate > 0.0 and size else math.inf
