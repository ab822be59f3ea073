"""Lifecycle of workers, by a clock that the test moves; the router makes the decisions."""

import asyncio
import logging
from typing import cast

import pytest

from gateway.core.engine import EngineMetrics
from gateway.core.outcome import UNLOADED
from gateway.core.worker import Role, WorkerId
from gateway.discovery.lifecycle import keep_leaving
from gateway.discovery.roster import Roster
from tests.support.patience import until
from tests.support.worlds.lifecycle import REQUEST, A, B, LifecycleWorld, warnings, worker_of
from tests.support.worlds.roster import URL, RosterWorld


def metrics(tokens: float, running: int = 1) -> EngineMetrics:
    return EngineMetrics(running, 0, 0.5, step_tokens_total=tokens)


def test_panic_is_logged_once_per_change_and_is_the_reason_of_a_workers_state(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    world = LifecycleWorld()
    world.join(A, B)
    for name in (A, B):
        world.fleet.set_up(name, False, is_late=True)
    for _ in range(2):
        world.lifecycle.note_panic()
    assert caplog.messages == [
        "model m: fewer than 50 % of its workers are healthy; 2 with late probes get requests too"
    ]
    assert set(world.decide(20)) == {A, B}
    why = "gets requests although its probes time out: too few workers of 'm' are healthy"
    assert world.lifecycle.describe(A)["reason"] == why
    world.fleet.set_up(A, True, is_late=True)
    for _ in range(2):
        world.lifecycle.note_panic()
    assert caplog.messages[1:] == [
        "model m: enough workers are healthy again; those with late probes get no requests"
    ]
    assert world.decide(4) == {A: 4}
    assert (
        world.lifecycle.describe(A)["reason"]
        == "up although its probes time out: answers, events or metrics arrive"
    )


@pytest.mark.parametrize(("num_workers", "most"), [(2, 1), (4, 1), (19, 1), (20, 2), (30, 3)])
def test_failed_requests_eject_a_bounded_share_of_a_models_workers(
    num_workers: int, most: int, caplog: pytest.LogCaptureFixture
) -> None:
    world = LifecycleWorld()
    names = [WorkerId(f"w:{number}") for number in range(num_workers)]
    world.join(*names)
    for name in names:
        for _ in range(3):
            world.lifecycle.failed(name, "it answered 500")
    assert [world.state(name) for name in names].count("ejected") == most
    if num_workers == 4:
        why = "not ejected: 1 of 4 workers for 'm' are ejected already (failed requests (3 in a row): "
        assert str(world.lifecycle.describe(names[-1])["reason"]).startswith(why)
        assert len(warnings(caplog)) == 4  # once for each worker
        world.num_answered[names[-1]] += 1
        world.lifecycle.looked(names[-1], None)
        assert world.lifecycle.describe(names[-1])["reason"] is None  # it has answered since


@pytest.mark.parametrize(("answers", "most"), [(0, 3), (1, 1)], ids=["silent", "one request had come"])
def test_workers_that_accept_no_connection_are_ejected_beyond_the_bound(answers: int, most: int) -> None:
    """No request causes that; one that reached the worker may."""
    world = LifecycleWorld()
    names = [WorkerId(f"w:{number}") for number in range(4)]
    world.join(*names)
    for name in names:
        for number in range(3):
            world.lifecycle.failed(name, "connection timed out", number >= answers)
    assert [world.state(name) for name in names].count("ejected") == most


def test_stalled_workers_are_ejected_beyond_the_bound_and_never_the_last() -> None:
    world = LifecycleWorld()
    names = [WorkerId(f"w:{number}") for number in range(4)]
    world.join(*names)
    for now in (0.0, 61.0):
        world.now = now
        for name in names:
            world.lifecycle.looked(name, metrics(1.0))
    assert [world.state(name) for name in names] == ["ejected"] * 3 + ["active"]


def test_workers_found_at_the_start_do_not_warm_up() -> None:
    world = LifecycleWorld()
    world.join(A, B)
    assert (world.state(A), world.router.observers.decided) == ("active", [])


def test_a_worker_that_joins_later_warms_up_under_any_policy() -> None:
    """The policy would give all requests to the idle worker.

    It gets a tenth of its half at first; in the end all.
    """
    world = LifecycleWorld()
    world.join(A)
    world.decide(1000, ends=False)
    world.now = 100.0
    world.join(B)
    described = world.lifecycle.describe(B)
    assert (described["state"], described["share"]) == ("slow_start", 0.1)
    assert world.decide(200, ends=False)[B] == pytest.approx(10, abs=2)
    world.now = 105.0
    assert world.decide(200, ends=False)[B] == pytest.approx(55, abs=3)
    world.now = 110.0
    world.decide()
    assert (world.state(B), world.router.observers.decided) == ("active", [])
    assert world.decide(200, ends=False)[B] == 200


def test_a_preview_uses_no_slow_start_share() -> None:
    world = LifecycleWorld()
    world.join(A)
    world.now = 100.0
    world.join(B)
    for _ in range(100):
        world.router.preview(REQUEST)
    assert world.lifecycle.describe(B)["share"] == 0.1
    assert world.decide(10)[B] == 1


def test_without_a_warm_up_a_worker_is_active_at_once() -> None:
    world = LifecycleWorld(slow_start_s=0.0)
    world.join(A)
    world.now = 100.0
    world.join(B)
    assert (world.state(B), world.router.observers.decided) == ("active", [])


def test_a_probe_ends_a_warm_up_without_requests() -> None:
    world = LifecycleWorld()
    world.now = 100.0
    world.join(A)
    assert world.state(A) == "slow_start"
    world.now = 111.0
    world.lifecycle.looked(A, None)
    assert world.state(A) == "active"


def test_a_worker_with_all_hot_prefixes_is_active_at_once() -> None:
    world = LifecycleWorld()
    world.now = 100.0
    world.join(A)
    world.lifecycle.warmed(A, 0.5)
    assert world.lifecycle.describe(A)["share"] == 0.55
    world.lifecycle.warmed(A, 1.0)
    assert world.state(A) == "active"
    world.lifecycle.warmed(A, 1.0)


def test_a_worker_that_is_held_back_gets_no_request_until_it_is_warmed() -> None:
    world = LifecycleWorld()
    world.join(A)
    world.now = 100.0
    world.join(B)
    assert world.lifecycle.hold(B, 5.0)
    assert not world.lifecycle.hold(A, 5.0), "it is in no slow start"
    assert (world.decide(5, ends=False), world.lifecycle.describe(B)["share"]) == ({A: 5}, 0.0)
    world.lifecycle.warmed(B, 1.0)
    assert world.decide(1) == {B: 1}


def test_observers_of_cold_workers_see_joins_and_restarts_which_begin_a_slow_start() -> None:
    world, seen = LifecycleWorld(), list[WorkerId]()
    world.lifecycle.on_cold.append(lambda workers: seen.extend(worker.id for worker in workers))
    world.join(A)
    assert world.state(A) == "active"
    world.lifecycle.restarted([worker_of(A)])
    assert (world.state(A), seen) == ("slow_start", [A, A])


def test_a_worker_that_leaves_ends_its_warm_up() -> None:
    world = LifecycleWorld()
    world.now = 100.0
    world.join(A)
    world.lifecycle.left(A)
    world.fleet.drop(A)
    world.join(B)
    assert world.decide(3) == {B: 3}


def test_a_prefill_worker_warms_up_by_the_prompts_that_it_could_have_had() -> None:
    world = LifecycleWorld()
    world.join("p:1", role=Role.PREFILL)
    world.join("d:1", role=Role.DECODE)
    world.now = 100.0
    world.join("p:2", role=Role.PREFILL)
    assert world.decide(20) == {WorkerId("d:1"): 20}  # no request was split: the new one could have had none
    assert "credit 1.00" in repr(world.fleet.get(WorkerId("p:2")))


# ejection ----------------------------------------------------------------------------------------


def test_a_worker_that_fails_repeatedly_is_ejected_for_a_while(caplog: pytest.LogCaptureFixture) -> None:
    world = LifecycleWorld()
    world.join(A, B)
    for _ in range(2):
        world.lifecycle.failed(A, "it refused")
    described = world.lifecycle.describe(A)
    assert (described["state"], described["reason"]) == (
        "ejected",
        "failed requests (2 in a row): it refused",
    )
    assert (world.decide(10), world.lifecycle.ejections) == ({B: 10}, {(A, "failures"): 1})
    assert warnings(caplog) == ["worker a:1 ejected for 10 s: failed requests (2 in a row): it refused"]
    world.now = 20.0
    world.lifecycle.looked(A, metrics(1.0))
    assert world.state(A) == "slow_start"
    assert world.elsewhere == []


def test_the_last_worker_of_a_model_is_not_ejected_and_has_a_reason(caplog: pytest.LogCaptureFixture) -> None:
    world = LifecycleWorld()
    world.join(A, B)
    world.lifecycle.drain("http://b:1", [worker_of(B)], "asked for")
    with caplog.at_level(logging.WARNING):
        for _ in range(4):
            world.lifecycle.failed(A, "it refused")
    described = world.lifecycle.describe(A)
    assert described["state"] == "active"
    assert described["reason"].startswith("not ejected: last worker for 'm' (failed requests (4 in a row)")
    assert len(warnings(caplog)) == 1
    assert world.decide(3) == {A: 3}


def test_requests_for_an_unloaded_adapter_do_not_eject_a_worker() -> None:
    world = LifecycleWorld()
    world.join(A, B)
    for _ in range(20):
        world.lifecycle.failed(A, UNLOADED)
    assert world.state(A) == "active"
    for _ in range(20):
        world.lifecycle.failed(A, "it refused")
    assert world.state(A) == "ejected"


def test_a_stalled_engine_is_ejected_and_its_requests_go_elsewhere() -> None:
    world = LifecycleWorld()
    world.join(A, B)
    for world.now in (0.0, 30.0, 61.0):
        world.lifecycle.looked(A, metrics(100.0))
        world.lifecycle.looked(B, metrics(world.now))
    assert (world.state(A), world.state(B), world.elsewhere) == (
        "ejected",
        "active",
        [(A, "no engine step in 61 s, with 1 requests")],
    )
    assert world.lifecycle.describe(A)["reason"] == "no engine step in 61 s, with 1 requests"
    world.now = 63.0
    world.lifecycle.looked(A, metrics(101.0))
    assert world.state(A) == "slow_start"


def test_requests_in_flight_here_count_even_if_the_engine_reports_none() -> None:
    world = LifecycleWorld()
    world.join(A, B)
    world.lifecycle.looked(A, metrics(100.0, running=0))
    world.router.ledger.book(A, 40, 100)
    for world.now in (1.0, 62.0):
        world.lifecycle.looked(A, metrics(100.0, running=0))
    assert world.state(A) == "ejected"


def test_an_unknown_worker_is_not_judged() -> None:
    world = LifecycleWorld()
    world.lifecycle.failed(A, "late")
    world.lifecycle.looked(A, metrics(1.0))
    assert world.lifecycle.ejections == {}


# draining ----------------------------------------------------------------------------------------


def test_an_endpoint_drains_until_the_drain_is_undone() -> None:
    world = LifecycleWorld()
    world.join(A, B)
    assert world.lifecycle.drain("http://a:1", [worker_of(A)], "asked for")
    assert not world.lifecycle.drain("http://a:1", [worker_of(A)], "asked for")
    assert (world.lifecycle.describe(A)["reason"], world.decide(3)) == ("asked for", {B: 3})
    assert world.lifecycle.undo("http://a:1", [worker_of(A)])
    assert not world.lifecycle.undo("http://a:1", [worker_of(A)])
    assert world.decide(20)[A] > 0


def test_a_restarted_worker_goes_on_draining() -> None:
    world = LifecycleWorld()
    world.join(A, B)
    world.lifecycle.drain("http://a:1", [worker_of(A)], "asked for")
    world.lifecycle.left(A)
    world.join(A)
    assert world.state(A) == "draining"


def test_requests_in_flight_and_blocks_not_yet_fetched_are_left_while_draining() -> None:
    world = LifecycleWorld()
    world.join(A, B)
    world.router.decide(REQUEST, exclude=[B])
    world.fetching[A] = 2
    assert world.lifecycle.num_remaining(A) == 3


def test_a_leaving_worker_is_dropped_when_no_request_is_left() -> None:
    world = LifecycleWorld()
    world.join(A)
    decision = world.router.decide(REQUEST)
    world.lifecycle.drain("http://a:1", [worker_of(A)], "its name is gone", is_last=True)
    assert world.lifecycle.to_drop(lambda url: [worker_of(A)]) == []
    world.router.finish(decision)
    assert world.lifecycle.to_drop(lambda url: [worker_of(A)]) == ["http://a:1"]
    world.lifecycle.dropped("http://a:1", [A])
    assert ([(each.url, each.why) for each in world.lifecycle.removed], world.lifecycle.num_removed) == (
        [("http://a:1", "its name is gone")],
        1,
    )


def test_draining_workers_are_listed_for_other_gateways() -> None:
    world = LifecycleWorld()
    world.join(A, B)
    world.lifecycle.drain("http://a:1", [worker_of(A)], "asked for")
    world.lifecycle.drain("http://b:1", [worker_of(B)], "asked for", is_last=True)
    assert world.lifecycle.specs == ["draining=http://a:1", "removing=http://b:1"]


async def test_drains_of_another_gateway_are_resumed() -> None:
    world, fleet = RosterWorld(), LifecycleWorld()
    await world.add()
    fleet.lifecycle.resume([(URL, True), ("http://late:1", False)], world.roster)
    assert fleet.lifecycle.draining == {URL: True, "http://late:1": False}
    await world.roster.stop()


async def test_a_leaving_worker_is_dropped_from_the_roster() -> None:
    world, fleet = RosterWorld(), LifecycleWorld()
    await world.add()
    fleet.lifecycle.drain(URL, (), "asked for", is_last=True)
    keeping = asyncio.get_running_loop().create_task(
        keep_leaving(fleet.lifecycle, cast(Roster, world.roster), 0.001)
    )
    await until(lambda: not list(world.roster))
    keeping.cancel()
    assert world.gone == [URL]
    await world.roster.stop()


def test_a_saturated_worker_gets_no_requests_for_a_while_and_is_never_ejected() -> None:
    world = LifecycleWorld()
    world.join(A, B)
    for _ in range(20):  # far more than the failures that eject
        world.lifecycle.busy(A, 2.0)
    assert world.decide(10) == {B: 10}
    described = world.lifecycle.describe(A)
    assert (described["state"], described["reason"]) == ("active", "saturated: it rejects requests")
    assert (len(world.timers), world.lifecycle.ejections.total()) == (1, 0)
    world.advance(2.0)
    assert world.decide(100)[A] > 20
    assert world.lifecycle.describe(A)["reason"] is None


def test_further_rejections_prolong_the_time_without_requests() -> None:
    world = LifecycleWorld()
    world.join(A, B)
    world.lifecycle.busy(A, 1.0)
    world.advance(0.5)
    world.lifecycle.busy(A, 3.0)
    world.lifecycle.busy(A, 1.0)  # a shorter time does not end the longer one
    world.advance(2.5)
    assert world.decide(10) == {B: 10}
    world.advance(0.5)
    assert world.decide(100)[A] > 20


def test_where_all_workers_are_saturated_requests_go_to_any() -> None:
    world = LifecycleWorld()
    world.join(A, B)
    world.lifecycle.busy(A, 5.0)
    world.lifecycle.busy(B, 5.0)
    assert set(world.decide(100)) == {A, B}


def test_a_worker_that_left_while_it_was_saturated_comes_back_without_it() -> None:
    world = LifecycleWorld()
    world.join(A, B)
    world.lifecycle.busy(A, 5.0)
    world.lifecycle.left(A)
    world.fleet.drop(A)
    world.advance(5.0)
    world.lifecycle.busy(A, 5.0)  # a late answer of the worker that left
    world.join(A)
    assert world.decide(100)[A] > 5
