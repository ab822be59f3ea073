"""The split of workers between prefill and decode."""

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.speed import Speed
from gateway.scaling.capacity import Mix, Objectives
from gateway.scaling.split import GAIN, SplitAdvice, SplitState, WorkerSplit, advise_split, rates

SPEED = Speed(start_s=0.02, token_s=1e-4, step_s=0.02, step_seq_s=1e-4, harm_s=1e-4, max_running=256)
IN_TIME = Objectives(2.0, 0.05)
UP = WorkerSplit(4, 4)

speeds = st.builds(
    Speed,
    start_s=st.floats(0.001, 0.1),
    token_s=st.floats(1e-5, 3e-4),
    step_s=st.floats(0.005, 0.03),
    step_seq_s=st.floats(1e-6, 3e-4),
    harm_s=st.floats(0.0, 3e-4),
    max_running=st.one_of(st.just(math.inf), st.floats(16, 512)),
)
mixes = st.builds(Mix, st.floats(50.0, 5000.0), st.floats(5.0, 2000.0))
states = st.builds(
    SplitState,
    st.just("llama"),
    st.builds(WorkerSplit, st.integers(0, 12), st.integers(0, 12)),
    speeds,
    speeds,
    mixes,
    st.floats(1.0, 1e5),
    st.floats(0.0, 0.5),
    st.booleans(),
)


def state(prompt: float, output: float, up: WorkerSplit = UP, **more: object) -> SplitState:
    return replace(SplitState("llama", up, SPEED, SPEED, Mix(prompt, output), 10_000.0), **more)  # type: ignore[arg-type]


def workers(advice: SplitAdvice) -> WorkerSplit:
    assert advice.workers is not None
    return advice.workers


def test_long_prompts_want_prefill_workers_and_long_answers_decode_workers() -> None:
    code = advise_split(state(3000, 30), IN_TIME)
    reasoning = advise_split(state(500, 600), IN_TIME)
    assert workers(code).prefill >= 6 and workers(reasoning).prefill <= 3
    assert code.requests_per_s > 1.05 * code.up_requests_per_s > 0.0
    assert reasoning.share < 0.4 < 0.7 < code.share


def test_prompts_that_decode_workers_compute_now_are_counted_as_prompts() -> None:
    """The advice follows from what requests are, not from the workers that computed them."""
    few, many = (advise_split(state(3000, 30, WorkerSplit(num, 8 - num)), IN_TIME) for num in (1, 7))
    assert workers(few) == workers(many) and few.share == many.share


def test_cache_that_fills_wants_more_decode_workers() -> None:
    small = replace_max(SPEED, 20.0)
    full = advise_split(state(2000, 300, decode=small, is_bound=True), IN_TIME)
    assert full.share < advise_split(state(2000, 300, is_bound=True), IN_TIME).share - 0.1


def test_tight_itl_wants_fewer_prompts_on_decode_workers() -> None:
    """Without an ITL to meet, decode workers may as well compute prompts."""
    tight, loose = (rates(state(2000, 100), Mix(2000, 100), Objectives(2.0, itl_s)) for itl_s in (0.03, 1.0))
    assert tight(WorkerSplit(1, 7)) / tight(WorkerSplit(6, 2)) < loose(WorkerSplit(1, 7)) / loose(
        WorkerSplit(6, 2)
    )


def test_decode_workers_that_answer_nothing_alone_compute_no_prompts() -> None:
    free, bound = (
        rates(state(3000, 30, is_bound=is_bound), Mix(3000, 30), IN_TIME) for is_bound in (False, True)
    )
    assert bound(WorkerSplit(1, 7)) < 0.4 * free(WorkerSplit(1, 7))


def test_hand_over_takes_its_time_from_the_objective() -> None:
    near, far = (
        rates(state(3000, 30, handoff_s=handoff_s), Mix(3000, 30), IN_TIME) for handoff_s in (0.0, 1.2)
    )
    assert far(WorkerSplit(6, 2)) < near(WorkerSplit(6, 2))


def test_harm_that_was_not_seen_is_at_least_the_time_of_the_prompt() -> None:
    unseen = Speed(**{**fields(SPEED), "harm_s": 0.0})
    assert advise_split(state(3000, 30, decode=unseen), IN_TIME) == advise_split(state(3000, 30), IN_TIME)


@pytest.mark.parametrize("up", [WorkerSplit(0, 0), WorkerSplit(0, 1), WorkerSplit(1, 0)])
def test_no_whole_numbers_without_a_worker_of_each(up: WorkerSplit) -> None:
    advice = advise_split(state(1000, 100, up), IN_TIME)
    assert advice.workers is None and advice.requests_per_s == advice.up_requests_per_s == 0.0
    assert 0.0 < advice.share < 1.0


def test_two_workers_of_one_role_become_one_of_each() -> None:
    assert workers(advise_split(state(1000, 100, WorkerSplit(0, 2)), IN_TIME)) == (1, 1)


def test_few_requests_move_nothing() -> None:
    sure, unsure = (advise_split(state(1500, 200, num_requests=num), IN_TIME) for num in (10_000.0, 4.0))
    assert unsure.high - unsure.low > 3 * (sure.high - sure.low)
    assert workers(unsure) == UP != workers(sure)


@settings(deadline=None, max_examples=40)
@given(states, st.one_of(st.none(), st.builds(WorkerSplit, st.integers(0, 12), st.integers(0, 12))))
def test_advised_numbers_are_whole_have_both_roles_and_serve_no_less(
    given_state: SplitState, kept: WorkerSplit | None
) -> None:
    advice = advise_split(given_state, IN_TIME, kept)
    assert 0.0 <= advice.low <= advice.share <= advice.high <= 1.0
    if advice.workers is None:
        assert given_state.num_up.total < 2
        return
    prefill, decode = advice.workers
    assert prefill + decode == given_state.num_up.total and prefill >= 1 and decode >= 1
    assert prefill == int(prefill) and decode == int(decode)
    if kept is None:
        assert advice.requests_per_s >= advice.up_requests_per_s


@settings(deadline=None, max_examples=40)
@given(states, st.floats(0.05, 0.95))
def test_no_other_share_serves_much_more(given_state: SplitState, other: float) -> None:
    serves = rates(given_state, given_state.mix, IN_TIME)
    share = advise_split(given_state, IN_TIME).share
    assert serves(WorkerSplit(share, 1 - share)) >= 0.97 * serves(WorkerSplit(other, 1 - other))


def test_noise_does_not_move_the_advice() -> None:
    """A mix that wavers by what so few requests show: on a boundary between two whole numbers, too."""
    rng = random.Random(3)
    for prompt in range(500, 4000, 500):
        kept, num_changes = None, 0
        for _ in range(60):
            seen = prompt * math.exp(rng.gauss(0.0, 0.05))
            advice = advise_split(state(seen, 200, num_requests=800.0), IN_TIME, kept)
            num_changes += kept not in (None, advice.workers)
            kept = advice.workers
        assert num_changes <= 2


def test_numbers_advised_before_stay_until_others_serve_surely_more() -> None:
    best = workers(advise_split(state(3000, 30), IN_TIME))
    serves = rates(state(3000, 30), Mix(3000, 30), IN_TIME)
    for num in range(1, 8):
        kept = WorkerSplit(num, 8 - num)
        found = workers(advise_split(state(3000, 30), IN_TIME, kept))
        assert found in (kept, best)
        assert found == best or (1.0 + 2 * GAIN) * serves(kept) >= serves(best)


def fields(speed: Speed) -> dict[str, float]:
    return {name: getattr(speed, name) for name in Speed.__match_args__}


def replace_max(speed: Speed, max_running: float) -> Speed:
    return Speed(**{**fields(speed), "max_running": max_running})
