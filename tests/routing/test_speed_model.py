import math
import random

import pytest

from gateway.core.decision import Query
from gateway.core.speed import TYPICAL, Speed
from gateway.core.value import replace
from gateway.core.worker import ReportedLoad, WorkerId
from gateway.policies.expected_ttft import ExpectedTtft
from gateway.routing.least_squares import FORGET_S
from gateway.routing.speed_model import SpeedModels
from tests.policies.contract import candidate

FAST, SLOW, NEW = map(WorkerId, ("fast", "slow", "new"))
TRUTH = {
    FAST: Speed(0.01, 1 / 20_000, 1e-7, 0.008, 1e-4, 4e-5, 1e-4),
    SLOW: Speed(0.02, 1 / 10_000, 2e-7, 0.016, 2e-4, 8e-5, 2e-4),
}


def see(
    speed_models: SpeedModels, num: int, now: float = 0.0, workers: dict[WorkerId, Speed] = TRUTH
) -> float:
    rng = random.Random(3)
    for _ in range(num):
        now += 0.25
        for worker, speed in workers.items():
            ahead, own, running = rng.randrange(5000), rng.randrange(50, 5000), rng.randrange(30)
            speed_models.began(
                worker, ahead, own, running, speed.ttft_s(ahead + own, running) * rng.gauss(1, 0.05), now
            )
            out, computed = rng.randrange(20, 400), rng.randrange(20_000)
            step_s = speed.step_s + running * speed.step_seq_s
            speed_models.ended(worker, out, running, computed, out * step_s + computed * speed.harm_s, now)
        speed_models.refresh(now)
    return now


def test_each_worker_has_its_own_speed() -> None:
    speed_models = SpeedModels()
    see(speed_models, 150)
    for worker, truth in TRUTH.items():
        speed = speed_models.speed(worker)
        assert 1 / speed.token_s == pytest.approx(1 / truth.token_s, rel=0.15)
        assert speed.ttft_s(4000, 10) == pytest.approx(truth.ttft_s(4000, 10), rel=0.15)
        assert speed.step_s + 10 * speed.step_seq_s == pytest.approx(
            truth.step_s + 10 * truth.step_seq_s, rel=0.15
        )
        assert speed.harm_s == pytest.approx(truth.harm_s, rel=0.3)


def test_a_constant_feature_is_not_taken_for_another() -> None:
    """Prompts with a constant number of uncached tokens, before ever more running answers: the speed of
    prefill cannot be separated, and is not made up.
    """
    speed_models, truth, now = SpeedModels(), TRUTH[FAST], 0.0
    for number in range(3000):
        now += 0.05
        running = number // 15
        speed_models.began(FAST, 0, 400, running, truth.ttft_s(400, running), now)
        speed_models.refresh(now)
    assert 1 / speed_models.speed(FAST).token_s < 5 / truth.token_s
    assert speed_models.speed(FAST).ttft_s(400, 200) == pytest.approx(truth.ttft_s(400, 200), rel=0.05)


def test_length_and_concurrency_of_answers_are_learnt() -> None:
    speed_models = SpeedModels()
    speed_models.reported(NEW, ReportedLoad(64, 1), 0.0)  # it has answered no request yet
    for number in range(60):
        speed_models.ended(NEW, 800, 3, 0, 8.0, float(number))
        speed_models.reported(NEW, ReportedLoad(64, 1 + number), float(number))
    assert speed_models.speed(NEW).answer_tokens == pytest.approx(800, rel=0.1)
    assert speed_models.speed(NEW).max_running == 64


def test_the_gaps_of_answers_bound_the_interval_between_their_ends() -> None:
    """Prompts that are computed meanwhile lengthen answers; a few long ones do not make a worker slow."""
    speed_models = SpeedModels()
    for number in range(300):
        speed_models.ended(NEW, 100, 30, 5000, 4.0, float(number))
    speed = speed_models.speed(NEW)
    assert speed.gap_s == pytest.approx(0.04)
    assert speed.interval_s(32) == pytest.approx(100 * 0.04 / 32, rel=0.05)
    for number in range(3):
        speed_models.ended(NEW, 400, 30, 5000, 16.0, 300.0 + number)
    assert speed_models.speed(NEW).answer_tokens == pytest.approx(100, rel=0.15)


def test_no_limit_is_learnt_while_prompts_explain_the_waiting() -> None:
    speed_models = SpeedModels()
    speed_models.ended(NEW, 100, 3, 0, 2.0, 0.0)
    for number in range(9):
        speed_models.reported(NEW, ReportedLoad(32, 5 + number % 2), float(number), 80_000)
    assert speed_models.speed(NEW).max_running == math.inf
    for number in range(9):
        speed_models.reported(NEW, ReportedLoad(32, 5 + number % 2), 9.0 + number, 500)
    assert speed_models.speed(NEW).max_running == 32


def test_the_limit_that_an_engine_reports_is_used() -> None:
    speed_models = SpeedModels()
    speed_models.ended(NEW, 100, 3, 0, 2.0, 0.0)
    speed_models.reported(NEW, ReportedLoad(), 0.0, 0, 48)
    assert speed_models.speed(NEW).max_running == 48


def test_a_new_worker_is_expected_to_be_like_the_others() -> None:
    speed_models = SpeedModels()
    assert speed_models.speed(NEW) == TYPICAL
    see(speed_models, 50)
    assert 9_000 < 1 / speed_models.speed(NEW).token_s < 22_000


def test_a_worker_that_looked_slow_is_tried_again_and_recovers() -> None:
    speed_models = SpeedModels()
    now = see(speed_models, 50)
    for _ in range(20):
        now += 25.0
        speed_models.began(
            SLOW, 0, 2000, 0, 20.0, now
        )  # a hundred times as slow, one request after the other
    assert speed_models.speed(SLOW).ttft_s(2000, 0) > 10 * TRUTH[FAST].ttft_s(2000, 0)
    for _ in range(int(4 * 6 * FORGET_S)):  # no request goes there, the others work on
        now += 0.25
        speed_models.began(FAST, 0, 2000, 0, TRUTH[FAST].ttft_s(2000, 0), now)
        speed_models.refresh(now)
    assert speed_models.speed(SLOW).token_s < 2 * TRUTH[FAST].token_s
    see(speed_models, 30, now, {SLOW: TRUTH[FAST]})
    assert speed_models.speed(SLOW).token_s == pytest.approx(TRUTH[FAST].token_s, rel=0.2)


def test_a_cold_start_before_any_speed_was_known_is_forgotten() -> None:
    speed_models = SpeedModels()
    for number in range(8):  # all waited for the same start
        speed_models.began(SLOW, 0, 100, 0, 5.0, 5.0 + number / 100)
    assert speed_models.speed(SLOW).ttft_s(100, 0) > 0.5
    for number in range(4):
        speed_models.began(FAST, 0, 100, 0, 0.05, 6.0 + number)
    speed_models.refresh(10.0)
    assert speed_models.speed(SLOW).ttft_s(100, 0) == speed_models.typical.ttft_s(100, 0) < 0.1


def test_a_cold_start_of_a_later_worker_hardly_counts() -> None:
    speed_models = SpeedModels()
    now = see(speed_models, 50, workers={FAST: TRUTH[FAST]})
    typical_s = speed_models.typical.ttft_s(100, 0)
    for number, seconds in enumerate((0.5, typical_s, typical_s, typical_s)):
        now += 1.0
        speed_models.began(NEW, 0, 100, 0, seconds, now)
        assert speed_models.speed(NEW).ttft_s(100, 0) == pytest.approx(typical_s, rel=0.3), number


def test_of_two_workers_the_faster_one_is_typical() -> None:
    speed_models = SpeedModels()
    see(speed_models, 50)
    assert speed_models.typical.token_s == pytest.approx(TRUTH[FAST].token_s, rel=0.1)


def test_computed_tokens_are_counted_with_and_without_times() -> None:
    speed_models = SpeedModels()
    speed_models.computed(NEW, 100)
    speed_models.began(NEW, 0, 50, 0, 0.1, 1.0)
    assert speed_models.num_computed(NEW) == 150
    speed_models.drop(NEW)
    assert speed_models.num_computed(NEW) == 0


def test_answers_without_time_or_tokens_are_ignored() -> None:
    speed_models = SpeedModels()
    speed_models.began(NEW, 0, 50, 0, 0.0, 1.0)
    speed_models.ended(NEW, 0, 0, 0, 1.0, 1.0)
    assert speed_models.speed(NEW) == TYPICAL
    assert "1 known" in repr(speed_models)


def shares(truths: dict[WorkerId, Speed], scatter: float, num: int = 120) -> dict[WorkerId, int]:
    """Requests that each worker gets of `num` different ones that find all workers idle."""
    rng, speed_models, policy, now = random.Random(11), SpeedModels(), ExpectedTtft(), 0.0
    got = dict.fromkeys(truths, 0)
    for _ in range(num):
        tokens = rng.randrange(50, 1200)
        idle = [replace(candidate(one, prompt=tokens), speed=speed_models.speed(one)) for one in truths]
        worker = idle[policy.choose(Query("m", tokens), idle, rng).index].id
        got[worker] += 1
        seconds = truths[worker].ttft_s(tokens, 0) * math.exp(rng.gauss(0.0, scatter))
        now += seconds
        speed_models.began(worker, 0, tokens, 0, seconds, now)
        now += 3.0
        speed_models.ended(worker, 32, 0, 0, 32 * truths[worker].step_s, now)
        speed_models.refresh(now)
    return got


@pytest.mark.parametrize("scatter", [0.05, 0.15, 0.3, 0.5])
def test_equal_workers_share_the_requests_that_come_one_by_one(scatter: float) -> None:
    """Within three standard deviations of a fair coin: 44 to 76 of 120."""
    got = shares({FAST: TRUTH[SLOW], SLOW: TRUTH[SLOW]}, scatter)
    assert min(got.values()) >= 60 - 3 * math.sqrt(120) / 2


def test_a_worker_that_is_twice_as_slow_gets_few_of_them() -> None:
    got = shares(TRUTH, 0.15)
    assert got[SLOW] < 120 / 4
