"""Fast-forward over steps in which running sequences only decode: the same result as stepping, at a fraction
of the cost.

Such steps cost the same, one after the other. All that can happen in them is known beforehand: a sequence
fills a block (an event), takes a new one (perhaps another event), or gets its last token. Only those steps
are looked at; between them a sequence is left as it is, and gets its tokens when it matters.

    step k, nothing due          nothing to do
    step k, blocks due           their sequences catch up, and allocate: its events
    last step                    all catch up, and the scheduler itself finishes it

A glide ends with the first sequence that does, before a step in which blocks run out (a sequence is
preempted), and, where a sequence waits, before any step that changes the cache: the waiting one may fit then.
To touch the scheduler meanwhile, call `stop` first.
"""

import heapq

from engines.sim.scheduler import Scheduler, SchedulerStep, StepOutcome


class Glide:
    """Glide from `step` on, which the scheduler has just started. Steps are counted from it, beginning with
    1."""

    def __init__(self, scheduler: Scheduler, step: SchedulerStep) -> None:
        self.next = 0
        """The step at the end of which the caller must call `take`."""
        self.is_over = False
        self._scheduler, self._cache, self._step = scheduler, scheduler.cache, step
        self._sequences = [sequence for sequence, _ in step.work]
        self._done = [0] * len(self._sequences)  # steps that each has caught up with
        self._blocks_due = [(self._due(i, begin=1), i) for i in range(len(self._sequences))]
        heapq.heapify(self._blocks_due)
        self._end = min(len(sequence.output) - sequence.num_output for sequence in self._sequences)
        self._plan()

    @classmethod
    def of(cls, scheduler: Scheduler, step: SchedulerStep) -> "Glide | None":
        """Glide of a step, or None where there is nothing to gain."""
        if not step.is_steady or scheduler.cache.has_events:
            return None
        glide = cls(scheduler, step)
        return glide if glide.next > 1 else None

    def __repr__(self) -> str:
        return f"Glide(next={self.next}, end={self._end}, {len(self._sequences)} sequences)"

    def take(self) -> StepOutcome:
        """Finish all steps up to `next`; only the last has sequences that got their last token."""
        now = self.next
        while self._blocks_due and self._blocks_due[0][0] == now:
            _, i = heapq.heappop(self._blocks_due)
            self._catch_up(i, now - 1)
            sequence = self._sequences[i]
            self._cache.allocate(sequence.cached, (), sequence.num_computed + 1)
            heapq.heappush(self._blocks_due, (self._due(i, begin=now), i))
        self._plan()
        if now == self._end:
            self._catch_up_all(now - 1)
            self.is_over = True
            return self._scheduler.finish_step(self._step)
        return StepOutcome((), self._cache.take_events(), self._step.cost_s, self._step.num_decoding)

    def stop(self, num_steps: int) -> SchedulerStep:
        """End the glide after `num_steps` finished steps, no fewer than `take` was called for. Returns the
        current step."""
        self.is_over = True
        if not num_steps:
            return self._step
        self._catch_up_all(num_steps)
        step = self._scheduler.start_step()
        assert step is not None
        return step

    def _plan(self) -> None:
        due = self._blocks_due[0][0]
        if due <= self._end and (self._scheduler.waiting_may_fit or not self._has_room(due)):
            self._end = due - 1
        self.next = min(due, self._end)

    def _has_room(self, step: int) -> bool:
        """True if each sequence that takes a new block in a step can. Most steps need none or one."""
        if self._cache.num_free >= len(self._sequences):
            return True
        due = [i for when, i in self._blocks_due if when == step]
        return sum(self._is_full(i, step) for i in due) <= self._cache.num_free

    def _is_full(self, i: int, step: int) -> bool:
        sequence = self._sequences[i]
        num_tokens = sequence.num_computed + step - self._done[i]
        return num_tokens > len(sequence.cached.blocks) * self._cache.block_size

    def _due(self, i: int, begin: int) -> int:
        """First step behind `begin`, at which blocks are allocated, in which a sequence fills a block or
        takes a new one."""
        sequence, size = self._sequences[i], self._cache.block_size
        num_tokens = sequence.num_computed + begin - self._done[i]
        room = len(sequence.cached.blocks) * size - num_tokens
        return begin + min(size - num_tokens % size, room + 1)

    def _catch_up(self, i: int, done: int) -> None:
        num, self._done[i] = done - self._done[i], done
        if num:
            self._scheduler.decoded(self._sequences[i], num)

    def _catch_up_all(self, done: int) -> None:
        for i in range(len(self._sequences)):
            self._catch_up(i, done)
