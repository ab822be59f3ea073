"""Batching and its costs, step by step; no clock anywhere."""

from array import array
from collections.abc import Sequence as Items
from typing import Any

import pytest

from engines.sim.cache import CachedSequence, PrefixCache
from engines.sim.pd.leg import Load, Source
from engines.sim.scheduler import Costs, Limits, Outcome, Scheduler, Sequence

COSTS = Costs(base_s=1.0, prefill_s=0.01, decode_s=0.1)


def scheduler(num_blocks: int = 100, block_size: int = 4, tokens: int = 1000, seqs: int = 10) -> Scheduler:
    return Scheduler(PrefixCache(num_blocks, block_size), Limits(tokens, seqs), COSTS)


def request(num_prompt: int, num_output: int = 1, first: int = 0, **fields: Any) -> Sequence:
    tokens = array("I", range(first, first + num_prompt))
    output = list(range(5000, 5000 + num_output))
    return Sequence(CachedSequence(tokens, **fields), output, "length", num_prompt)


def step(one: Scheduler) -> Outcome:
    started = one.start_step()
    assert started is not None
    return one.finish_step(started)


def run_out(one: Scheduler, limit: int = 1000) -> list[Outcome]:
    outcomes = []
    while one.has_work:
        outcomes.append(step(one))
        assert len(outcomes) < limit
    return outcomes


def test_a_step_costs_its_base_its_prompt_tokens_and_its_decoding_sequences() -> None:
    one = scheduler()
    one.add(request(50, 3))
    assert step(one).cost_s == pytest.approx(1.5)
    one.add(request(30, 1, first=100))
    assert step(one).cost_s == pytest.approx(1.0 + 0.3 + 0.1)
    assert step(one).cost_s == pytest.approx(1.1)
    assert not one.has_work


def test_costs_follow_from_measurements() -> None:
    costs = Costs.of(prefill_tokens_per_s=1000.0, decode_tokens_per_s=50.0, batch_cost=0.1)
    assert costs.step_s(0, 1) == pytest.approx(1 / 50)
    assert costs.step_s(0, 11) == pytest.approx(2 / 50)
    assert costs.step_s(500, 0) == pytest.approx(0.5 + 0.9 / 50)


def test_a_long_prompt_is_prefilled_in_chunks_beside_decoding() -> None:
    one = scheduler(tokens=10)
    first = request(4, 5)
    one.add(first)
    step(one)
    one.add(request(25, 1, first=100))
    assert [(s.num_prefill_tokens, s.num_decoding) for s in _steps(one)] == [(9, 1), (9, 1), (7, 1), (0, 1)]


def _steps(one: Scheduler) -> Items[Any]:
    steps = []
    while one.has_work and (started := one.start_step()):
        steps.append(started)
        one.finish_step(started)
    return steps


def test_a_cached_prefix_is_not_computed_again() -> None:
    one = scheduler()
    one.add(request(41))
    run_out(one)
    again = request(41)
    one.add(again)
    assert step(one).cost_s == pytest.approx(1.01)
    assert again.num_cached_tokens == 40
    assert (one.counts.prefix_queries, one.counts.prefix_hits) == (82, 40)
    assert (one.counts.prompt_tokens, one.counts.cached_tokens) == (82, 40)


def test_equal_prompts_of_one_step_share_blocks_at_once() -> None:
    one = scheduler()
    twins = [request(9), request(9)]
    for twin in twins:
        one.add(twin)
    step(one)
    assert [twin.num_cached_tokens for twin in twins] == [0, 8]


def test_requests_are_served_in_order_within_the_limits() -> None:
    one = scheduler(seqs=2)
    requests = [request(5, 2, first=100 * i) for i in range(3)]
    for each in requests:
        one.add(each)
    assert step(one).produced == requests[:2]
    assert (len(one.running), len(one.waiting)) == (2, 1)
    step(one)
    assert step(one).produced == requests[2:]


def test_a_request_that_does_not_fit_waits_and_blocks_later_ones() -> None:
    one = scheduler(num_blocks=11)
    running, big, small = request(20, 3), request(30, 1, first=100), request(2, 1, first=500)
    for each in (running, big, small):
        one.add(each)
    assert step(one).produced == [running]
    assert list(one.waiting) == [big, small]
    run_out(one)
    assert (big.num_output, small.num_output) == (1, 1)


def test_a_request_that_can_never_fit_gets_no_step() -> None:
    one = scheduler(num_blocks=3)
    one.add(request(20))
    assert one.start_step() is None
    assert one.has_work


def test_the_youngest_is_preempted_and_computes_evicted_blocks_again() -> None:
    one = scheduler(num_blocks=8, block_size=2)
    old, young = request(6, 6), request(6, 6, first=100)
    for each in (old, young):
        one.add(each)
    outcomes = run_out(one)
    assert (old.num_preemptions, young.num_preemptions) == (0, 1)
    assert one.counts.preemptions == 1
    assert (old.num_output, young.num_output) == (6, 6)
    assert sum(len(outcome.produced) for outcome in outcomes) == 12, "no token is reported twice"
    assert young.num_cached_tokens == 0, "the first admission counts"
    assert one.counts.prefix_queries == 12, "a resumed prompt is not counted again"
    assert one.cache.num_free == 7


def test_an_abort_frees_at_once_between_steps_and_at_the_end_of_one() -> None:
    one = scheduler()
    first, second, waiting = request(9, 9), request(9, 9, first=100), request(9, 9, first=200)
    one.add(first)
    one.add(second)
    step(one)
    one.abort(first)
    assert one.running == [second]
    started = one.start_step()
    assert started is not None
    one.add(waiting)
    one.abort(second)
    one.abort(waiting)
    assert one.running == [second]
    assert one.finish_step(started).produced == []
    assert not one.has_work
    assert (one.counts.aborts, one.cache.num_free) == (3, 99)
    one.abort(second)
    assert one.counts.aborts == 3


def test_preempting_all_keeps_the_order() -> None:
    one = scheduler()
    requests = [request(9, 3, first=100 * i) for i in range(3)]
    for each in requests:
        one.add(each)
    step(one)
    one.preempt_all()
    assert list(one.waiting) == requests
    assert one.cache.reset()
    assert step(one).produced == requests


def test_equal_scripts_have_equal_outcomes() -> None:
    def play() -> list[tuple[float, int, int]]:
        one = scheduler(num_blocks=30, tokens=16, seqs=4)
        for i in range(20):
            one.add(request(5 + i * 3 % 17, 1 + i % 5, first=i % 4 * 50))
        return [(each.cost_s, len(each.produced), len(each.events)) for each in run_out(one)]

    assert play() == play()


# blocks computed by other workers ----------------------------------------------------------------


def load(num_tokens: int) -> Load:
    return Load(num_tokens, Source("far", 1, "key"))


def test_a_load_holds_blocks_and_neither_runs_nor_waits() -> None:
    one = scheduler(num_blocks=20)
    far = request(18, 2)
    far.load = load(18)
    one.add(far)
    assert one.start_step() is None
    assert (one.take_loads(), one.take_loads()) == ([far], [])
    assert (one.loading, one.has_work, one.cache.num_free) == ([far], False, 14)
    assert one.cache.take_events() == [], "nothing is cached before it came"
    one.loaded(far)
    assert [type(event).__name__ for event in one.cache.take_events()] == ["AdapterBlocksStored"]
    assert step(one).num_tokens == 1, "the last token is computed again"
    run_out(one)
    assert (far.num_output, one.cache.num_free, one.counts.external_tokens) == (2, 19, 18)


def test_a_load_brings_blocks_missing_in_the_cache_only() -> None:
    one = scheduler()
    one.add(request(18))
    run_out(one)
    far = request(18)
    far.load = load(18)
    one.add(far)
    assert one.start_step() is None
    assert (far.num_external_tokens, far.num_cached_tokens) == (2, 18)
    one.loaded(far)
    run_out(one)
    near = request(18)
    near.load = load(16)
    one.add(near)
    run_out(one)
    assert (near.num_external_tokens, near.num_cached_tokens) == (0, 16)


def test_a_failed_load_is_computed_or_ends() -> None:
    one = scheduler(num_blocks=20)
    for recomputes in (True, False):
        far = request(18, first=100 * recomputes)
        far.load = load(18)
        one.add(far)
        assert one.start_step() is None
        one.load_failed(far, recomputes)
        assert one.has_work == recomputes
        run_out(one)
        assert (far.num_output, far.is_finished, far.num_external_tokens) == (
            int(recomputes),
            True,
            0 if recomputes else 18,
        )
    assert (one.cache.num_free, one.counts.failed_loads, one.counts.external_tokens) == (19, 2, 0)


def test_an_abort_ends_a_load() -> None:
    one = scheduler(num_blocks=20)
    far = request(18)
    far.load = load(18)
    one.add(far)
    one.start_step()
    one.abort(far)
    assert (one.loading, one.cache.num_free) == ([], 19)


def test_other_requests_continue_beside_a_load_that_does_not_fit() -> None:
    one = scheduler(num_blocks=10)
    first, far = request(20, 3), request(30, first=100)
    far.load = load(30)
    one.add(first)
    one.add(far)
    step(one)
    assert (one.take_loads(), len(one.waiting)) == ([], 1)
    while first.num_output < 3:
        step(one)
    assert one.start_step() is None
    assert one.take_loads() == [far]


def test_pinned_blocks_outlive_their_sequence() -> None:
    one = scheduler(num_blocks=20)
    kept = request(18)
    kept.pins = "key"
    one.add(kept)
    run_out(one)
    assert (one.cache.num_free, one.running) == (14, [])
    one.release(kept)
    assert one.cache.num_free == 19
