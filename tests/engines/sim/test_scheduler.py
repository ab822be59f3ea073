"""Batching and its costs, step by step; no clock anywhere."""

from array import array
from collections.abc import Sequence as Items
from typing import Any

import pytest

from engines.sim.cache import CachedSequence, PrefixCache
from engines.sim.pd.leg import KvLoad, Source
from engines.sim.scheduler import Scheduler, SchedulerLimits, Sequence, StepCosts, StepOutcome

COSTS = StepCosts(base_s=1.0, prefill_s=0.01, decode_s=0.1)


def scheduler(num_blocks: int = 100, block_size: int = 4, tokens: int = 1000, seqs: int = 10) -> Scheduler:
    return Scheduler(PrefixCache(num_blocks, block_size), SchedulerLimits(tokens, seqs), COSTS)


def request(num_prompt: int, num_output: int = 1, first: int = 0, **fields: Any) -> Sequence:
    tokens = array("I", range(first, first + num_prompt))
    output = list(range(5000, 5000 + num_output))
    return Sequence(CachedSequence(tokens, **fields), output, "length", num_prompt)


def step(batcher: Scheduler) -> StepOutcome:
    started = batcher.start_step()
    assert started is not None
    return batcher.finish_step(started)


def run_out(batcher: Scheduler, limit: int = 1000) -> list[StepOutcome]:
    outcomes = []
    while batcher.has_work:
        outcomes.append(step(batcher))
        assert len(outcomes) < limit
    return outcomes


def test_a_step_costs_its_base_its_prompt_tokens_and_its_decoding_sequences() -> None:
    batcher = scheduler()
    batcher.add(request(50, 3))
    assert step(batcher).cost_s == pytest.approx(1.5)
    batcher.add(request(30, 1, first=100))
    assert step(batcher).cost_s == pytest.approx(1.0 + 0.3 + 0.1)
    assert step(batcher).cost_s == pytest.approx(1.1)
    assert not batcher.has_work


def test_costs_follow_from_measurements() -> None:
    costs = StepCosts.of(prefill_tokens_per_s=1000.0, decode_tokens_per_s=50.0, batch_cost=0.1)
    assert costs.step_s(0, 1) == pytest.approx(1 / 50)
    assert costs.step_s(0, 11) == pytest.approx(2 / 50)
    assert costs.step_s(500, 0) == pytest.approx(0.5 + 0.9 / 50)


def test_a_long_prompt_is_prefilled_in_chunks_beside_decoding() -> None:
    batcher = scheduler(tokens=10)
    first = request(4, 5)
    batcher.add(first)
    step(batcher)
    batcher.add(request(25, 1, first=100))
    assert [(s.num_prefill_tokens, s.num_decoding) for s in _steps(batcher)] == [
        (9, 1),
        (9, 1),
        (7, 1),
        (0, 1),
    ]


def _steps(batcher: Scheduler) -> Items[Any]:
    steps = []
    while batcher.has_work and (started := batcher.start_step()):
        steps.append(started)
        batcher.finish_step(started)
    return steps


def test_a_cached_prefix_is_not_computed_again() -> None:
    batcher = scheduler()
    batcher.add(request(41))
    run_out(batcher)
    again = request(41)
    batcher.add(again)
    assert step(batcher).cost_s == pytest.approx(1.01)
    assert again.num_cached_tokens == 40
    assert (batcher.counts.prefix_queries, batcher.counts.prefix_hits) == (82, 40)
    assert (batcher.counts.prompt_tokens, batcher.counts.cached_tokens) == (82, 40)


def test_equal_prompts_of_one_step_share_blocks_at_once() -> None:
    batcher = scheduler()
    twins = [request(9), request(9)]
    for twin in twins:
        batcher.add(twin)
    step(batcher)
    assert [twin.num_cached_tokens for twin in twins] == [0, 8]


def test_requests_are_served_in_order_within_the_limits() -> None:
    batcher = scheduler(seqs=2)
    requests = [request(5, 2, first=100 * i) for i in range(3)]
    for each in requests:
        batcher.add(each)
    assert step(batcher).produced == requests[:2]
    assert (len(batcher.running), len(batcher.waiting)) == (2, 1)
    step(batcher)
    assert step(batcher).produced == requests[2:]


def test_a_request_that_does_not_fit_waits_and_blocks_later_ones() -> None:
    batcher = scheduler(num_blocks=11)
    running, big, small = request(20, 3), request(30, 1, first=100), request(2, 1, first=500)
    for each in (running, big, small):
        batcher.add(each)
    assert step(batcher).produced == [running]
    assert list(batcher.waiting) == [big, small]
    run_out(batcher)
    assert (big.num_output, small.num_output) == (1, 1)


def test_a_request_that_can_never_fit_gets_no_step() -> None:
    batcher = scheduler(num_blocks=3)
    batcher.add(request(20))
    assert batcher.start_step() is None
    assert batcher.has_work


def test_the_youngest_is_preempted_and_computes_evicted_blocks_again() -> None:
    batcher = scheduler(num_blocks=8, block_size=2)
    old, young = request(6, 6), request(6, 6, first=100)
    for each in (old, young):
        batcher.add(each)
    outcomes = run_out(batcher)
    assert (old.num_preemptions, young.num_preemptions) == (0, 1)
    assert batcher.counts.preemptions == 1
    assert (old.num_output, young.num_output) == (6, 6)
    assert sum(len(outcome.produced) for outcome in outcomes) == 12, "no token is reported twice"
    assert young.num_cached_tokens == 0, "the first admission counts"
    assert batcher.counts.prefix_queries == 12, "a resumed prompt is not counted again"
    assert batcher.cache.num_free == 7


def test_an_abort_frees_at_once_between_steps_and_at_the_end_of_one() -> None:
    batcher = scheduler()
    first, second, waiting = request(9, 9), request(9, 9, first=100), request(9, 9, first=200)
    batcher.add(first)
    batcher.add(second)
    step(batcher)
    batcher.abort(first)
    assert batcher.running == [second]
    started = batcher.start_step()
    assert started is not None
    batcher.add(waiting)
    batcher.abort(second)
    batcher.abort(waiting)
    assert batcher.running == [second]
    assert batcher.finish_step(started).produced == []
    assert not batcher.has_work
    assert (batcher.counts.aborts, batcher.cache.num_free) == (3, 99)
    batcher.abort(second)
    assert batcher.counts.aborts == 3


def test_preempting_all_keeps_the_order() -> None:
    batcher = scheduler()
    requests = [request(9, 3, first=100 * i) for i in range(3)]
    for each in requests:
        batcher.add(each)
    step(batcher)
    batcher.preempt_all()
    assert list(batcher.waiting) == requests
    assert batcher.cache.reset()
    assert step(batcher).produced == requests


def test_equal_scripts_have_equal_outcomes() -> None:
    def play() -> list[tuple[float, int, int]]:
        batcher = scheduler(num_blocks=30, tokens=16, seqs=4)
        for i in range(20):
            batcher.add(request(5 + i * 3 % 17, 1 + i % 5, first=i % 4 * 50))
        return [(each.cost_s, len(each.produced), len(each.events)) for each in run_out(batcher)]

    assert play() == play()


# blocks computed by other workers ----------------------------------------------------------------


def load(num_tokens: int) -> KvLoad:
    return KvLoad(num_tokens, Source("far", 1, "key"))


def test_a_load_holds_blocks_and_neither_runs_nor_waits() -> None:
    batcher = scheduler(num_blocks=20)
    far = request(18, 2)
    far.load = load(18)
    batcher.add(far)
    assert batcher.start_step() is None
    assert (batcher.take_loads(), batcher.take_loads()) == ([far], [])
    assert (batcher.loading, batcher.has_work, batcher.cache.num_free) == ([far], False, 14)
    assert batcher.cache.take_events() == [], "nothing is cached before it came"
    batcher.loaded(far)
    assert [type(event).__name__ for event in batcher.cache.take_events()] == ["AdapterBlocksStored"]
    assert step(batcher).num_tokens == 1, "the last token is computed again"
    run_out(batcher)
    assert (far.num_output, batcher.cache.num_free, batcher.counts.external_tokens) == (2, 19, 18)


def test_a_load_brings_blocks_missing_in_the_cache_only() -> None:
    batcher = scheduler()
    batcher.add(request(18))
    run_out(batcher)
    far = request(18)
    far.load = load(18)
    batcher.add(far)
    assert batcher.start_step() is None
    assert (far.num_external_tokens, far.num_cached_tokens) == (2, 18)
    batcher.loaded(far)
    run_out(batcher)
    near = request(18)
    near.load = load(16)
    batcher.add(near)
    run_out(batcher)
    assert (near.num_external_tokens, near.num_cached_tokens) == (0, 16)


def test_a_failed_load_is_computed_or_ends() -> None:
    batcher = scheduler(num_blocks=20)
    for recomputes in (True, False):
        far = request(18, first=100 * recomputes)
        far.load = load(18)
        batcher.add(far)
        assert batcher.start_step() is None
        batcher.load_failed(far, recomputes)
        assert batcher.has_work == recomputes
        run_out(batcher)
        assert (far.num_output, far.is_finished, far.num_external_tokens) == (
            int(recomputes),
            True,
            0 if recomputes else 18,
        )
    assert (batcher.cache.num_free, batcher.counts.failed_loads, batcher.counts.external_tokens) == (19, 2, 0)


def test_an_abort_ends_a_load() -> None:
    batcher = scheduler(num_blocks=20)
    far = request(18)
    far.load = load(18)
    batcher.add(far)
    batcher.start_step()
    batcher.abort(far)
    assert (batcher.loading, batcher.cache.num_free) == ([], 19)


def test_other_requests_continue_beside_a_load_that_does_not_fit() -> None:
    batcher = scheduler(num_blocks=10)
    first, far = request(20, 3), request(30, first=100)
    far.load = load(30)
    batcher.add(first)
    batcher.add(far)
    step(batcher)
    assert (batcher.take_loads(), len(batcher.waiting)) == ([], 1)
    while first.num_output < 3:
        step(batcher)
    assert batcher.start_step() is None
    assert batcher.take_loads() == [far]


def test_pinned_blocks_outlive_their_sequence() -> None:
    batcher = scheduler(num_blocks=20)
    kept = request(18)
    kept.pins = "key"
    batcher.add(kept)
    run_out(batcher)
    assert (batcher.cache.num_free, batcher.running) == (14, [])
    batcher.release(kept)
    assert batcher.cache.num_free == 19
