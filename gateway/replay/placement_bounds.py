"""Bounds of placement: rows that no gateway can reach, for comparison with the others.

pooled       one worker with the whole fleet's cache and speed: nothing is placed, and none reuses more
all_knowing  sees each engine's true cache and queue when it decides, and plays them forward: the
             lowest true time to first token, if no request came after. It is greedy: a bound in
             practice, no proof
as_recorded  each request goes where it went: the difference left is the engines', learnt by
`calibration.py`
"""

import heapq
import random
from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace

from engines.sim.cache import CachedSequence, Content
from engines.sim.scheduler import Sequence as EngineSequence
from gateway.core.blocks import Tokens
from gateway.core.decision import Candidate, Choice, Query
from gateway.core.worker import WorkerId
from gateway.policies.base import pick_lowest
from gateway.replay.engine import VirtualEngine
from gateway.replay.job import ReplayJob
from gateway.replay.profile import Profile


def pooled(profiles: Sequence[Profile]) -> Profile:
    """Profile of one worker for all: a step has the base of the fastest, and computes as much as all of
    them."""
    base_s = min(each.step_s - each.seq_s for each in profiles)
    seq_s = 1 / sum(1 / each.seq_s for each in profiles) if all(each.seq_s for each in profiles) else 0.0
    return replace(
        profiles[0],
        name="pooled",
        prefill_tokens_per_s=sum(each.prefill_tokens_per_s for each in profiles),
        step_s=base_s + seq_s,
        seq_s=seq_s,
        kv_tokens=sum(each.kv_tokens for each in profiles),
        max_batched_tokens=sum(each.max_batched_tokens for each in profiles),
        max_num_seqs=sum(each.max_num_seqs for each in profiles),
    )


class AllKnowing:
    """Policy with perfect knowledge of the engines; `look` comes before each decision."""

    name = "all_knowing"

    def __init__(self) -> None:
        self._ttft_s: dict[WorkerId, float] = {}
        self._foresights: dict[WorkerId, Foresight] = {}

    def look(
        self, tokens: Tokens, engines: Mapping[WorkerId, VirtualEngine], adapter: str | None = None
    ) -> None:
        wanted = CachedSequence(array("I", tokens), adapter)
        for worker, engine in engines.items():
            known = self._foresights.get(worker)
            if known is None or known.engine is not engine:
                known = self._foresights[worker] = Foresight(engine)
            self._ttft_s[worker] = known.ttft_s(wanted)

    def choose(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Choice:
        costs = [self._ttft_s[candidate.id] for candidate in candidates]
        index = pick_lowest(costs, rng)
        return Choice(index, "the lowest true time to first token", tuple(costs), costs[index])


class AsRecorded:
    """Policy that sends each request where it went; `look` comes before each decision."""

    name = "as_recorded"

    def __init__(self) -> None:
        self._place: WorkerId | None = None

    def look(self, job: ReplayJob) -> None:
        self._place = job.place

    def choose(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Choice:
        for i, candidate in enumerate(candidates):
            if candidate.id == self._place:
                return Choice(i, "where it went")
        raise LookupError(f"a request went to {self._place}, which is not a candidate")


class Foresight:
    """Prediction of an engine's first tokens by playing its scheduler forward."""

    def __init__(self, engine: VirtualEngine) -> None:
        self.engine = engine
        self._uncached: dict[EngineSequence, int] = {}  # of waiting sequences, looked up once

    def ttft_s(self, wanted: CachedSequence) -> float:
        """Seconds until the first token of a prompt that comes now. Plays steps as the scheduler would; a
        shortage of blocks is not predicted."""
        engine = self.engine
        engine.settle()
        queue, ends, to_come_s = self._under_way()
        before: list[Sequence[Content]] = [s.cached.contents for s in engine.scheduler.running]
        for sequence in engine.scheduler.waiting:
            if sequence not in self._uncached:
                self._uncached[sequence] = self._to_compute(sequence.cached, before)
            before.append(sequence.cached.contents)
            queue.append((self._uncached[sequence], len(sequence.output) - sequence.num_output, sequence))
        if len(self._uncached) > 2 * len(engine.scheduler.waiting) + 64:
            self._uncached = {s: self._uncached[s] for s in engine.scheduler.waiting}
        queue.append((self._to_compute(wanted, before), 0, None))
        return to_come_s + self._play(queue, ends)

    def _under_way(self) -> "tuple[list[Queued], list[int], float]":
        """Running prompts that are not computed yet, steps until each decoding sequence's end, and the
        current step's rest."""
        engine = self.engine
        step = engine.step
        work = dict(step.work) if step is not None else {}
        queue: list[Queued] = []
        ends: list[int] = []
        for sequence in engine.scheduler.running:
            missing = len(sequence.cached.tokens) - sequence.num_computed - work.get(sequence, 0)
            left = len(sequence.output) - sequence.num_output
            if missing > 0:
                queue.append((missing, left, sequence))
            elif left > 1:
                ends.append(left - 1)
        heapq.heapify(ends)
        return queue, ends, engine.step_left_s

    def _to_compute(self, wanted: CachedSequence, before: Sequence[Sequence[Content]]) -> int:
        """Tokens that are neither cached nor will be by the sequences before it."""
        cache = self.engine.scheduler.cache
        num = len(cache.find(wanted))
        most = (len(wanted.tokens) - 1) // cache.block_size
        for other in before:
            if num < most and num < len(other) and other[num] == wanted.contents[num]:
                num = max(num, _common(wanted.contents[:most], other))
        return len(wanted.tokens) - num * cache.block_size

    def _play(self, queue: "list[Queued]", ends: list[int]) -> float:
        """Seconds until the last of the queue is computed. `ends` are of the decoding sequences."""
        profile = self.engine.profile
        base_s, token_s = profile.step_s - profile.seq_s, 1 / profile.prefill_tokens_per_s
        took_s, number, at = 0.0, 0, 0
        missing = queue[0][0]
        while True:
            number += 1
            budget = max(profile.max_batched_tokens - len(ends), 1)
            num_prefill = 0
            done: list[int] = []
            while budget and at < len(queue) and len(ends) + len(done) < profile.max_num_seqs:
                num = min(missing, budget)
                num_prefill, budget, missing = num_prefill + num, budget - num, missing - num
                if missing:
                    break
                done.append(queue[at][1])
                at += 1
                missing = queue[at][0] if at < len(queue) else 0
            took_s += base_s + token_s * num_prefill + profile.seq_s * len(ends)
            if at == len(queue):
                return took_s
            for left in done:
                if left > 1:
                    heapq.heappush(ends, number + left - 1)
            while ends and ends[0] <= number:
                heapq.heappop(ends)


Queued = tuple[int, int, EngineSequence | None]


def _common(one: Sequence[Content], two: Sequence[Content]) -> int:
    """Leading blocks that are equal: hashes are chained, so those behind the first difference differ too."""
    return bisect_left(range(min(len(one), len(two))), True, key=lambda i: one[i] != two[i])
