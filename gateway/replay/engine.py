"""Engine in virtual time: the scheduler and the cache of the simulated one.

Steps take  base + a · prefill tokens + b · sequences decoding  seconds (`engines/sim/scheduler.py`). Steps
that only decode are taken many at a time (`engines/sim/glide.py`), which comes to the same.
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, repeat

from engines.sim.cache import CachedSequence, PrefixCache
from engines.sim.glide import Glide
from engines.sim.pd.leg import KvLoad
from engines.sim.scheduler import Scheduler, SchedulerLimits, SchedulerStep, StepCosts, StepOutcome
from engines.sim.scheduler import Sequence as EngineSequence
from gateway.core.blocks import Tokens
from gateway.core.kv_events import KvEvent
from gateway.core.worker import ReportedLoad
from gateway.replay.clock import STEP, Clock
from gateway.replay.profile import Profile


def _nothing() -> None:
    """Do nothing: default for a token without an observer."""


@dataclass(slots=True, eq=False)
class _Run:
    """Callbacks of a sequence's first and last token."""

    on_first: Callable[[], None]
    on_last: Callable[[], None]


class VirtualEngine:
    """Engine in virtual time; `on_events` is called with the KV events of each step."""

    def __init__(
        self,
        profile: Profile,
        block_size: int,
        clock: Clock,
        on_events: Callable[[Sequence[KvEvent]], None],
        *,
        glides: bool = True,
    ) -> None:
        self.profile = profile
        self.reported = ReportedLoad()
        """Load as of the last step's end, which is when vLLM's gauges move."""
        self.step: SchedulerStep | None = None
        """Current step, where steps are taken singly."""
        cache = PrefixCache(profile.kv_tokens // block_size + 1, block_size, hash_form="ours")
        costs = StepCosts(profile.step_s - profile.seq_s, 1 / profile.prefill_tokens_per_s, profile.seq_s)
        self.scheduler = Scheduler(
            cache, SchedulerLimits(profile.max_batched_tokens, profile.max_num_seqs), costs
        )
        self._clock = clock
        self._on_events = on_events
        self._glides = glides
        self._runs: dict[EngineSequence, _Run] = {}
        self._is_stepping = self._is_stopped = False
        self._glide: Glide | None = None
        self._cost_s = self._begin = self._due_s = 0.0
        self._num_taken = 0  # steps of the glide that `take` was called for
        self._ends: list[float] = []  # of the glide's later steps, up to its next one

    def __repr__(self) -> str:
        return f"VirtualEngine({self.profile.name}, {self.scheduler})"

    @property
    def step_left_s(self) -> float:
        """Seconds until the current step's end."""
        return self._due_s - self._clock.now if self.step is not None else 0.0

    def add(
        self,
        tokens: Tokens,
        output: Sequence[int],
        on_first: Callable[[], None] = _nothing,
        on_last: Callable[[], None] = _nothing,
        *,
        adapter: str | None = None,
        pins: str | None = None,
        loads: bool = False,
    ) -> EngineSequence:
        """Add a sequence. `adapter`: it has cache entries of its own. `loads`: another engine has computed
        the sequence. `pins`: its blocks stay until `release`."""
        self.settle()
        sequence = EngineSequence(
            CachedSequence(array("I", tokens), adapter), output, "length", len(tokens), pins=pins
        )
        if loads:
            sequence.load = KvLoad(len(tokens), None)
        self._runs[sequence] = _Run(on_first, on_last)
        self.scheduler.add(sequence)
        self._wake()
        return sequence

    def release(self, sequence: EngineSequence) -> None:
        """Free the blocks that a sequence has pinned."""
        self.settle()
        self.scheduler.release(sequence)
        self._wake()

    def abort(self, sequence: EngineSequence) -> None:
        if self._runs.pop(sequence, None) is not None:
            self.settle()
            self.scheduler.abort(sequence)
            self._wake()

    def stop(self) -> None:
        """Stop without further callbacks: the engine is gone."""
        self._is_stopped, self._glide = True, None

    def settle(self) -> None:
        """Bring the scheduler to its state after single steps, with the current one in progress."""
        glide = self._glide
        if glide is None:
            return
        self._glide = None
        num = bisect_left(self._ends, self._clock.now)
        begin = self._ends[num - 1] if num else self._begin
        step = glide.stop(self._num_taken + num)
        self._await(step, begin)

    # steps ----------------------------------------------------------------------------------------

    def _wake(self) -> None:
        if not self._is_stepping and self.scheduler.has_work:
            self._start()

    def _start(self) -> None:
        now, scheduler = self._clock.now, self.scheduler
        step = scheduler.start_step()
        for sequence in scheduler.take_loads():
            took_s = (
                self.profile.transfer_s + sequence.num_external_tokens / self.profile.transfer_tokens_per_s
            )
            self._clock.at(now + took_s, partial(self._loaded, sequence))
        if step is None:
            return
        self._is_stepping = True
        is_alike = self._glides and self._load() == self.reported  # else this step's end is seen
        glide = Glide.of(scheduler, step) if is_alike else None
        if glide is None:
            self._await(step, now)
            return
        self._glide, self._cost_s, self._num_taken = glide, step.cost_s, 0
        self._await_glide(glide, now)

    def _await(self, step: SchedulerStep, begin: float) -> None:
        self.step, self._due_s = step, begin + step.cost_s
        self._clock.at(self._due_s, partial(self._finish, step), STEP)

    def _await_glide(self, glide: Glide, begin: float) -> None:
        """Schedule the next stop of a glide. The ends are added up one by one, as those of single steps
        are."""
        self._begin = begin
        ends = accumulate(repeat(self._cost_s, glide.next - self._num_taken), initial=begin)
        next(ends)
        self._ends = list(ends)
        self._clock.at(self._ends[-1], partial(self._take, glide), STEP)

    def _loaded(self, sequence: EngineSequence) -> None:
        if sequence in self._runs and not self._is_stopped:
            self.settle()
            self.scheduler.loaded(sequence)
            self._wake()

    def _take(self, glide: Glide) -> None:
        if glide is not self._glide:
            return  # it was stopped
        self._num_taken = glide.next
        outcome = glide.take()
        if glide.is_over:
            self._glide = None
            self._finished(outcome)
        else:
            self._observe(outcome)
            self._await_glide(glide, self._clock.now)

    def _finish(self, step: SchedulerStep) -> None:
        if not self._is_stopped:
            self._finished(self.scheduler.finish_step(step))

    def _finished(self, outcome: StepOutcome) -> None:
        self._is_stepping, self.step = False, None
        self._observe(outcome)
        for sequence in outcome.produced:
            if sequence.num_output == 1:
                self._runs[sequence].on_first()
            if sequence.is_finished:
                self._runs.pop(sequence).on_last()
        self._wake()

    def _load(self) -> ReportedLoad:
        scheduler = self.scheduler
        return ReportedLoad(len(scheduler.running), scheduler.num_waiting, scheduler.cache.usage)

    def _observe(self, outcome: StepOutcome) -> None:
        self.reported = self._load()
        if outcome.events:
            self._on_events(outcome.events)
