"""Models at zero: who waits and for how long, in which order those are sent, and what the rest get."""

import logging

import pytest

from gateway.config.tenant_limits import TenantLimits
from gateway.core.errors import NotSupported, NoWorker, UnknownModel
from gateway.core.fleet import Fleet
from gateway.core.worker import Role, ServedModel, Transfer, Worker, WorkerId
from gateway.tenancy.admission.queues import LOOK_S, MAX_PREPARING
from gateway.tenancy.admission.saturation import Saturation
from gateway.tenancy.admission.zero import RELEASED_PER_WORKER, REQUEST_BYTES, ZeroRule, lacks_workers
from tests.support.worlds.gate import FakeOutlook, GateWorld, zero_config

NO_RULE = Saturation()


def at_zero(**options: object) -> GateWorld:
    return GateWorld(NO_RULE, zero={"zero_wait_s": 60.0, **options})


# which models are at zero ------------------------------------------------------------------------


def test_rule_is_on_with_a_scaler_or_named_models_and_a_wait() -> None:
    fleet, outlook = Fleet(), FakeOutlook()
    assert ZeroRule(fleet, outlook, zero_config()).is_on
    assert not ZeroRule(fleet, outlook, zero_config(zero_wait_s=0)).is_on
    assert not ZeroRule(fleet, outlook, zero_config(models=[])).is_on
    assert ZeroRule(fleet, outlook, zero_config(models=[], port=4000)).is_on
    assert not ZeroRule(fleet, None, zero_config()).is_on


def test_only_expected_models_without_a_worker_are_at_zero() -> None:
    fleet = Fleet()
    rule = ZeroRule(fleet, FakeOutlook(), zero_config())
    assert rule.is_at_zero("m") and not rule.is_at_zero("other")
    fleet.add(Worker(WorkerId("a:1"), "http://a:1", (ServedModel("m", "m"), ServedModel("other", "other"))))
    assert not rule.is_at_zero("m")
    fleet.set_up(WorkerId("a:1"), is_up=False)
    assert rule.is_at_zero("m") and rule.is_at_zero("other"), "its worker may come back"
    assert rule.holds("m", NoWorker("")) and rule.holds("m", UnknownModel(""))
    assert not rule.holds("m", NotSupported(""))


def split_worker(name: str, role: Role, dtype: str, *, is_bound: bool = False) -> Worker:
    served = (ServedModel("m", "m"),)
    transfer = Transfer("nixl", cache_dtype=dtype, is_bound=is_bound)
    return Worker(WorkerId(name), f"http://{name}", served, role=role, transfer=transfer)


def test_split_fleet_that_needs_both_roles_lacks_workers_until_a_pair_is_up() -> None:
    fleet = Fleet()
    assert lacks_workers(fleet, "m")
    fleet.add(split_worker("d:1", Role.DECODE, "bf16", is_bound=True))
    assert lacks_workers(fleet, "m")
    fleet.add(split_worker("p:1", Role.PREFILL, "fp8"))
    assert lacks_workers(fleet, "m"), "these two are no pair"
    fleet.add(split_worker("p:2", Role.PREFILL, "bf16"))
    assert not lacks_workers(fleet, "m")
    fleet.set_up(WorkerId("d:1"), is_up=False)
    assert lacks_workers(fleet, "m")


def test_decode_worker_that_can_answer_alone_is_enough() -> None:
    fleet = Fleet()
    fleet.add(split_worker("p:1", Role.PREFILL, "bf16"))
    assert lacks_workers(fleet, "m")
    fleet.add(split_worker("d:1", Role.DECODE, "bf16"))
    assert not lacks_workers(fleet, "m")


# the wait ----------------------------------------------------------------------------------------


def test_requests_wait_and_are_released_by_priority_and_fairly_when_a_worker_is_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    world = at_zero()
    many = [world.ask("many") for _ in range(3)]
    few, urgent = world.ask("few"), world.ask("urgent", priority=-1)
    assert world.outlook.heard == ["m"] and world.routed == []
    world.loop.advance(30.0)
    assert world.routed == [] and world.num_waiting() == 5
    world.join("a:1")
    world.loop.advance(LOOK_S)
    assert world.routed == [urgent, many[0], few, many[1], many[2]]
    assert all(asked.events == ["prepared", "routed"] for asked in world.routed)
    assert world.queues.models["m"].ends == {"served": 5} and world.queues.models["m"].num_bytes == 0
    texts = [record.getMessage() for record in caplog.records]
    assert texts == [
        "model m: no worker is up; requests wait for the first one, at most 60 s",
        "model m: a worker is up after 30.0 s; the 5 requests that waited are sent",
    ]
    assert world.ask().events == ["routed"], "once it is over, requests are sent at once"


def test_first_worker_gets_some_and_leaves_the_rest_for_the_next() -> None:
    world = at_zero()
    asked = [world.ask() for _ in range(3 * RELEASED_PER_WORKER)]
    world.join("a:1")
    world.loop.advance(LOOK_S)
    assert world.in_flight("a:1") == RELEASED_PER_WORKER
    late = world.ask()
    assert late.events == [], "a later request does not pass those that wait"
    world.end(asked[0])
    assert world.in_flight("a:1") == RELEASED_PER_WORKER
    world.join("b:1")
    world.loop.advance(LOOK_S)
    assert world.in_flight("b:1") == RELEASED_PER_WORKER


def test_prompts_are_made_for_some_at_a_time() -> None:
    world = at_zero()
    asked = [world.ask() for _ in range(MAX_PREPARING + 2)]
    for each in asked:
        each.is_slow = True
    world.join("a:1")
    world.loop.advance(LOOK_S)
    assert [each.events for each in asked] == [["prepared"]] * MAX_PREPARING + [[]] * 2
    world.end(asked[0])
    asked[1].then(None)
    world.loop.advance(LOOK_S)
    assert asked[1].events == ["prepared", "routed"]
    assert [each.events for each in asked[-2:]] == [["prepared"], []], "its worker has room for one"
    world.end(asked[1])
    assert asked[-1].events == ["prepared"] and world.num_waiting() == 0
    for each in asked[2:]:
        each.then(None)
    assert world.queues.models["m"].preparing == set()


def test_prompts_are_made_for_as_many_as_workers_have_room_for() -> None:
    world = GateWorld(Saturation(max_in_flight=2), zero={})
    asked = [world.ask() for _ in range(5)]
    for each in asked:
        each.is_slow = True
    world.join("a:1")
    world.loop.advance(LOOK_S)
    assert [each.events for each in asked] == [["prepared"]] * 2 + [[]] * 3
    asked[0].then(None)
    world.loop.advance(LOOK_S)
    assert asked[2].events == [], "one is in flight, and one is being prepared"
    world.end(asked[0])
    assert [each.events for each in asked[2:]] == [["prepared"], [], []]


def test_request_that_loses_its_worker_while_its_prompt_is_made_waits_again() -> None:
    world = at_zero()
    asked = world.ask()
    asked.is_slow = True
    world.join("a:1")
    world.loop.advance(LOOK_S)
    world.fleet.drop(WorkerId("a:1"))
    assert world.gate.hold(asked, asked.request, NoWorker("its worker is gone"))
    assert world.queues.models["m"].preparing == set() and world.num_waiting() == 1
    world.end(asked)
    assert world.is_clean()


def test_time_over_is_503_with_the_time_until_a_worker_is_expected() -> None:
    world = at_zero(ttft_objective_s=3.0)
    asked = world.ask()
    world.outlook.left_s = 41.2
    world.loop.advance(59.9)
    assert asked.events == []
    world.loop.advance(0.2)
    assert asked.events == ["503 no_worker"] and asked.error and asked.error.retry_after_s == 42
    assert world.is_clean() and world.queues.models["m"].ends == {"no_worker": 1}
    world.outlook.left_s = None
    assert world.queues.zero.full("m").retry_after_s == 3, "nothing was learnt: the objective"


def test_wait_counts_from_the_arrival_however_often_workers_vanish() -> None:
    world = at_zero()
    asked = world.ask()
    asked.is_slow = True
    world.loop.advance(50.0)
    world.join("a:1")
    world.loop.advance(LOOK_S)
    assert asked.events == ["prepared"]
    world.fleet.set_up(WorkerId("a:1"), is_up=False)
    assert world.gate.hold(asked, asked.request, NoWorker("none while its prompt was made"))
    world.loop.advance(9.5)
    assert asked.events == ["prepared"]
    world.loop.advance(0.6)
    assert asked.events == ["prepared", "503 no_worker"]


def test_wait_that_ends_while_workers_are_up_ends_by_being_sent() -> None:
    world = at_zero()
    running = [world.ask() for _ in range(RELEASED_PER_WORKER)]
    last = world.ask()
    world.join("a:1")
    world.loop.advance(LOOK_S)
    assert running[0].events == ["prepared", "routed"] and last.events == []
    world.loop.advance(60.0)
    assert last.events == ["prepared", "routed"], "nothing bounds what workers get"


def test_saturated_queue_keeps_its_bounds_after_a_start() -> None:
    world = GateWorld(Saturation(max_in_flight=1), zero={"zero_wait_s": 60.0}, timeout_s=5.0)
    first, second = world.ask(), world.ask()
    world.join("a:1")
    world.loop.advance(LOOK_S)
    assert (first.events, second.events) == (["prepared", "routed"], [])
    world.loop.advance(61.0)
    assert second.events == ["429 queue_timeout"]


def test_requests_that_wait_for_room_wait_on_when_all_workers_are_gone() -> None:
    world = GateWorld(Saturation(max_in_flight=1), "a:1", zero={"zero_wait_s": 60.0}, timeout_s=50.0)
    first, second = world.ask(), world.ask()
    world.fleet.drop(WorkerId("a:1"))
    world.loop.advance(10.0)
    assert first.events == ["routed"] and second.events == [] and world.outlook.heard == ["m"]
    world.join("b:1")
    world.loop.advance(LOOK_S)
    assert second.events == ["routed"], "its prompt was made before"


# bounds ------------------------------------------------------------------------------------------


def test_number_is_bounded_per_model() -> None:
    world = at_zero(zero_max_requests=2)
    first, second = world.ask("many"), world.ask("many")
    with pytest.raises(NoWorker, match="no more requests may wait"):
        world.ask("many")
    third = world.ask("few")
    assert second.events == ["503 no_worker"], "the newest of the longest queue leaves"
    assert (first.events, third.events) == ([], [])
    assert world.queues.models["m"].ends == {"full": 1, "displaced": 1}


def test_bytes_are_bounded_and_go_to_earlier_priorities_and_lighter_tenants() -> None:
    world = at_zero(zero_max_bytes=1000 + 2 * REQUEST_BYTES)
    heavy = [world.ask("heavy", num_tokens=400), world.ask("heavy", num_tokens=400)]
    assert world.ask("heavy", num_tokens=400).events == ["503 no_worker"]
    light = world.ask("light", num_tokens=300)
    assert heavy[1].events == ["503 no_worker"] and light.events == []
    assert world.ask("light", num_tokens=600).events == ["503 no_worker"], "it would be the heavier one"
    urgent = world.ask("heavy", num_tokens=900, priority=-1)
    assert (urgent.events, heavy[0].events, light.events) == ([], ["503 no_worker"], ["503 no_worker"])
    assert world.queues.models["m"].num_bytes == 900
    assert world.ask(num_tokens=3 * REQUEST_BYTES, priority=-2).events == ["503 no_worker"]


def test_request_that_is_too_large_begins_no_wait() -> None:
    world = at_zero(zero_max_bytes=1000)
    assert world.ask(num_tokens=2000).events == ["503 no_worker"]
    assert not world.queues.is_at_zero("m") and world.loop.timers == []


def test_clients_that_leave_give_their_place_back() -> None:
    world = at_zero()
    first, second = world.ask(), world.ask()
    world.end(first)
    second.is_slow = True
    world.join("a:1")
    world.loop.advance(LOOK_S)
    assert second.events == ["prepared"]
    world.end(second)
    assert world.is_clean() and world.queues.models["m"].preparing == set()


def test_retry_after_a_start_that_takes_longer_than_known_is_as_long_again() -> None:
    world = at_zero(zero_wait_s=40.0)
    asked = world.ask()
    world.loop.advance(40.1)
    assert asked.error and asked.error.retry_after_s == 41
    world = at_zero(zero_wait_s=300.0)
    asked = world.ask()
    world.loop.advance(300.1)
    assert asked.error and asked.error.retry_after_s == 60


def test_time_of_the_refusal_counts_earlier_waits() -> None:
    world = at_zero(zero_wait_s=40.0)
    asked = world.ask()
    asked.is_slow = True
    world.loop.advance(39.0)
    world.join("a:1")
    world.loop.advance(LOOK_S)
    world.fleet.drop(WorkerId("a:1"))
    assert world.gate.hold(asked, asked.request, NoWorker("its worker is gone"))
    world.loop.advance(2.0)
    assert asked.error and "came up within 4" in asked.error.message


def test_wait_for_one_model_leaves_the_routing_of_others() -> None:
    world = at_zero()
    world.ask()
    world.fleet.add(Worker(WorkerId("b:1"), "http://b:1", (ServedModel("other", "other"),)))
    world.fleet.add(Worker(WorkerId("c:1"), "http://c:1", (ServedModel("other", "other"),)))
    for _ in range(RELEASED_PER_WORKER + 1):
        world.ledger.book(WorkerId("b:1"), 1, 1)
    assert len(world.queues.spare(list(world.fleet.eligible("other")))) == 2


def test_bound_of_the_queue_holds_again_once_a_worker_is_up() -> None:
    world = GateWorld(Saturation(max_in_flight=1), zero={"zero_max_requests": 50}, max_queued=5)
    for _ in range(10):
        world.ask()
    world.join("a:1")
    world.loop.advance(LOOK_S)
    assert world.queues.models["m"].queue.max_waiting == 5


def test_slo_is_the_longest_wait() -> None:
    world = at_zero()
    asked = world.ask(slo_ms=2000)
    world.loop.advance(2.1)
    assert asked.events == ["503 no_worker"]


def test_token_limits_count_while_a_request_waits() -> None:
    limits = {"t": TenantLimits(tokens_per_min=100)}
    world = GateWorld(NO_RULE, zero={"zero_wait_s": 5.0}, tenants=limits)
    asked = world.ask("t", num_tokens=200)
    tenant = world.gate.tenants.of("t", 0.0)
    assert tenant.tokens and tenant.tokens.level(world.gate.now()) < 0
    world.loop.advance(5.1)
    assert asked.events == ["503 no_worker"]
    assert tenant.tokens.level(world.gate.now()) > 90, "given back"


def test_stop_and_reload_answer_those_that_wait() -> None:
    world = at_zero()
    asked = world.ask()
    world.gate.stop(4.0)
    world.loop.advance(3.1)
    assert asked.events == ["503 no_worker"] and asked.error and "shutting down" in asked.error.message
    world = at_zero()
    asked = world.ask()
    world.gate.reconfigure(zero_config(zero_wait_s=0))
    world.loop.advance(LOOK_S)
    assert asked.events == ["prepared", "routed", "503 no_worker"], "the decision reports it"


def test_paths_that_never_wait_and_unknown_models_get_the_error() -> None:
    world = at_zero()
    assert world.ask(path="/tokenize").events == ["503 no_worker"]
    assert world.ask(model="other").events == ["503 no_worker"]
    world.join("a:1")
    assert world.ask(model="other").events == ["404 model_not_found"]
    assert world.gate.may_hold("m") is False and world.gate.may_hold("other") is True


def test_preview_and_queue_view_show_the_wait() -> None:
    world = at_zero()
    asked = world.ask(num_tokens=300)
    world.loop.advance(1.0)
    preview = world.gate.preview(asked.request, world.gate.tenants.of("t", 0.0))
    assert preview["result"] == "queued"
    assert world.queues.expected_wait_s("m") == 2.0, "as in Retry-After"
