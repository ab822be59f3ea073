import random

import pytest

from gateway.core.speed import TYPICAL, Pace
from gateway.core.worker import Reported, WorkerId
from gateway.routing.least_squares import FORGET_S
from gateway.routing.speed_model import Paces

FAST, SLOW, NEW = map(WorkerId, ("fast", "slow", "new"))
TRUTH = {
    FAST: Pace(0.01, 1 / 20_000, 1e-7, 0.008, 1e-4, 4e-5, 1e-4),
    SLOW: Pace(0.02, 1 / 10_000, 2e-7, 0.016, 2e-4, 8e-5, 2e-4),
}


def see(paces: Paces, num: int, now: float = 0.0, workers: dict[WorkerId, Pace] = TRUTH) -> float:
    rng = random.Random(3)
    for _ in range(num):
        now += 0.25
        for worker, pace in workers.items():
            ahead, own, running = rng.randrange(5000), rng.randrange(50, 5000), rng.randrange(30)
            paces.began(
                worker, ahead, own, running, pace.ttft_s(ahead + own, running) * rng.gauss(1, 0.05), now
            )
            out, computed = rng.randrange(20, 400), rng.randrange(20_000)
            step_s = pace.step_s + running * pace.step_seq_s
            paces.ended(worker, out, running, computed, out * step_s + computed * pace.harm_s, now)
        paces.refresh(now)
    return now


def test_each_worker_has_its_own_speed() -> None:
    paces = Paces()
    see(paces, 150)
    for worker, truth in TRUTH.items():
        pace = paces.pace(worker)
        assert 1 / pace.token_s == pytest.approx(1 / truth.token_s, rel=0.15)
        assert pace.ttft_s(4000, 10) == pytest.approx(truth.ttft_s(4000, 10), rel=0.15)
        assert pace.step_s + 10 * pace.step_seq_s == pytest.approx(
            truth.step_s + 10 * truth.step_seq_s, rel=0.15
        )
        assert pace.harm_s == pytest.approx(truth.harm_s, rel=0.3)


def test_a_constant_feature_is_not_taken_for_another() -> None:
    """Prompts with a constant number of uncached tokens, before ever more running answers: the speed of
    prefill cannot be separated, and is not made up.
    """
    paces, truth, now = Paces(), TRUTH[FAST], 0.0
    for number in range(3000):
        now += 0.05
        running = number // 15
        paces.began(FAST, 0, 400, running, truth.ttft_s(400, running), now)
        paces.refresh(now)
    assert 1 / paces.pace(FAST).token_s < 5 / truth.token_s
    assert paces.pace(FAST).ttft_s(400, 200) == pytest.approx(truth.ttft_s(400, 200), rel=0.05)


def test_length_and_concurrency_of_answers_are_learnt() -> None:
    paces = Paces()
    paces.reported(NEW, Reported(64, 1), 0.0)  # it has answered no request yet
    for number in range(60):
        paces.ended(NEW, 800, 3, 0, 8.0, float(number))
        paces.reported(NEW, Reported(64, 1 + number), float(number))
    assert paces.pace(NEW).answer_tokens == pytest.approx(800, rel=0.1)
    assert paces.pace(NEW).seats == 64


def test_a_new_worker_is_expected_to_be_like_the_others() -> None:
    paces = Paces()
    assert paces.pace(NEW) == TYPICAL
    see(paces, 50)
    assert 9_000 < 1 / paces.pace(NEW).token_s < 22_000


def test_a_worker_that_looked_slow_is_tried_again_and_recovers() -> None:
    paces = Paces()
    now = see(paces, 50)
    for _ in range(20):
        now += 0.25
        paces.began(SLOW, 0, 2000, 0, 20.0, now)  # a hundred times as slow, for some seconds
    was = paces.pace(SLOW).token_s
    assert was > 20 * TRUTH[FAST].token_s
    for _ in range(int(4 * 6 * FORGET_S)):  # no request goes there, the others work on
        now += 0.25
        paces.began(FAST, 0, 2000, 0, TRUTH[FAST].ttft_s(2000, 0), now)
        paces.refresh(now)
    assert paces.pace(SLOW).token_s < 2 * TRUTH[FAST].token_s
    see(paces, 30, now, {SLOW: TRUTH[FAST]})
    assert paces.pace(SLOW).token_s == pytest.approx(TRUTH[FAST].token_s, rel=0.2)


def test_computed_tokens_are_counted_with_and_without_times() -> None:
    paces = Paces()
    paces.computed(NEW, 100)
    paces.began(NEW, 0, 50, 0, 0.1, 1.0)
    assert paces.num_computed(NEW) == 150
    paces.drop(NEW)
    assert paces.num_computed(NEW) == 0


def test_answers_without_time_or_tokens_are_ignored() -> None:
    paces = Paces()
    paces.began(NEW, 0, 50, 0, 0.0, 1.0)
    paces.ended(NEW, 0, 0, 0, 1.0, 1.0)
    assert paces.pace(NEW) == TYPICAL
    assert "1 known" in repr(paces)
