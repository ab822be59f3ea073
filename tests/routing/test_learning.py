import math
import random
from collections import Counter
from dataclasses import replace
from heapq import heappop, heappush
from itertools import count
from typing import Any

import pytest

from gateway.core.blocks import tokens_of
from gateway.core.kv_events import BlocksRemoved, BlocksStored
from gateway.core.usage import Usage
from gateway.core.value import replace as replace_pace
from gateway.core.worker import ServedModel, Worker, WorkerId
from gateway.policies.expected_ttft import ExpectedTtft
from tests.support.worlds.router import RouterWorld, worker

M = ServedModel("m", "m")


def test_first_tokens_teach_a_workers_speed() -> None:
    world = RouterWorld(worker("a", M))
    for number in range(40):
        world.now += 1.0
        decision = world.decide(range(number, number + 2000))
        world.router.first_token(decision, 0.01 + 2000 / 5000)
        world.router.finish(decision)
    member = world.fleet.get(WorkerId("a"))
    assert member is not None
    assert member.speed.ttft_s(2000, 0) == pytest.approx(0.41, rel=0.1)
    assert world.decide(range(9)).candidates[0].speed is member.speed


def test_answers_teach_the_time_of_a_step() -> None:
    world = RouterWorld(worker("a", M))
    for number in range(40):
        world.now += 1.0
        decision = world.decide(range(number, number + 100))
        world.router.first_token(decision, 0.1)
        world.router.finish(decision, Usage(100, 101), answer_s=100 * 0.005)
    member = world.fleet.get(WorkerId("a"))
    assert member is not None
    assert member.speed.step_s == pytest.approx(0.005, rel=0.1)


def test_an_unstreamed_answer_teaches_no_speed() -> None:
    world = RouterWorld(worker("a", M))
    before = world.router.learning.speed_models.speed(WorkerId("a"))
    decision = world.decide(range(2000))
    world.router.first_token(decision)
    world.router.finish(decision, Usage(2000, 500))
    assert world.router.learning.speed_models.speed(WorkerId("a")) == before
    assert world.router.learning.speed_models.num_computed(WorkerId("a")) == 2000


def test_the_lifetime_of_blocks_is_learnt_from_evictions() -> None:
    small = Worker(WorkerId("a"), "http://a", (M,), block_size=16, num_blocks=100)
    world = RouterWorld(small, replace(small, id=WorkerId("b"), url="http://b"))
    for number in range(60):
        world.now += 1.0
        world.index.apply(WorkerId("a"), BlocksStored([number], None, tokens_of([number] * 16), 16))
        world.index.apply(WorkerId("a"), BlocksRemoved([number]))
        world.decide(range(9))
    members = {member.worker.id: member for member in world.fleet}
    assert members[WorkerId("a")].stays_s == pytest.approx(100, rel=0.05)  # one block a second, of a hundred
    assert math.isinf(members[WorkerId("b")].stays_s)


def test_a_dropped_worker_is_forgotten() -> None:
    world = RouterWorld(worker("a", M))
    world.now = 5.0
    decision = world.decide(range(2000))
    world.router.first_token(decision, 50.0)
    learning = world.router.learning
    assert learning.speed_models.speed(WorkerId("a")).token_s > 0.001
    learning.drop(WorkerId("a"))
    assert learning.speed_models.speed(WorkerId("a")) == learning.speed_models.typical


def test_a_request_queued_at_the_engine_does_not_make_its_worker_look_slow() -> None:
    world, name = RouterWorld(worker("a", M)), WorkerId("a")
    learning = world.router.learning
    member = world.fleet.get(name)
    assert member is not None
    for number in range(40):
        world.now += 1.0
        decision = world.decide(range(number, number + 100))
        world.router.first_token(decision, 0.03)
        world.router.finish(decision, Usage(100, 101), answer_s=1.0)
    before = learning.speed_models.speed(name)
    member.speed = replace_pace(before, max_running=1.0)
    running, waiting = world.decide(range(100)), world.decide(range(200))
    world.router.first_token(running, 0.03)
    world.router.first_token(waiting, 30.0)
    assert learning.speed_models.speed(name).ttft_s(100, 1) == pytest.approx(before.ttft_s(100, 1), rel=0.1)


def test_concurrent_answers_teach_the_cost_of_each() -> None:
    """Counted at the begin and the end of each answer: more come meanwhile."""
    world, name = RouterWorld(worker("a", M)), WorkerId("a")
    for number in range(60):
        world.now += 1.0
        running = [world.decide(range(number, number + 32)) for _ in range(number % 7)]
        decision = world.decide(range(number, number + 32))
        for each in (*running, decision):
            world.router.first_token(each)
        more = [world.decide(range(number, number + 32)) for _ in range(6)]
        for each in more:
            world.router.first_token(each)
        world.decide(range(number, number + 32))  # without a first token it slows none down
        beside = len(running) + len(more) / 2
        world.router.finish(decision, Usage(32, 101), answer_s=100 * (0.01 + beside * 0.002))
        for each in (*running, *more):
            world.router.finish(each)
    speed = world.router.learning.speed_models.speed(name)
    assert speed.step_s + 5 * speed.step_seq_s == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize("first_s", [0.05, 0.3, 1.0, 5.0, 60.0])
@pytest.mark.parametrize("interval_s", [0.05, 0.2, 1.0, 6.0])
@pytest.mark.parametrize("num_before", [0, 20])
def test_one_slow_answer_does_not_keep_requests_from_its_worker(
    first_s: float, interval_s: float, num_before: int
) -> None:
    """Two equal engines with a TTFT of 50 ms, except for one request: a cold start, or a stall."""
    got = two_engines(first_s, interval_s, num_before)
    assert min(got[WorkerId("a")], got[WorkerId("b")]) >= 25, got


def two_engines(first_s: float, interval_s: float, num_before: int) -> Counter[WorkerId]:
    """Count the last 100 requests by worker; those while the slow one waits have nothing to choose."""
    world, rng, order = RouterWorld(worker("a", M), worker("b", M)), random.Random(1), count()
    world.router.policy = ExpectedTtft()
    num_waiting = int(first_s / interval_s) + 1
    events: list[tuple[float, int, str, Any]] = []
    for number in range(num_before + num_waiting + 100):
        heappush(events, (number * interval_s, next(order), "request", number))
    got: Counter[WorkerId] = Counter()
    while events:
        world.now, _, what, value = heappop(events)
        if what == "request":
            decision = world.decide([rng.randrange(9000) for _ in range(100)])
            got[decision.worker.id] += value >= num_before + num_waiting
            ttft_s = first_s if value == num_before else 0.05 * rng.gauss(1, 0.1)
            heappush(events, (world.now + ttft_s, next(order), "token", (decision, ttft_s)))
        elif what == "token":
            world.router.first_token(*value)
            heappush(events, (world.now + 0.2, next(order), "end", value[0]))
        else:
            world.router.finish(value, Usage(100, 21), 0.2)
    return got
