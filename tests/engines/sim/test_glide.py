"""Steps taken at once equal single ones: `stepped` is the oracle."""

from array import array
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from engines.sim.cache import CachedSequence, PrefixCache
from engines.sim.glide import Glide
from engines.sim.scheduler import Scheduler, SchedulerLimits, Sequence, StepCosts, StepOutcome

Reported = list[tuple[int, Any]]


def scheduler(lengths: list[tuple[int, int]], num_blocks: int, block_size: int, seqs: int) -> Scheduler:
    """Sequence of the given numbers of prompt and output tokens for each of `lengths`; some share a
    beginning.
    """
    cache = PrefixCache(num_blocks, block_size, hash_form="ours")
    batcher = Scheduler(cache, SchedulerLimits(16, seqs), StepCosts(1.0, 0.1, 0.01))
    for number, (num_prompt, num_output) in enumerate(lengths):
        tokens = array("I", [number % 2, *range(num_prompt - 1)])
        output = [10_000 * (number + 1) + i for i in range(num_output)]
        batcher.add(Sequence(CachedSequence(tokens), output, "length", num_prompt))
    return batcher


def state(batcher: Scheduler) -> Any:
    rows = [
        (s.cached.tokens.tolist(), s.num_computed, s.num_output) for s in (*batcher.running, *batcher.waiting)
    ]
    numbers = [[block.number for block in s.cached.blocks] for s in batcher.running]
    return rows, numbers, batcher.cache.num_free, batcher.counts, len(batcher.running)


def reported(number: int, outcome: StepOutcome) -> Reported:
    ended = [s.cached.tokens.tolist() for s in outcome.produced if s.is_finished]
    return [(number, event) for event in outcome.events] + [(number, tokens) for tokens in ended]


def stepped(batcher: Scheduler, limit: int) -> tuple[Reported, Any]:
    found: Reported = []
    for number in range(1, limit + 1):
        step = batcher.start_step()
        if step is None:
            break
        found += reported(number, batcher.finish_step(step))
    return found, state(batcher)


def glided(batcher: Scheduler, limit: int) -> tuple[Reported, Any, int]:
    """Result of as many steps by glides, and the number of steps that were not taken singly."""
    found: Reported = []
    number = saved = 0
    while number < limit and (step := batcher.start_step()) is not None:
        glide = Glide.of(batcher, step)
        if glide is None:
            number += 1
            found += reported(number, batcher.finish_step(step))
            continue
        before = number
        while not glide.is_over and before + glide.next <= limit:
            number = before + glide.next
            found += reported(number, glide.take())
        if not glide.is_over:  # as a newly arrived request does
            found += reported(limit, batcher.finish_step(glide.stop(limit - before - 1)))
            number = limit
        saved += number - before - 1
    return found, state(batcher), saved


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 60)), min_size=1, max_size=8),
    st.integers(12, 60),
    st.sampled_from([2, 4, 16]),
    st.integers(1, 6),
    st.integers(1, 200),
)
def test_glided_steps_equal_single_steps(
    lengths: list[tuple[int, int]], num_blocks: int, block_size: int, seqs: int, limit: int
) -> None:
    first = scheduler(lengths, num_blocks, block_size, seqs)
    second = scheduler(lengths, num_blocks, block_size, seqs)
    events, end = stepped(first, limit)
    other_events, other_end, _ = glided(second, limit)
    assert other_events == events
    assert other_end == end


def test_long_answers_are_glided() -> None:
    *_, saved = glided(scheduler([(20, 1000), (30, 800)], 500, 16, 8), 2000)
    assert saved > 800


def test_a_glide_ends_before_blocks_run_out() -> None:
    """Two sequences that do not fit together: one is preempted, as without a glide."""
    lengths = [(8, 60), (8, 60)]
    first, second = scheduler(lengths, 20, 4, 8), scheduler(lengths, 20, 4, 8)
    assert glided(second, 500)[:2] == stepped(first, 500)
    assert first.counts.preemptions > 0


def test_steps_with_prompts_are_not_glided() -> None:
    batcher = scheduler([(4, 50), (40, 10)], 100, 4, 8)
    for _ in range(3):  # 16 tokens of prompts each
        step = batcher.start_step()
        assert step is not None and Glide.of(batcher, step) is None
        batcher.finish_step(step)
