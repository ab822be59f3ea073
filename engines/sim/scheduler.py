"""Continuous batching as in vLLM v1, with time as a cost instead of a model run.

    start_step   running sequences first, each with the tokens it lacks; where blocks run out the
                 youngest running sequence is preempted; then the waiting ones in order of arrival,
                 each with its longest cached prefix, as long as tokens, seats and blocks last
    finish_step  a sequence with all its tokens computed gets its next token
    take_loads   sequences with KV from another worker: they hold blocks, and neither run nor wait until
                 `loaded` or `load_failed` is called

Steps cost  base + a · prefill tokens + b · sequences decoding  seconds. The next tokens were planned when the
sequence arrived (`words.py`), so nothing here depends on chance or on a clock.
"""

from collections import deque
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from engines.sim.cache import CachedSequence, PrefixCache
from engines.sim.pd.leg import KvLoad
from gateway.core.kv_events import KvEvent

Finish = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Costs of a step: `base_s` per step, `prefill_s` per prompt token computed, `decode_s` per sequence
    decoding."""

    base_s: float
    prefill_s: float
    decode_s: float

    @classmethod
    def of(cls, prefill_tokens_per_s: float, decode_tokens_per_s: float, batch_cost: float) -> "StepCosts":
        """Costs from measured speeds: prefill, decode alone, and how much a second sequence slows."""
        alone = 1.0 / decode_tokens_per_s
        return cls(alone * (1.0 - batch_cost), 1.0 / prefill_tokens_per_s, alone * batch_cost)

    def step_s(self, num_prefill_tokens: int, num_decoding: int) -> float:
        return self.base_s + self.prefill_s * num_prefill_tokens + self.decode_s * num_decoding


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    max_batched_tokens: int
    max_num_seqs: int


@dataclass(slots=True, eq=False)
class Sequence:
    """Sequence of one prompt and its one answer. `output` is the whole plan; `num_output` of it was
    produced."""

    cached: CachedSequence
    output: Items[int]
    finish: Finish
    num_prompt: int
    num_computed: int = 0
    num_output: int = 0
    num_cached_tokens: int | None = None
    num_preemptions: int = 0
    is_aborted: bool = False
    pins: str | None = None
    """Name under which its blocks stay when it is finished, until `release` is called."""
    pinned_ids: Items[int] = ()
    stores: Path | None = None
    """Path where its prompt's blocks are stored when they are computed."""
    load: KvLoad | None = None
    num_external_tokens: int = 0

    @property
    def is_decoding(self) -> bool:
        """True if only the last token is missing; after a preemption all are, as in a prefill."""
        return self.num_output > 0 and self.num_computed == len(self.cached.tokens) - 1

    @property
    def is_finished(self) -> bool:
        return self.is_aborted or self.num_output == len(self.output)


@dataclass(frozen=True, slots=True)
class SchedulerStep:
    """Work of one step: sequences, and the number of tokens of each."""

    work: Items[tuple[Sequence, int]]
    num_prefill_tokens: int
    num_decoding: int
    cost_s: float
    is_steady: bool = False
    """True if the next step will be the same, as long as nothing ends, comes, or changes the cache."""


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """Outcome of a step: sequences that got a token, in order; events; the seconds it took."""

    produced: Items[Sequence]
    events: Items[KvEvent]
    cost_s: float
    num_tokens: int


@dataclass(slots=True)
class SchedulerCounts:
    """Totals since the start, as vLLM's counters have them."""

    prefix_queries: int = 0
    prefix_hits: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    aborts: int = 0
    external_tokens: int = 0
    failed_loads: int = 0
    finished: dict[Finish, int] = field(default_factory=lambda: {"stop": 0, "length": 0})


class Scheduler:
    """Queue and batch of one rank over one cache."""

    def __init__(self, cache: PrefixCache, limits: SchedulerLimits, costs: StepCosts) -> None:
        self.cache = cache
        self.counts = SchedulerCounts()
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.loading: list[Sequence] = []
        self._loads: list[Sequence] = []
        self._limits = limits
        self._costs = costs
        self._is_stepping = False
        self._aborted: list[Sequence] = []

    def __repr__(self) -> str:
        return f"Scheduler({len(self.running)} running, {len(self.waiting)} waiting, {self.cache!r})"

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    @property
    def num_waiting(self) -> int:
        """Number of waiting sequences as vLLM counts them: also those with KV on its way."""
        return len(self.waiting) + len(self.loading)

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def abort(self, sequence: Sequence) -> None:
        """End a sequence: at once between steps, else when the step ends, as an engine busy computing
        does."""
        if sequence.is_finished:
            return
        sequence.is_aborted = True
        self.counts.aborts += 1
        self._aborted.append(sequence)
        if not self._is_stepping:
            self._drop_aborted()

    def preempt_all(self) -> None:
        """Preempt all running sequences, which wait again in the same order."""
        while self.running:
            self._preempt_youngest()

    # what other workers computed ------------------------------------------------------------------

    def take_loads(self) -> list[Sequence]:
        """Sequences that hold blocks since the last call, to be filled from elsewhere."""
        loads, self._loads = self._loads, []
        return loads

    def loaded(self, sequence: Sequence) -> None:
        """Note that KV has arrived: the full blocks are cached, and the last token is computed again."""
        self.loading.remove(sequence)
        self.cache.store(sequence.cached, sequence.num_computed)
        sequence.num_computed = min(sequence.num_computed, len(sequence.cached.tokens) - 1)
        self.waiting.appendleft(sequence)

    def load_failed(self, sequence: Sequence, recomputes: bool) -> None:
        """Note that KV will not arrive: the sequence waits as any other, or is ended."""
        self.loading.remove(sequence)
        self.cache.free(sequence.cached)
        self.counts.failed_loads += 1
        sequence.load = None
        if recomputes:
            sequence.num_computed = sequence.num_external_tokens = 0
            sequence.num_cached_tokens = None
            self.waiting.appendleft(sequence)
        else:
            sequence.is_aborted = True

    def release(self, sequence: Sequence) -> None:
        """Free the blocks that a finished sequence has pinned."""
        self.cache.free(sequence.cached)

    # a step ---------------------------------------------------------------------------------------

    def start_step(self) -> SchedulerStep | None:
        """Choose the next step's work; None where there is none, or nothing fits."""
        work: list[tuple[Sequence, int]] = []
        budget = self._limits.max_batched_tokens
        has_preempted, budget = self._add_running(work, budget)
        if not has_preempted:
            self._add_waiting(work, budget)
        if not work:
            return None
        self._is_stepping = True
        decoding = sum(sequence.is_decoding for sequence, _ in work)
        prefill = sum(num for _, num in work) - decoding
        is_steady = not prefill and not has_preempted and len(work) == len(self.running) and self._is_plain
        return SchedulerStep(work, prefill, decoding, self._costs.step_s(prefill, decoding), is_steady)

    def finish_step(self, step: SchedulerStep) -> StepOutcome:
        """Apply the step's result: `step` must be the last one started."""
        self._is_stepping = False
        produced = [sequence for sequence, num in step.work if self._advance(sequence, num)]
        ended = [sequence for sequence in produced if sequence.is_finished]
        for sequence in ended:
            if sequence.pins is None:
                self.cache.free(sequence.cached)
            self.counts.finished[sequence.finish] += 1
        if ended:
            self.running = [
                sequence for sequence in self.running if not sequence.is_finished or sequence.is_aborted
            ]
        events = self.cache.take_events()
        self._drop_aborted()
        return StepOutcome(produced, events, step.cost_s, step.num_prefill_tokens + step.num_decoding)

    @property
    def waiting_may_fit(self) -> bool:
        """True if the cache alone keeps the waiting sequences from being admitted."""
        return bool(self.waiting) and len(self.running) < self._limits.max_num_seqs

    @property
    def _is_plain(self) -> bool:
        """True if steps need no events of transfers in progress, or of a hit that cannot be used yet."""
        return not self.cache.tiers.by_medium and not (self.waiting and self.waiting[0].cached.reports_hit)

    def decoded(self, sequence: Sequence, num_tokens: int) -> None:
        """Count tokens of several steps for a sequence, without its last one (`glide.py`)."""
        first = sequence.num_output
        sequence.cached.tokens.extend(sequence.output[first : first + num_tokens])
        sequence.num_output += num_tokens
        sequence.num_computed += num_tokens
        self.counts.generated_tokens += num_tokens

    def _advance(self, sequence: Sequence, num_tokens: int) -> bool:
        """Count computed tokens; True where that yielded the next one."""
        sequence.num_computed += num_tokens
        if sequence.is_aborted or sequence.num_computed < len(sequence.cached.tokens):
            return False
        sequence.cached.tokens.append(sequence.output[sequence.num_output])
        sequence.num_output += 1
        self.counts.generated_tokens += 1
        if sequence.num_output == 1:
            self.counts.prompt_tokens += sequence.num_prompt
            self.counts.cached_tokens += sequence.num_cached_tokens or 0
            self.counts.external_tokens += sequence.num_external_tokens
        return True

    def _add_running(self, work: list[tuple[Sequence, int]], budget: int) -> tuple[bool, int]:
        has_preempted = False
        index = 0
        while index < len(self.running) and budget > 0:
            sequence = self.running[index]
            num = min(len(sequence.cached.tokens) - sequence.num_computed, budget)
            while not self.cache.allocate(sequence.cached, (), sequence.num_computed + num):
                has_preempted = True
                if self._preempt_youngest() is sequence:
                    return True, budget
            work.append((sequence, num))
            budget -= num
            index += 1
        return has_preempted, budget

    def _add_waiting(self, work: list[tuple[Sequence, int]], budget: int) -> None:
        while self.waiting and budget > 0 and len(self.running) < self._limits.max_num_seqs:
            sequence = self.waiting[0]
            if sequence.load is not None:
                num_added = self._add_loading(sequence, work, budget)
                if num_added is None:
                    return
                budget -= num_added
                continue
            hit = self.cache.find(sequence.cached)
            num_loaded = self.cache.num_to_load(sequence.cached, len(hit))
            num_hit = (len(hit) + num_loaded) * self.cache.block_size
            # vLLM admits only what fits as a whole, however it is cut into chunks.
            if not self.cache.fits(sequence.cached, hit, len(sequence.cached.tokens)):
                return
            num = min(len(sequence.cached.tokens) - num_hit, budget)
            self.cache.allocate(sequence.cached, hit, num_hit + num)
            self.waiting.popleft()
            self._admit(sequence, num_hit)
            work.append((sequence, num))
            budget -= num

    def _add_loading(self, sequence: Sequence, work: list[tuple[Sequence, int]], budget: int) -> int | None:
        """Admit a sequence with KV elsewhere. Three cases: it came back loaded; there is nothing to load; its
        blocks must be filled first.

        Returns the tokens that this step computes of it; None where it does not fit.
        """
        load, tokens = sequence.load, len(sequence.cached.tokens)
        assert load is not None
        if sequence.cached.blocks:
            num = min(tokens - sequence.num_computed, budget)
            if not self.cache.allocate(sequence.cached, (), sequence.num_computed + num):
                return None
            self.running.append(self.waiting.popleft())
            work.append((sequence, num))
            return num
        hit = self.cache.find(sequence.cached)
        num_hit = len(hit) * self.cache.block_size
        if num_hit >= load.num_tokens:
            sequence.load = None
            return 0
        if not self.cache.fits(sequence.cached, hit, tokens):
            return None
        self.cache.allocate(sequence.cached, hit, load.num_tokens, stores=False)
        sequence.num_computed = load.num_tokens
        sequence.num_external_tokens = load.num_tokens - num_hit
        self._count(sequence, num_hit)
        sequence.num_cached_tokens = load.num_tokens
        self.loading.append(self.waiting.popleft())
        self._loads.append(sequence)
        return 0

    def _admit(self, sequence: Sequence, num_hit: int) -> None:
        sequence.num_computed = num_hit
        self.running.append(sequence)
        if sequence.num_cached_tokens is None:
            self._count(sequence, num_hit)

    def _count(self, sequence: Sequence, num_hit: int) -> None:
        sequence.num_cached_tokens = num_hit
        if sequence.cached.reads_cache:
            self.counts.prefix_queries += len(sequence.cached.tokens)
            self.counts.prefix_hits += num_hit

    def _preempt_youngest(self) -> Sequence:
        sequence = self.running.pop()
        self.cache.free(sequence.cached)
        sequence.num_computed = 0
        sequence.load = None
        sequence.num_preemptions += 1
        self.counts.preemptions += 1
        self.waiting.appendleft(sequence)
        return sequence

    def _drop_aborted(self) -> None:
        for sequence in self._aborted:
            if sequence in self.running or sequence in self.loading:
                (self.running if sequence in self.running else self.loading).remove(sequence)
                self.cache.free(sequence.cached)
            else:
                self.waiting.remove(sequence)
        self._aborted.clear()
