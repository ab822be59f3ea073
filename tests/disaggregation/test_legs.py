"""Disaggregated requests with workers and clock moved by hand: both legs, every failure, bookings of both
released once.
"""

import re
from typing import Any

import pytest

from gateway.core.worker import WorkerId
from gateway.disaggregation.legs import REFUSAL_S, number_of
from tests.support.worlds.disaggregated import PARAMS, PREFILLED, DisaggregatedWorld, plain, prefilled
from tests.support.worlds.exchanges import END, EVENT, HEAD, PLAIN, chunk

ERROR = b'data: {"error": {"message": "Internal server error", "code": 500}}\n\n'
_ID = re.compile(rb"(x-request-id: [0-9a-f]{24})")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> DisaggregatedWorld:
    return DisaggregatedWorld(monkeypatch, "p:1", "d:1")


def test_prefill_then_decode(world: DisaggregatedWorld) -> None:
    _, answered = world.ask()
    assert (world.load("p:1"), world.load("d:1")) == (1, 1)
    asked = world.asked("p:1")
    assert (asked["max_tokens"], asked["stream"], asked["kv_transfer_params"]["do_remote_decode"]) == (
        1,
        False,
        True,
    )
    name = re.search(rb"x-request-id: ([0-9a-f]{24})\r\n", world.transport("p:1").out)
    assert name, "not the client's"
    assert not world.was_asked("d:1")
    world.loop.advance(0.5)
    prefilled(world)
    assert (world.load("p:1"), world.load("d:1")) == (0, 1)
    assert world.asked("d:1") == {
        "model": "m",
        "prompt": [1, 2, 3],
        "stream": True,
        "kv_transfer_params": PARAMS,
    }
    assert name[0] in world.transport("d:1").out, "both legs of an attempt have one id"
    world.transport("d:1").feed(HEAD, chunk(EVENT), END)
    assert answered.events == [200, EVENT, "end"]
    assert world.is_clean()
    assert world.disaggregation_stats.plans == {("prefill_decode", "always split"): 1}
    assert (
        world.disaggregation_stats.prefill_s.sum,
        sum(world.disaggregation_stats.ttft_s["prefill_decode"].counts),
    ) == (0.5, 1)
    record = world.records.explain(world.records.recent(1)[0])
    assert record and record["disaggregation"]["prefill_worker"] == "p:1"


def test_an_unstreamed_answer_is_passed_on(world: DisaggregatedWorld) -> None:
    _, answered = world.ask(b'{"model":"m","prompt":[1,2,3]}')
    prefilled(world)
    world.transport("d:1").feed(PLAIN)
    assert answered.events == [200, b"{}", "end"]
    assert world.is_clean()


@pytest.mark.parametrize(
    "field",
    [
        '"n":2',
        '"best_of":2',
        '"use_beam_search":true',
        '"echo":true',
        '"prompt_logprobs":1',
        '"prompt":[[1],[2]]',
    ],
)
def test_a_request_of_several_answers_or_prompts_is_not_disaggregated(
    world: DisaggregatedWorld, field: str
) -> None:
    _, answered = world.ask(b'{"model":"m","prompt":[1,2,3],%b}' % field.encode())
    assert not world.was_asked("p:1")
    assert "kv_transfer_params" not in world.asked("d:1")
    world.transport("d:1").feed(PLAIN)
    assert answered.events == [200, b"{}", "end"]
    assert world.is_clean()


# prefill fails ---------------------------------------------------------------------------------


FAILURES: dict[str, Any] = {
    "died": lambda t: t.lose(),
    "error": lambda t: t.feed(plain({"error": {}}, "500 Internal Server Error")),
    "timeout": None,
}


@pytest.mark.parametrize("cause", FAILURES)
def test_a_failed_prefill_leg_is_retried_at_another_prefill_worker(
    monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    world = DisaggregatedWorld(monkeypatch, "p:1", "p:2", "d:1", disaggregation_prefill_timeout_s=5.0)
    _, answered = world.ask()
    first, second = ("p:1", "p:2") if world.was_asked("p:1") else ("p:2", "p:1")
    if FAILURES[cause]:
        FAILURES[cause](world.transport(first))
    else:
        world.loop.advance(5.0)
        assert world.transport(first).end == "aborted"
    assert [worker for worker, _, _ in world.suspected] == [first]
    assert (world.load(first), world.load(second), world.load("d:1")) == (0, 1, 1)
    prefilled(world, second)
    world.transport("d:1").feed(HEAD, chunk(EVENT), END)
    assert answered.events == [200, EVENT, "end"]
    assert world.disaggregation_stats.failures == {cause: 1}
    assert world.is_clean()


def test_without_retry_budget_the_decode_worker_computes_the_prompt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another prefill worker would compute it once more: a dying fleet must not get more work for that."""
    world = DisaggregatedWorld(monkeypatch, "p:1", "p:2", "d:1", retry_share=0.0)
    _, answered = world.ask()
    first, second = ("p:1", "p:2") if world.was_asked("p:1") else ("p:2", "p:1")
    world.transport(first).lose()
    assert not world.was_asked(second) and "kv_transfer_params" not in world.asked("d:1")
    world.transport("d:1").feed(HEAD, chunk(EVENT), END)
    assert answered.events == [200, EVENT, "end"]
    assert world.context.retries.num_denied == 1
    assert world.is_clean()


def test_an_unreached_prefill_worker_costs_no_retry_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    world = DisaggregatedWorld(monkeypatch, "p:1", "p:2", "d:1", retry_share=0.0)
    for name in ("p:1", "p:2"):
        world.pools[name].error = ConnectionRefusedError(111, "Connection refused")
    _, answered = world.ask()
    assert world.disaggregation_stats.failures == {"unreachable": 2}
    world.transport("d:1").feed(HEAD, chunk(EVENT), END)
    assert answered.events == [200, EVENT, "end"]
    assert world.context.retries.num_denied == 0
    assert world.is_clean()


def test_without_another_prefill_worker_the_decode_worker_computes_the_prompt(
    world: DisaggregatedWorld,
) -> None:
    _, answered = world.ask()
    world.transport("p:1").lose()
    assert "kv_transfer_params" not in world.asked("d:1")
    world.transport("d:1").feed(HEAD, chunk(EVENT), END)
    assert answered.events == [200, EVENT, "end"]
    assert world.is_clean()


def test_a_prompt_that_takes_two_prefill_workers_down_goes_no_further(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = DisaggregatedWorld(monkeypatch, "p:1", "p:2", "d:1")
    _, answered = world.ask()
    first = "p:1" if world.was_asked("p:1") else "p:2"
    second = ({"p:1", "p:2"} - {first}).pop()
    for name in (first, second):
        world.transport(name).lose()
    assert answered.events == [502, "worker_failed"]
    assert [error.should_retry for error in answered.errors] == [False]
    assert not world.was_asked("d:1")
    assert world.context.faults.by_key == {"none": 1}
    assert world.is_clean()


def test_an_unreachable_prefill_worker_is_down_at_once(world: DisaggregatedWorld) -> None:
    world.pools["p:1"].error = ConnectionRefusedError(111, "Connection refused")
    _, answered = world.ask()
    assert world.suspected == [("p:1", "cannot connect: Connection refused", True)]
    assert world.disaggregation_stats.failures == {"unreachable": 1}
    world.transport("d:1").feed(HEAD, chunk(EVENT), END)
    assert answered.events == [200, EVENT, "end"]
    assert world.is_clean()


FULL = b'data: {"error": {"message": "The request queue is full.", "code": 503}}\n\n'


@pytest.mark.parametrize("is_full", [False, True])
def test_a_stream_of_a_saturated_decode_worker_is_no_fault_of_the_transfer(
    world: DisaggregatedWorld, is_full: bool
) -> None:
    world.ask()
    prefilled(world)
    world.transport("d:1").feed(HEAD, chunk(FULL if is_full else ERROR))
    assert world.busied == ([("d:1", 1.0)] if is_full else [])
    assert [worker for worker, _, _ in world.suspected] == ([] if is_full else ["p:1"])


@pytest.mark.parametrize(
    ("body", "is_full"),
    [({"error": {"type": "overloaded_error"}}, True), ({"error": {"type": "internal_error"}}, False)],
    ids=["saturated", "failed"],
)
def test_an_error_of_a_saturated_decode_worker_is_no_fault_of_the_transfer(
    world: DisaggregatedWorld, body: dict[str, object], is_full: bool
) -> None:
    world.ask()
    prefilled(world)
    head, _, rest = plain(body, "500 Internal Server Error").partition(b"\r\n\r\n")
    world.transport("d:1").feed(head + b"\r\n\r\n", rest[:9])
    assert not world.suspected, "the error is not whole yet"
    world.transport("d:1").feed(rest[9:])
    assert world.busied == ([("d:1", 1.0)] if is_full else [])
    assert [worker for worker, _, _ in world.suspected] == ([] if is_full else ["p:1"])


@pytest.mark.parametrize(
    "answer",
    [
        plain({**PREFILLED, "kv_transfer_params": None}),
        plain({**PREFILLED, "kv_transfer_params": {**PARAMS, "remote_port": None}}),
        plain({"error": {"message": "too long"}}, "400 Bad Request"),
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n<>",
    ],
    ids=["no parameters", "half of them", "refused", "no JSON"],
)
def test_an_unusable_prefill_answer_blames_no_worker(monkeypatch: pytest.MonkeyPatch, answer: bytes) -> None:
    """The decode worker answers the request itself."""
    world = DisaggregatedWorld(monkeypatch, "p:1", "p:2", "d:1")
    _, answered = world.ask()
    world.transport("p:1" if world.was_asked("p:1") else "p:2").feed(answer)
    assert world.suspected == []
    assert "kv_transfer_params" not in world.asked("d:1")
    world.transport("d:1").feed(plain({"error": {}}, "400 Bad Request"))
    assert answered.events[0] == 400
    assert world.disaggregation_stats.failures == {"rejected": 1}
    assert world.is_clean()


def test_a_prefill_worker_down_by_its_probes_is_waited_for_no_longer(world: DisaggregatedWorld) -> None:
    world.ask()
    world.dispatch.worker_down(WorkerId("p:1"), "it is silent")
    assert world.transport("p:1").end == "aborted"
    assert world.was_asked("d:1")


def test_a_closed_resting_connection_is_no_failure(world: DisaggregatedWorld) -> None:
    world.ask()
    prefilled(world)
    world.transport("d:1").feed(HEAD, chunk(EVENT), END)
    first = world.transport("p:1")
    first.out = b""
    world.ask()
    assert first.out and len(world.pools["p:1"].transports) == 1
    sent = first.out
    first.lose()
    assert len(world.pools["p:1"].transports) == 2
    again = _ID.sub(rb"\1-2", sent)
    assert world.transport("p:1").out == again != sent, "the worker may still have the first one"
    assert world.disaggregation_stats.failures == {}


# decode fails ----------------------------------------------------------------------------------


def test_after_a_failed_transfer_the_decode_worker_computes_the_prompt(world: DisaggregatedWorld) -> None:
    _, answered = world.ask(b'{"model":"m","prompt":[1,2,3]}')
    prefilled(world)
    world.transport("d:1").feed(plain({"error": {}}, "500 Internal Server Error"))
    assert "kv_transfer_params" not in world.asked("d:1")
    world.transport("d:1").feed(PLAIN)
    assert answered.events == [200, b"{}", "end"]
    assert world.disaggregation_stats.failures == {"transfer": 1}
    assert world.is_clean()


ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant"}}]}\n\n'


@pytest.mark.parametrize("before", [b"", ROLE])
def test_a_stream_that_begins_with_an_error_is_not_forwarded(
    world: DisaggregatedWorld, before: bytes
) -> None:
    _, answered = world.ask()
    prefilled(world)
    first = world.transport("d:1")
    first.feed(HEAD)
    assert answered.events == []
    first.feed(*([chunk(before)] if before else []), chunk(ERROR), chunk(b"data: [DONE]\n\n"), END)
    assert answered.events == []
    assert "kv_transfer_params" not in world.asked("d:1")
    world.transport("d:1").feed(HEAD, chunk(EVENT), END)
    assert answered.events == [200, EVENT, "end"]
    assert world.is_clean()


def test_a_held_stream_lost_on_an_old_connection_is_not_repeated(world: DisaggregatedWorld) -> None:
    """The connection was open, so the transferred blocks are used up."""
    world.ask()
    prefilled(world)
    world.transport("d:1").feed(HEAD, chunk(EVENT), END)
    _, answered = world.ask()
    prefilled(world)
    assert len(world.pools["d:1"].transports) == 1
    world.transport("d:1").feed(HEAD, chunk(ROLE))
    world.transport("d:1").lose()
    assert len(world.pools["d:1"].transports) == 1
    assert answered.events[0] == 502 and 200 not in answered.events
    assert world.is_clean()


def test_a_decode_worker_that_dies_before_its_first_token_costs_a_fresh_prefill(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Transferred blocks are never used twice."""
    world = DisaggregatedWorld(monkeypatch, "p:1", "d:1", "d:2")
    _, answered = world.ask()
    prefilled(world)
    first, second = ("d:1", "d:2") if world.was_asked("d:1") else ("d:2", "d:1")
    world.transport(first).feed(HEAD, chunk(ROLE))
    world.transport(first).lose()
    assert not world.was_asked(second)
    again = {**PARAMS, "remote_block_ids": [[2]]}
    prefilled(world, body={**PREFILLED, "kv_transfer_params": again})
    assert world.asked(second)["kv_transfer_params"] == again
    world.transport(second).feed(HEAD, chunk(EVENT), END)
    assert answered.events == [200, EVENT, "end"]
    assert world.is_clean()


def test_without_another_decode_worker_the_client_gets_502(world: DisaggregatedWorld) -> None:
    _, answered = world.ask()
    prefilled(world)
    world.transport("d:1").lose()
    assert answered.events == [502, "worker_failed"]
    assert world.is_clean()


# the client, and the end -----------------------------------------------------------------------


@pytest.mark.parametrize("is_prefilled", [False, True])
def test_a_disconnected_client_aborts_the_computing_leg(
    world: DisaggregatedWorld, is_prefilled: bool
) -> None:
    exchange, _ = world.ask()
    if is_prefilled:
        prefilled(world)
    exchange.client_gone()
    assert world.transport("d:1" if is_prefilled else "p:1").end == "aborted"
    assert world.is_clean()


def test_a_client_that_disconnects_while_the_stream_is_held_aborts_the_leg(world: DisaggregatedWorld) -> None:
    exchange, answered = world.ask()
    prefilled(world)
    world.transport("d:1").feed(HEAD, chunk(ROLE))
    exchange.client_gone()
    assert world.transport("d:1").end == "aborted" and answered.events == []
    assert world.is_clean()


def answer_of(num_tokens: int) -> bytes:
    return plain({"usage": {"prompt_tokens": num_tokens, "completion_tokens": 1}, "choices": [{}]})


UNSTREAMED = b'{"model":"m","prompt":[1,2,3]}'


def is_no_pair(world: DisaggregatedWorld) -> bool:
    """True if another request is not disaggregated over the pair."""
    before = world.disaggregation_stats.plans[("direct", "no compatible prefill worker")]
    world.ask()
    return world.disaggregation_stats.plans[("direct", "no compatible prefill worker")] > before


def test_legs_that_made_different_prompts_are_no_longer_a_pair(world: DisaggregatedWorld) -> None:
    world.ask(UNSTREAMED)
    prefilled(world)
    world.transport("d:1").feed(answer_of(4))
    assert world.disaggregation_stats.num_mismatches == 1
    assert is_no_pair(world)


def test_a_prefill_of_another_prompt_than_ours_is_not_transferred(world: DisaggregatedWorld) -> None:
    """An engine may crash from it."""
    _, answered = world.ask(UNSTREAMED)
    prefilled(world, body={**PREFILLED, "usage": {"prompt_tokens": 4}})
    assert world.asked("d:1") == {"model": "m", "prompt": [1, 2, 3]}
    assert (world.disaggregation_stats.failures, world.disaggregation_stats.num_mismatches) == (
        {"mismatch": 1},
        1,
    )
    world.transport("d:1").feed(answer_of(3))
    assert (answered.events[0], answered.events[-1]) == (200, "end")
    assert world.is_clean()
    assert is_no_pair(world)


def test_the_pair_is_allowed_again_if_our_tokens_are_the_ones_that_differ(world: DisaggregatedWorld) -> None:
    """The decode worker's own count proves it; from then on our tokens count against no pair."""
    four = {**PREFILLED, "usage": {"prompt_tokens": 4}}
    world.ask(UNSTREAMED)
    prefilled(world, body=four)
    world.transport("d:1").feed(answer_of(4))
    _, answered = world.ask(UNSTREAMED)
    prefilled(world, body=four)
    assert "kv_transfer_params" in world.asked("d:1")
    world.transport("d:1").feed(answer_of(4))
    assert (answered.events[0], answered.events[-1]) == (200, "end")
    assert (world.disaggregation_stats.failures, world.disaggregation_stats.num_mismatches) == (
        {"mismatch": 1},
        1,
    )
    world.ask(UNSTREAMED)
    prefilled(world)
    world.transport("d:1").feed(answer_of(3))
    assert world.is_clean()
    world.ask(UNSTREAMED)
    prefilled(world, body=four)
    assert world.disaggregation_stats.failures == {"mismatch": 2}, "it counts as we do again"


def test_a_prompt_truncated_by_the_engine_has_an_unknown_length(world: DisaggregatedWorld) -> None:
    world.ask(b'{"model":"m","prompt":[1,2,3],"truncate_prompt_tokens":2}')
    prefilled(world, body={**PREFILLED, "usage": {"prompt_tokens": 2}})
    assert "kv_transfer_params" in world.asked("d:1")
    assert world.disaggregation_stats.failures == {}


# both legs at once -----------------------------------------------------------------------------


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> DisaggregatedWorld:
    return DisaggregatedWorld(monkeypatch, "p:1", "d:1", connector="bootstrap")


def test_both_legs_are_sent_at_once(together: DisaggregatedWorld) -> None:
    _, answered = together.ask()
    room = together.asked("p:1")
    assert room == together.asked("d:1")
    assert (room["bootstrap_host"], room["bootstrap_port"]) == ("p", 8998)
    together.transport("d:1").feed(HEAD, chunk(EVENT))
    assert answered.events == [200, EVENT]
    assert (together.load("p:1"), together.load("d:1")) == (1, 1)
    prefilled(together, body={"usage": {"prompt_tokens": 3}})
    assert together.load("p:1") == 0
    together.transport("d:1").feed(END)
    assert answered.events == [200, EVENT, "end"]
    assert together.is_clean()


def test_a_failed_leg_ends_the_other(together: DisaggregatedWorld) -> None:
    together.join("p:2", "bootstrap")
    _, answered = together.ask()
    first, second = ("p:1", "p:2") if together.was_asked("p:1") else ("p:2", "p:1")
    waiting = together.transport("d:1")
    together.transport(first).lose()
    assert waiting.end == "aborted"
    assert together.asked(second)["bootstrap_room"] == together.asked("d:1")["bootstrap_room"]
    together.transport("d:1").feed(HEAD, chunk(EVENT), END)
    assert answered.events == [200, EVENT, "end"]
    assert together.is_clean()


@pytest.mark.parametrize("decode_rejects", [True, False])
def test_a_request_rejected_by_both_legs_gets_the_error_of_the_engine(
    together: DisaggregatedWorld, decode_rejects: bool
) -> None:
    _, answered = together.ask()
    together.transport("p:1").feed(plain({"error": {"message": "too long"}}, "400 Bad Request"))
    assert together.load("p:1") == 0 and answered.events == []
    if decode_rejects:
        together.transport("d:1").feed(plain({"error": 1}, "400 Bad Request"))
    together.loop.advance(REFUSAL_S)
    assert answered.events[:2] == ([400, b'{"error": 1}'] if decode_rejects else [400, "invalid_request"])
    assert together.is_clean()


def test_a_decode_worker_that_cannot_answer_alone_has_no_fallback(together: DisaggregatedWorld) -> None:
    _, answered = together.ask()
    together.transport("p:1").lose()
    assert answered.events == [503, "no_worker"]
    assert together.is_clean()


def test_a_failed_transfer_goes_to_another_prefill_worker(together: DisaggregatedWorld) -> None:
    together.join("p:2", "bootstrap")
    _, answered = together.ask()
    first, second = ("p:1", "p:2") if together.was_asked("p:1") else ("p:2", "p:1")
    together.transport("d:1").feed(plain({"error": {}}, "500 Internal Server Error"))
    assert together.transport(first).end == "aborted"
    assert together.asked(second)["bootstrap_room"] == together.asked("d:1")["bootstrap_room"]
    together.transport("d:1").feed(HEAD, chunk(EVENT), END)
    assert answered.events == [200, EVENT, "end"]
    assert together.is_clean()


@pytest.mark.parametrize("by", ["p:1", "d:1"])
def test_without_another_prefill_worker_another_decode_worker_gets_the_transfer(
    together: DisaggregatedWorld, by: str
) -> None:
    """Either leg may report that the blocks did not arrive."""
    _, answered = together.ask()
    together.join("d:2", "bootstrap")
    together.transport(by).feed(plain({"error": {}}, "500 Internal Server Error"))
    assert together.asked("p:1")["bootstrap_room"] == together.asked("d:2")["bootstrap_room"]
    together.transport("d:2").feed(HEAD, chunk(EVENT), END)
    assert answered.events == [200, EVENT, "end"]
    assert together.is_clean()


def test_pairs_are_tried_as_often_as_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    world = DisaggregatedWorld(monkeypatch, "p:1", "p:2", "p:3", "d:1", connector="bootstrap", max_attempts=2)
    _, answered = world.ask()
    for _ in range(2):
        assert answered.events == []
        world.transport("d:1").feed(plain({"error": {}}, "500 Internal Server Error"))
    assert answered.events == [502, "worker_failed"]
    assert world.is_clean()


def test_several_answers_are_disaggregated_where_no_worker_answers_alone(
    together: DisaggregatedWorld,
) -> None:
    together.ask(b'{"model":"m","prompt":[1,2,3],"n":2}')
    assert together.asked("p:1")["n"] == together.asked("d:1")["n"] == 2


def test_room_numbers_have_63_bits_and_derive_from_the_decision() -> None:
    numbers = {number_of(f"d{i}") for i in range(1000)}
    assert len(numbers) == 1000 and all(0 <= number < 2**63 for number in numbers)
    assert number_of("d1") == number_of("d1")
