"""Queues: waiting requests, their release, and the other ways in which they end."""

import pytest

from gateway.core.errors import TooManyRequests
from gateway.core.worker import ReportedLoad, WorkerId
from gateway.tenancy.admission.metrics import describe_admission
from gateway.tenancy.admission.model_queue import work_of
from gateway.tenancy.admission.queues import LOOK_S
from gateway.tenancy.admission.saturation import Saturation
from tests.support.fakes import worker
from tests.support.worlds.gate import PACE, Asked, GateWorld

ONE_EACH = Saturation(max_in_flight=1)


def test_requests_are_sent_at_once_while_a_worker_has_room() -> None:
    world = GateWorld(ONE_EACH)
    first, second = world.ask(), world.ask()
    assert world.routed == [first, second]
    assert (world.in_flight("a:1"), world.in_flight("b:1")) == (1, 1)
    assert world.num_waiting() == 0 and world.loop.timers == []


def test_requests_wait_while_no_worker_has_room() -> None:
    world = GateWorld(ONE_EACH)
    first, _, third, fourth = (world.ask() for _ in range(4))
    assert world.num_waiting() == 2 and third.events == []
    world.loop.advance(2.0)
    world.end(first)
    assert third.events == ["routed"] and fourth.events == []
    assert third.request.queued_s == pytest.approx(2.0)
    world.end(third)
    assert fourth.events == ["routed"]
    known = world.queues.models["m"]
    assert known.ends == {"served": 2} and known.wait_s.sum == pytest.approx(4.0)


def test_new_requests_do_not_pass_waiting_ones() -> None:
    world = GateWorld(ONE_EACH, "a:1")
    first, second = world.ask(), world.ask()
    assert first.booking
    world.ledger.release(first.booking)  # before a notification about it
    third = world.ask()
    assert (second.events, third.events) == ([], [])
    world.loop.advance(LOOK_S)
    assert (second.events, third.events) == (["routed"], [])


def test_a_first_token_frees_a_worker_saturated_by_work_ahead() -> None:
    world = GateWorld(Saturation(above_ttft_s=1.0), "a:1")
    first, second = world.ask(num_tokens=1500), world.ask(num_tokens=700)
    assert second.events == []
    world.first_token(first)
    assert second.events == ["routed"]
    third = world.ask(num_tokens=700)
    assert third.events == ["routed"]  # .7 s of work ahead is no saturation
    assert world.ask().events == []


def test_a_prompt_of_any_length_goes_to_an_idle_worker() -> None:
    world = GateWorld(Saturation(above_ttft_s=0.001), "a:1")
    assert world.ask(num_tokens=10**6).events == ["routed"]


def test_priority_comes_first_then_fairness_of_tenants() -> None:
    world = GateWorld(ONE_EACH, "a:1")
    running = world.ask()
    many = [world.ask("many") for _ in range(5)]
    few = [world.ask("few") for _ in range(2)]
    urgent = world.ask("urgent", priority=-1)
    for _ in range(5):
        world.end(running)
        running = world.routed[-1]
    assert world.routed[1:] == [urgent, many[0], few[0], many[1], few[1]]


def test_full_workers_are_excluded_while_another_has_room() -> None:
    world = GateWorld(ONE_EACH, "a:1", "b:1", "c:1")
    eligible = world.fleet.eligible("m")
    assert world.queues.spare(eligible) is eligible
    world.ledger.book(WorkerId("b:1"), 1, 1)
    assert [each.member.worker.id for each in world.queues.spare(eligible)] == ["a:1", "c:1"]
    world.ledger.book(WorkerId("a:1"), 1, 1)
    world.ledger.book(WorkerId("c:1"), 1, 1)
    assert world.queues.spare(eligible) == eligible


def test_a_worker_that_joins_takes_waiting_requests() -> None:
    world = GateWorld(ONE_EACH, "a:1")
    world.ask()
    second = world.ask()
    world.fleet.add(worker("new:1"))
    world.loop.advance(LOOK_S)
    assert second.events == ["routed"] and world.in_flight("new:1") == 1


def test_a_worker_with_a_full_cache_is_checked_again() -> None:
    world = GateWorld(Saturation(above_ttft_s=10.0), "a:1")
    member = world.fleet.get(WorkerId("a:1"))
    assert member is not None
    world.ask()
    member.reported = ReportedLoad(5, 3, 1.0)
    second = world.ask()
    world.loop.advance(1.0)
    assert second.events == []
    member.reported = ReportedLoad(5, 0, 0.7)
    world.loop.advance(LOOK_S)
    assert second.events == ["routed"]


def test_without_workers_each_decision_reports_it() -> None:
    world = GateWorld(ONE_EACH, "a:1")
    world.ask()
    waiting = [world.ask() for _ in range(3)]
    member = world.fleet.get(WorkerId("a:1"))
    assert member is not None
    member.is_up = False
    world.loop.advance(LOOK_S)
    assert [asked.events for asked in waiting] == [["routed", "503 no_worker"]] * 3


def test_a_client_that_disconnects_is_removed_at_once() -> None:
    world = GateWorld(ONE_EACH, "a:1")
    first, gone, third = (world.ask() for _ in range(3))
    world.end(gone)
    assert world.num_waiting() == 1
    world.end(gone)  # a second time
    world.end(first)
    assert third.events == ["routed"] and gone.events == []
    world.end(third)
    assert world.is_clean() and world.queues.models["m"].ends == {"client_disconnected": 1, "served": 1}
    world.loop.advance(1.0)
    assert world.loop.timers == []  # nothing waits: no timer runs


def test_the_longest_wait_ends_with_429() -> None:
    world = GateWorld(ONE_EACH, "a:1", timeout_s=5.0)
    world.ask()
    asked = world.ask()
    world.loop.advance(4.9)
    assert asked.events == []
    world.loop.advance(0.2)
    assert asked.events == ["429 queue_timeout"]
    assert asked.error and "queue timeout after 5" in asked.error.message
    assert asked.error.retry_after_s and asked.error.retry_after_s >= 1


def test_a_request_that_cannot_meet_its_slo_is_rejected_at_once() -> None:
    world = GateWorld(Saturation(above_ttft_s=1.0), "a:1")
    world.ask(num_tokens=3000)
    asked = world.ask(slo_ms=2000)
    assert asked.events == ["429 slo_unreachable"] and asked.error
    assert "of about 3 s exceeds the SLO of 2 s" in asked.error.message
    assert asked.error.retry_after_s == 1
    assert world.queues.models["m"].ends == {"slo": 1}
    patient = world.ask(slo_ms=8000)
    assert patient.events == [] and world.num_waiting() == 1


def test_requests_past_their_deadline_are_rejected() -> None:
    world = GateWorld(ONE_EACH, "a:1")
    world.ask()
    asked = world.ask(slo_ms=2000)
    world.loop.advance(1.9)
    assert asked.events == []
    world.loop.advance(0.2)
    assert asked.events == ["429 slo_unreachable"] and asked.error
    assert "past the TTFT SLO of 2 s" in asked.error.message


def test_a_full_queue_rejects_before_any_work() -> None:
    world = GateWorld(ONE_EACH, "a:1", max_queued=2)
    for _ in range(3):
        world.ask("many")
    with pytest.raises(TooManyRequests, match="the queue is full") as caught:
        world.ask("many")
    assert caught.value.code == "queue_full" and caught.value.retry_after_s
    assert world.queues.models["m"].ends == {"full": 1}


def test_a_displaced_request_is_rejected() -> None:
    world = GateWorld(ONE_EACH, "a:1", max_queued=2)
    _, first, second = (world.ask("many") for _ in range(3))
    few = world.ask("few")
    assert second.events == ["429 queue_full"] and (first.events, few.events) == ([], [])
    assert world.num_waiting() == 2


def test_retry_after_is_the_time_in_which_the_queue_drains() -> None:
    world = GateWorld(ONE_EACH, "a:1", max_queued=20)
    running: Asked = world.ask()
    waiting = [world.ask() for _ in range(20)]
    for _ in range(8):
        world.loop.advance(2.0)  # a request in two seconds
        world.end(running)
        running = world.routed[-1]
        waiting.append(world.ask())
    with pytest.raises(TooManyRequests) as caught:
        world.ask()
    assert caught.value.retry_after_s == pytest.approx(40, rel=0.25)  # 20 requests


@pytest.mark.parametrize("after_s", [0.0, 0.4, 2.0, 3.9])
def test_the_estimate_of_a_cold_queue_is_about_its_wait(after_s: float) -> None:
    """Answers take 4 s, and two run at once: a request leaves each 2 s, and none has left yet."""
    world = GateWorld(Saturation(max_in_flight=2), "a:1", max_queued=20)
    for _ in range(22):
        world.ask()
    world.loop.advance(after_s)
    estimate_s = world.queues.expected_wait_s("m")
    assert 40 / 2 < estimate_s < 40 * 2
    with pytest.raises(TooManyRequests) as caught:
        world.ask()
    assert caught.value.retry_after_ms is not None
    assert caught.value.retry_after_ms / 1000 == pytest.approx(estimate_s, abs=0.002)
    assert f"retry in about {estimate_s:.3g} s" in caught.value.message
    (queue,) = describe_admission(world.gate)["queues"]
    assert queue["predicted_wait_s"] == pytest.approx(estimate_s, abs=0.002), "one estimator"


def test_a_worker_that_joins_shortens_the_estimate_at_once() -> None:
    world = GateWorld(Saturation(max_in_flight=2), "a:1", max_queued=30)
    for _ in range(22):
        world.ask()
    before_s = world.queues.expected_wait_s("m")
    for name in ("b:1", "c:1"):
        member = world.fleet.add(worker(name))
        member.speed = PACE
        for _ in range(2):
            world.ledger.book(WorkerId(name), 100, 100)
    assert world.queues.expected_wait_s("m") == pytest.approx(before_s / 3)


def test_without_a_worker_the_estimate_is_a_number() -> None:
    world = GateWorld(ONE_EACH, "a:1")
    for _ in range(3):
        world.ask()
    member = world.fleet.get(WorkerId("a:1"))
    assert member is not None
    member.is_up = False
    assert 0 < world.queues.expected_wait_s("m") < 1e5
    assert world.queues.expected_wait_s("unknown") == 0.0


def test_models_that_share_workers_alternate() -> None:
    from gateway.core.worker import ServedModel
    from tests.support.fakes import worker

    world = GateWorld(ONE_EACH, "x:1")
    world.fleet.drop(WorkerId("x:1"))
    world.fleet.add(worker("a:1", ServedModel("m", "root"), ServedModel("lora", "root", "lora")))
    running = world.ask()
    for model in ("m", "m", "m", "lora", "lora"):
        world.ask(model=model)
    for _ in range(4):
        world.end(running)
        running = world.routed[-1]
    assert [asked.request.model for asked in world.routed[1:]] == ["m", "lora", "m", "lora"]


def test_a_stop_sends_requests_with_room_and_rejects_the_rest() -> None:
    world = GateWorld(ONE_EACH, "a:1")
    first, second, third = (world.ask() for _ in range(3))
    world.gate.stop(10.0)
    world.loop.advance(5.0)
    world.end(first)
    assert second.events == ["routed"] and third.events == []
    world.loop.advance(4.1)
    assert third.events == ["503 no_worker"] and third.error and third.error.retry_after_s == 1
    assert world.num_waiting() == 0


def test_a_stop_without_time_rejects_all_at_once() -> None:
    world = GateWorld(ONE_EACH, "a:1")
    world.ask()
    waiting = [world.ask() for _ in range(3)]
    world.gate.stop(0.0)
    assert [asked.events for asked in waiting] == [["503 no_worker"]] * 3


def test_with_deferred_decisions_one_request_is_released_at_a_time() -> None:
    world = GateWorld(ONE_EACH)
    first, second = world.ask(), world.ask()
    third, fourth, fifth = world.ask(), world.ask(), world.ask()
    world.is_deferred = True
    world.end(first)
    world.end(second)
    assert third.events == ["routed"] and fourth.events == []  # the third is not booked yet
    world.queues.decided()
    world.loop.advance(0.0)
    assert fourth.events == ["routed"] and fifth.events == []
    world.loop.advance(1.0)  # a decision that never comes blocks no other
    assert fifth.events == ["routed"]


def test_a_bug_in_one_request_does_not_affect_the_others(caplog: pytest.LogCaptureFixture) -> None:
    world = GateWorld(ONE_EACH, "a:1")
    first, broken, third = (world.ask() for _ in range(3))
    broken.route_or_fail = lambda prompt: 1 / 0  # type: ignore[method-assign,assignment]
    world.end(first)
    assert broken.events == ["500 internal_error"] and third.events == ["routed"]
    assert "raised; its client gets 500" in caplog.text


def test_work_is_counted_in_tokens_or_guessed_from_bytes() -> None:
    from gateway.core.decision import Prompt

    world = GateWorld(ONE_EACH)
    request = world.ask(num_tokens=400).request
    assert work_of(request, Prompt(([1] * 7,))) == 7 + 64
    assert work_of(request, Prompt()) == 100 + 64
