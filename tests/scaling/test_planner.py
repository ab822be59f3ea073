"""Rounds of advice over a fleet, its ledger, metrics and index."""

import asyncio
import random
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.blocks import tokens_of
from gateway.core.event_stream import StreamState
from gateway.core.kv_events import BlocksStored
from gateway.core.worker import ReportedLoad, Role, WorkerId
from gateway.observability.metrics import Histogram
from gateway.runtime.tasks import Tasks
from gateway.scaling import planner as module
from gateway.scaling.groups import MAX_GROUPS
from gateway.scaling.planner import ACTIVE_S, ROUND_S, keep_advised, split_at
from tests.support.patience import patience
from tests.support.worlds.planner import PlannerWorld


@pytest.fixture
def world() -> PlannerWorld:
    return PlannerWorld()


def test_demand_is_what_the_workers_of_a_group_got(world: PlannerWorld) -> None:
    one, two = world.join("a:1"), world.join("b:1")
    other = world.join("c:1", model="phi")
    world.round()
    for _ in range(12):
        world.send(one, 10)
        world.send(two, 5)
        world.send(other, 1)
        world.round()
    found = world.advice()
    assert found.requests_per_s == pytest.approx(3.0)
    assert found.mix.prompt_tokens == pytest.approx(1000.0) and found.num_up == 2
    assert world.advice(model="phi").requests_per_s == pytest.approx(0.2)
    assert found.attainment == 1.0 and found.is_active and found.num_desired >= 2


def test_step_of_load_is_answered_within_three_rounds(world: PlannerWorld) -> None:
    one = world.join("a:1")
    for _ in range(90):
        world.send(one, 10)
        world.round()
    before = world.advice()
    for _ in range(3):
        world.send(one, 100)
        world.round()
    after = world.advice()
    assert after.requests_per_s > 6 * before.requests_per_s
    assert (before.num_desired, after.num_desired) == (1, 4)


def test_bookings_count_before_they_are_computed(world: PlannerWorld) -> None:
    one = world.join("a:1")
    world.round()
    world.metrics.worker(one).num_requests += 1
    world.ledger.book(one, 6000, 6000)
    world.round()
    assert world.advice().mix.prompt_tokens == 6000 and world.advice().backlog_tokens == 6000


def test_prefill_workers_compute_the_prompts_of_the_decode_workers_requests(world: PlannerWorld) -> None:
    prefill, decode = world.join("p:1", Role.PREFILL), world.join("d:1", Role.DECODE)
    world.round()
    for _ in range(12):
        world.send(decode, 10, computed=50)
        world.speeds.computed(prefill, 10 * 4000)
        world.round()
    first, second = world.advice(Role.PREFILL), world.advice(Role.DECODE)
    assert first.mix[:2] == pytest.approx((4000.0, 0.0)) and first.requests_per_s == pytest.approx(2.0)
    assert second.mix.prompt_tokens == pytest.approx(50.0) and second.mix.output_tokens > 0.0


def test_fleet_of_zero_is_wanted_as_soon_as_a_request_comes(world: PlannerWorld) -> None:
    heard: list[bool] = []
    stop = world.planner.listen(
        "llama", Role.BOTH, lambda: heard.append(world.planner.is_active("llama", Role.BOTH))
    )
    assert not world.planner.is_active("llama", Role.BOTH)
    world.metrics.on_unserved = world.planner.unserved
    world.metrics.failed("no_worker", "llama")
    world.metrics.failed("model_not_found", "another")
    world.metrics.failed("invalid_request", "llama")
    assert heard == [True]
    world.round()
    found = world.advice()
    assert found.num_desired == 1 and found.num_up == 0 and found.ttft_s is None
    stop()
    world.now += ACTIVE_S + 1
    world.round()
    assert heard == [True, True] and not world.planner.is_active("llama", Role.BOTH)


def test_request_that_waits_for_a_first_worker_makes_all_roles_active_at_once(world: PlannerWorld) -> None:
    heard: list[Role] = []
    for role in (Role.PREFILL, Role.DECODE):
        world.planner.listen("llama", role, partial(heard.append, role))
    assert world.planner.expects("llama") and not world.planner.expects("another")
    world.planner.waiting("llama")
    world.planner.waiting("another")
    assert heard == [Role.PREFILL, Role.DECODE]
    assert world.planner.is_active("llama", Role.BOTH), "asked for later, while a request waits"
    world.queued = {"llama": (3, 900)}
    for _ in range(20):  # longer than a group stays active without a request
        world.round()
        for role in heard[:2]:
            assert world.planner.is_active("llama", role) and world.advice(role).num_desired == 1
    assert world.advice(Role.DECODE).attainment is None, "those that wait have not missed it yet"


def test_prefill_and_decode_go_to_zero_in_the_same_round(world: PlannerWorld) -> None:
    world.join("p:1", Role.PREFILL)
    decode = world.join("d:1", Role.DECODE)
    world.round()
    for _ in range(12):
        world.send(decode, 10, computed=50)
        world.round()
    seen = []
    for _ in range(300):
        world.round()
        roles = (world.advice(Role.PREFILL), world.advice(Role.DECODE))
        seen.append(tuple((each.is_active, each.num_desired > 0) for each in roles))
    assert seen[0] == ((True, True), (True, True)) and seen[-1] == ((False, False), (False, False))
    assert all(first[0] == second[0] for first, second in seen), "KEDA removes the last worker by activity"


def test_prefill_comes_back_from_zero_by_the_prompts_that_decode_workers_compute(world: PlannerWorld) -> None:
    world.planner.advice("llama", Role.PREFILL)
    decode = world.join("d:1", Role.DECODE)
    world.round()
    for _ in range(12):
        world.send(decode, 10, computed=4000)
        world.round()
    found = world.advice(Role.PREFILL)
    assert found.mix.prompt_tokens == pytest.approx(4000.0)
    assert found.is_active and found.num_desired >= 1


def test_configured_model_is_expected_and_wanted_without_an_autoscaler_that_asks(world: PlannerWorld) -> None:
    world.planner.unserved("llama")
    assert world.planner.advices() == []
    world.planner.configure([("llama", Role.PREFILL), ("llama", Role.DECODE)])
    assert world.planner.expects("gpt"), "an alias of it"
    world.planner.unserved("llama")
    world.round()
    found = [(each.role, each.num_desired) for each in world.planner.advices()]
    assert found == [(Role.DECODE, 1), (Role.PREFILL, 1)]
    world.planner.configure([])
    assert not world.planner.expects("llama")


def test_next_worker_is_expected_by_the_slower_role_and_the_time_that_has_passed(world: PlannerWorld) -> None:
    assert world.planner.until_worker_s("llama") is None
    for role in (Role.PREFILL, Role.DECODE):
        world.planner.advice("llama", role)
    world.planner.unserved("llama")
    world.round()
    world.round(4)
    world.join("p:1", Role.PREFILL)
    world.round()
    world.round(2)
    world.join("d:1", Role.DECODE)
    world.round()
    assert world.planner.until_worker_s("llama") == pytest.approx(8 * ROUND_S)
    assert world.planner.until_worker_s("another") is None


def test_attainment_is_known_without_a_worker(world: PlannerWorld) -> None:
    world.planner.advice("gpt", Role.BOTH)
    one = world.join("a:1")
    world.round()
    world.send(one, 3)
    world.round()
    world.fleet.drop(one)
    world.planner.unserved("gpt")  # an alias of the model
    world.round()
    assert world.advice().attainment == 0.75


def test_request_in_a_queue_or_in_flight_keeps_a_group_active(world: PlannerWorld) -> None:
    one = world.join("a:1")
    world.round()
    world.queued = {"llama": (2, 900), "unknown": (5, 5)}
    world.round()
    found = world.advice()
    assert (found.num_queued, found.backlog_tokens, found.num_desired) == (2, 900, 1)
    world.queued = {}
    world.ledger.book(one, 10, 10)
    world.round(100)
    assert world.planner.is_active("llama", Role.BOTH)


def test_blocks_that_only_one_worker_holds_are_what_it_costs(world: PlannerWorld) -> None:
    one, two = world.join("a:1"), world.join("b:1")
    for worker in (one, two):
        member = world.fleet.get(worker)
        assert member is not None
        member.stream = StreamState.EXACT
    for worker, num in ((one, 3), (two, 8)):
        event = BlocksStored(list(range(num)), None, tokens_of(list(range(16 * num))), 16)
        world.index.apply(worker, event)
    assert not world.planner.count_own_blocks()
    world.round()
    costs = [(each.worker, each.unique_cached_tokens) for each in world.advice().removals]
    assert costs == [(one, 0), (two, 5 * 16)]


def test_prefill_and_decode_workers_have_costs_of_their_own(world: PlannerWorld) -> None:
    """A prompt that was handed over lies at both, and neither costs it; what lies at one alone does."""
    roles = {"p:1": Role.PREFILL, "p:2": Role.PREFILL, "d:1": Role.DECODE, "d:2": Role.DECODE}
    held = {"p:1": 4, "p:2": 1, "d:1": 1, "d:2": 9}
    for name, role in roles.items():
        worker = world.join(name, role)
        member = world.fleet.get(worker)
        assert member is not None
        member.stream = StreamState.EXACT
        event = BlocksStored(list(range(held[name])), None, tokens_of(list(range(16 * held[name]))), 16)
        world.index.apply(worker, event)
    other = BlocksStored([99], None, tokens_of([7] * 16), 16)
    world.index.apply(WorkerId("p:1"), other)
    assert not world.planner.count_own_blocks()
    world.round()
    prefill, decode = world.advice(Role.PREFILL), world.advice(Role.DECODE)
    assert [(each.worker, each.unique_cached_tokens) for each in prefill.removals] == [
        ("p:2", 0),
        ("p:1", 16),
    ]
    assert [(each.worker, each.unique_cached_tokens) for each in decode.removals] == [("d:1", 0), ("d:2", 80)]
    assert (prefill.remove, decode.remove) == ("p:2", "d:1")


def test_cache_that_answers_fill_limits_what_one_worker_serves(world: PlannerWorld) -> None:
    one = world.join("a:1")
    member = world.fleet.get(one)
    assert member is not None
    found = []
    for usage in (0.0, 0.5):
        member.reported = ReportedLoad(num_running=4, kv_usage=usage)
        world.send(one, 20)
        world.round(2)
        found.append(world.advice().worker_requests_per_s)
    assert found[1] < 0.5 * found[0]


def test_split_follows_from_both_roles_traffic_and_is_kept(world: PlannerWorld) -> None:
    prefills = [world.join(f"p:{number}", Role.PREFILL) for number in range(2)]
    decodes = [world.join(f"d:{number}", Role.DECODE) for number in range(6)]
    world.round()
    assert not world.planner.splits()
    for _ in range(60):
        for decode in decodes:  # compute the most themselves, as with too few prefill workers
            world.send(decode, 10, computed=900)
        for prefill in prefills:
            world.speeds.computed(prefill, 60 * 50)
        world.round()
    (split,) = world.planner.splits()
    assert split.model == "llama" and split.workers is not None
    assert split.workers.prefill > 2 and split.requests_per_s > split.up_requests_per_s
    for prefill in prefills:
        world.fleet.drop(prefill)
    world.round()
    assert world.planner.splits()[0].share == pytest.approx(split.share, abs=0.02)


def test_number_of_groups_is_bounded(world: PlannerWorld) -> None:
    for number in range(MAX_GROUPS + 10):
        assert world.planner.advice(f"m{number}", Role.BOTH) is None
    world.round()
    assert len(world.planner.advices()) == MAX_GROUPS
    assert not world.planner.is_active(f"m{MAX_GROUPS + 5}", Role.BOTH)
    world.planner.listen(f"m{MAX_GROUPS + 5}", Role.BOTH, lambda: None)()


@pytest.mark.parametrize(("is_alone", "num"), [(True, 3), (False, 1)])
def test_only_a_gateway_that_is_alone_keeps_the_fleet_at_its_start(is_alone: bool, num: int) -> None:
    world = PlannerWorld(is_alone=is_alone)
    one, *_ = [world.join(f"a:{number}") for number in range(3)]
    world.round()
    world.send(one, 5)
    world.round()
    assert world.advice().num_desired == num


def test_new_worker_teaches_the_cold_start(world: PlannerWorld) -> None:
    one = world.join("a:1")
    world.round(61)
    for _ in range(12):
        world.send(one, 100)
        world.round()
    assert world.advice().cold_start_s is None
    world.join("b:1")
    world.round(2)
    assert world.advice().cold_start_s == pytest.approx(12 * ROUND_S, abs=2 * ROUND_S)


def test_mean_request_has_the_spread_of_prompts(world: PlannerWorld) -> None:
    one = world.join("a:1")
    world.round()
    for _ in range(6):
        world.send(one, 5, computed=500)
        world.send(one, 5, computed=1500)
        world.round()
    assert world.advice().mix.spread == pytest.approx(0.25)


def test_late_fleet_that_has_not_grown_asks_for_more_than_it_has(world: PlannerWorld) -> None:
    one = world.join("a:1")
    member = world.fleet.get(one)
    assert member is not None
    member.reported = ReportedLoad(num_running=8, num_waiting=8)
    needs = []
    for _ in range(30):
        world.round()
        world.send(one, 5, computed=10, ttft_s=9.0)
        needs.append(world.advice().needed)
    assert max(needs[1:10]) < 1.0 and needs[-1] == pytest.approx(1.25)


@pytest.mark.parametrize(
    ("objective_s", "in_time"), [(0.1, 2.0), (0.15, 2.5), (0.2, 3.0), (1000.0, 3.0), (0.05, 1.0)]
)
def test_objective_within_a_bucket_takes_its_share(objective_s: float, in_time: float) -> None:
    ttft_s = Histogram((0.05, 0.1, 0.2))
    for value in (0.01, 0.07, 0.18, 5.0):
        ttft_s.observe(value)
    assert split_at(ttft_s, objective_s) == pytest.approx((in_time, 4 - in_time))


async def test_rounds_go_on_after_a_failed_one_and_begin_after_the_first_look(
    world: PlannerWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "ROUND_S", 0.0)
    world.join("a:1")
    looked, failing = asyncio.Event(), iter([True])
    round_once = world.planner.round

    def fail_first() -> None:
        if next(failing, False):
            raise RuntimeError("a bug")
        round_once()

    async def look() -> None:
        await looked.wait()

    monkeypatch.setattr(world.planner, "round", fail_first)
    tasks = Tasks()
    tasks.start("advise", keep_advised(world.planner, look))
    for _ in range(5):
        await asyncio.sleep(0)
    assert caplog.messages == [] and not world.planner.advices()
    looked.set()
    async with asyncio.timeout(patience(20)):
        while not world.planner.advices():  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert caplog.messages == ["advice for autoscalers failed; they keep the last one until the next round"]
    await tasks.stop()


def test_group_that_is_asked_for_during_a_round_is_advised_in_the_next(world: PlannerWorld) -> None:
    decode = world.join("d:1", Role.DECODE)
    world.send(decode, 20)
    name = "llama"

    def ask() -> None:
        world.planner.is_active(name, Role.PREFILL)

    world.planner.listen(name, Role.DECODE, ask)
    world.round()
    world.send(decode, 20)
    world.round()
    assert world.planner.advice(name, Role.PREFILL) is not None


@given(st.integers(0, 1000), st.floats(10.0, 30.0), st.floats(3.0, 8.0))
@settings(max_examples=15, deadline=None)
def test_step_of_random_requests_is_advised_within_three_rounds(
    seed: int, per_round: float, times: float
) -> None:
    """The level then serves half of the new demand at least; the rest may be chance."""
    world, rng = PlannerWorld(), random.Random(seed)
    one = world.join("a:1")
    for _ in range(70):
        world.send(one, _poisson(rng, per_round), computed=20_000)
        world.round()
    before = world.advice()
    for _ in range(3):
        world.send(one, _poisson(rng, per_round * times), computed=20_000)
        world.round()
    after = world.advice()
    assert after.level >= before.level
    assert after.level * after.worker_requests_per_s >= per_round * times / ROUND_S / 2


def _poisson(rng: random.Random, mean: float) -> int:
    at, num = rng.expovariate(1.0), 0
    while at < mean:
        at, num = at + rng.expovariate(1.0), num + 1
    return num
