"""Life of one request, with workers and clock moved by hand: every end, exactly once, and its time."""

import errno
import logging
import re
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.core.decision import Prompt
from gateway.core.outcome import CLIENT_GONE
from gateway.core.request import InferenceRequest
from gateway.core.worker import WorkerId
from gateway.discovery.request_faults import RequestFaults
from gateway.models.offload import LongPrompts
from gateway.models.prompt_source import PromptSource
from gateway.proxy.exchange import InferenceExchange
from gateway.runtime.tasks import Tasks
from tests.support.worlds.exchanges import (
    BODY,
    END,
    EVENT,
    HEAD,
    PLAIN,
    Answered,
    ExchangeWorld,
    InlineTasks,
    chunk,
)

DAY = 86_400.0


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> ExchangeWorld:
    return ExchangeWorld(monkeypatch, "w:1")


def test_an_answer_is_passed_on(world: ExchangeWorld) -> None:
    _, answered = world.ask()
    transport = world.transport()
    assert transport.out.startswith(b"POST /v1/completions HTTP/1.1\r\n")
    assert transport.out.endswith(b"\r\n\r\n" + BODY)
    assert world.in_flight() == 1
    transport.feed(HEAD, chunk(EVENT[:9]), chunk(EVENT[9:]), END)
    assert answered.events == [200, EVENT, "end"]
    assert world.is_clean()
    assert transport.end == ""
    assert world.metrics.responses == {200: 1}
    world.ask()
    assert len(world.pools["w:1"].transports) == 1  # the connection is used again


@pytest.mark.parametrize("options", [{}, {"queue_above_in_flight": 1}], ids=["plain", "queue"])
def test_a_bug_before_a_decision_is_answered_and_leaves_no_state(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, options: dict[str, int]
) -> None:
    world = ExchangeWorld(monkeypatch, "w:1", **options)
    policy = world.router.policy
    world.router.policy = cast(Any, SimpleNamespace(name="broken"))
    _, answered = world.ask()
    assert answered.events[0] == 500 and world.is_clean() and "failed" in caplog.text
    world.router.policy = policy
    exchange, answered = world.ask()
    assert world.in_flight() == 1  # no earlier request is in its way
    exchange.cancel("the end of the test")


def test_an_announcement_is_requested_from_the_chosen_worker_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A retry at another worker carries no request for it."""

    class First(set[str]):
        def __contains__(self, id: object) -> bool:
            self.add(str(id))
            return len(self) == 1

    world = ExchangeWorld(monkeypatch, "w:1", "w:2")
    world.use(to_report=First())
    world.ask()
    first = world.transport()
    assert b'"vllm_xargs":{"kv_cache_report_mode":"full"}}' in first.out
    first.lose()
    assert world.pools["w:2"].transports[0].out.endswith(b"\r\n\r\n" + BODY)


def test_the_prompt_is_dropped_when_the_answer_begins(world: ExchangeWorld) -> None:
    exchange, answered = world.ask()
    assert exchange.request.body == BODY  # a retry at another worker may need it
    world.transport().feed(HEAD, chunk(EVENT))
    assert (exchange.request.body, exchange.request.fields, exchange.http.body) == (b"", {}, b"")
    world.transport().feed(END)
    assert answered.events == [200, EVENT, "end"]
    assert world.is_clean()


def test_a_long_prompt_is_tokenized_in_a_thread_and_kept_until_the_first_byte(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = ExchangeWorld(monkeypatch, "w:1", "w:2")
    asked: list[Prompt] = []

    class Offloading:
        def is_long(self, request: InferenceRequest) -> bool:
            return request.num_new_bytes == len(BODY)

        async def ask(
            self, request: InferenceRequest, hash_ahead: Callable[[Prompt], None], max_tokens: int
        ) -> Prompt:
            asked.append(world.context.prompts.source.tokenize(request))
            hash_ahead(asked[-1])
            return asked[-1]

        def let_go(self, num_bytes: int) -> None: ...

    world.context.prompts.long_prompts = cast(LongPrompts, Offloading())
    exchange, answered = world.ask()
    first = world.transport("w:1")
    first.lose(ConnectionResetError())
    assert exchange._prompt is asked[0]
    world.transport("w:2").feed(PLAIN)
    assert answered.events == [200, b"{}", "end"]
    assert (len(asked), exchange._prompt) == (1, None)  # the decision for the next worker had its tokens
    assert world.is_clean()


# time --------------------------------------------------------------------------------------------


def test_a_first_byte_may_take_a_day(world: ExchangeWorld) -> None:
    _, answered = world.ask()
    world.loop.advance(DAY)
    world.transport().feed(PLAIN)
    assert answered.events == [200, b"{}", "end"]


def test_a_stream_may_take_a_month(world: ExchangeWorld) -> None:
    """A moving stream has no limit: 300 s in all, as in HTTP client libraries, would be an outage."""
    _, answered = world.ask()
    world.transport().feed(HEAD)
    for _ in range(int(30 * DAY / 599)):
        world.loop.advance(599)
        world.transport().feed(chunk(EVENT))
    world.transport().feed(END)
    assert answered.events[-1] == "end"
    assert not world.suspected


def test_a_stalled_stream_is_ended_by_the_idle_timeout(world: ExchangeWorld) -> None:
    _, answered = world.ask()
    world.transport().feed(HEAD, chunk(EVENT))
    world.loop.advance(599)
    assert answered.events == [200, EVENT]
    world.loop.advance(2)
    assert b'"worker_failed"' in answered.events[2]  # type: ignore[operator]
    assert answered.events[3] == "end"
    assert world.transport().end == "aborted"
    assert world.is_clean()


def test_a_stalled_client_is_no_fault_of_the_worker(world: ExchangeWorld) -> None:
    exchange, answered = world.ask()
    world.transport().feed(HEAD, chunk(EVENT))
    answered.client_is_full = True
    exchange.client_full()
    assert not world.transport().is_reading
    world.loop.advance(601)
    assert answered.events[-1] == "abort"
    assert not world.suspected
    assert world.metrics.responses == {CLIENT_GONE: 1}
    assert world.is_clean()


@pytest.mark.parametrize(
    ("options", "seconds"),
    [({"first_byte_timeout_s": 5.0}, 5.0), ({"total_timeout_s": 7.0}, 7.0)],
)
def test_configured_timeouts_apply(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, float], seconds: float
) -> None:
    world = ExchangeWorld(monkeypatch, "w:1", **options)
    _, answered = world.ask()
    world.loop.advance(seconds - 0.1)
    assert answered.events == []
    world.loop.advance(0.2)
    assert answered.events == [504, "worker_timeout"]
    assert world.transport().end == "aborted"
    assert world.is_clean()


# every end, once ----------------------------------------------------------------------------------


def _ended(world: ExchangeWorld, exchange: InferenceExchange) -> None:
    world.transport().feed(PLAIN)


def _died(world: ExchangeWorld, exchange: InferenceExchange) -> None:
    world.transport().lose()


def _cut(world: ExchangeWorld, exchange: InferenceExchange) -> None:
    world.transport().feed(PLAIN[:-1])
    world.transport().lose()


def _client_gone(world: ExchangeWorld, exchange: InferenceExchange) -> None:
    exchange.client_gone()


def _stopped(world: ExchangeWorld, exchange: InferenceExchange) -> None:
    exchange.cancel("the gateway stopped")


@pytest.mark.parametrize(
    ("out", "expected", "status"),
    [
        (_ended, [200, b"{}", "end"], 200),
        (_died, [502, "worker_failed"], 502),
        (_cut, [200, b"{", "abort"], 200),
        (_client_gone, [], CLIENT_GONE),
        (_stopped, ["abort"], 0),
    ],
)
def test_every_end_happens_once(
    world: ExchangeWorld,
    out: Callable[[ExchangeWorld, InferenceExchange], None],
    expected: list[object],
    status: int,
) -> None:
    exchange, answered = world.ask()
    out(world, exchange)
    assert answered.events == expected
    assert world.is_clean()
    assert world.metrics.responses == {status: 1}
    assert world.transport().is_closing() == (out is not _ended)
    exchange.client_gone()
    exchange.cancel("again")
    exchange.client_full()
    exchange.client_free()
    world.loop.advance(DAY)
    assert answered.events == expected
    assert world.metrics.responses == {status: 1}
    assert world.in_flight() == 0


def test_an_aborted_request_is_logged(world: ExchangeWorld, caplog: pytest.LogCaptureFixture) -> None:
    exchange, _ = world.ask()
    with caplog.at_level(logging.WARNING):
        exchange.cancel("the gateway stopped")
    assert "7" in caplog.text
    assert "the gateway stopped" in caplog.text


# other workers -----------------------------------------------------------------------------------


def test_the_next_worker_gets_the_same_request(monkeypatch: pytest.MonkeyPatch) -> None:
    world = ExchangeWorld(monkeypatch, "w:1", "w:2", "w:3")
    world.pools["w:1"].error = ConnectionRefusedError(111, "Connection refused")
    _, answered = world.ask()
    second = next(name for name, pool in world.pools.items() if pool.transports)
    third = ({"w:2", "w:3"} - {second}).pop()
    world.transport(second).feed(b"HTTP/1.1 20")
    world.transport(second).lose(ConnectionResetError())
    world.transport(third).feed(PLAIN)
    assert answered.events == [200, b"{}", "end"]
    sent = [world.transport(name).out.replace(name.encode(), b"w") for name in (second, third)]
    ids = [re.search(rb"\r\nx-request-id: ([0-9a-z-]+)\r\n", each) for each in sent]
    assert ids[0] and ids[1] and ids[0][1] != ids[1][1], "each attempt has an id of its own"
    assert sent[0].replace(ids[0][1], b"") == sent[1].replace(ids[1][1], b"")
    assert [(worker, is_refused) for worker, _, is_refused in world.suspected] == [
        ("w:1", True),
        (second, False),
    ]
    assert world.metrics.retries == {"worker_failed": 2}
    assert world.is_clean()


RESPONSES = b"/v1/responses"


def test_a_request_that_stores_state_is_sent_to_one_worker_only(monkeypatch: pytest.MonkeyPatch) -> None:
    world = ExchangeWorld(monkeypatch, "w:1", "w:2")
    body = b'{"model":"m","input":"x","store":true}'
    _, answered = world.ask(body, RESPONSES)
    world.transport("w:1").lose(ConnectionResetError())
    assert answered.events == [502, "worker_failed"]
    assert [error.should_retry for error in answered.errors] == [False]
    assert not world.pools["w:2"].transports
    assert world.is_clean()


def test_a_request_that_stores_state_is_retried_after_a_refused_connection(world: ExchangeWorld) -> None:
    world.pools["w:1"].error = ConnectionRefusedError(111, "Connection refused")
    _, answered = world.ask(b'{"model":"m","input":"x","store":true}', RESPONSES)
    assert answered.events == [502, "worker_failed"]  # there is no other worker
    assert [error.should_retry for error in answered.errors] == [True]


def test_a_request_that_stores_state_uses_no_resting_connection(world: ExchangeWorld) -> None:
    world.ask()
    world.transport().feed(PLAIN)
    world.ask(b'{"model":"m","input":"x","store":true}', RESPONSES)
    assert len(world.pools["w:1"].transports) == 2


def test_a_503_to_a_request_that_stores_state_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    world = ExchangeWorld(monkeypatch, "w:1", "w:2")
    _, answered = world.ask(b'{"model":"m","input":"x","store":true}', RESPONSES)
    world.transport("w:1").feed(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n")
    assert answered.events == [503, "end"]


def test_a_spent_retry_budget_ends_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    world = ExchangeWorld(monkeypatch, "w:1", "w:2", retry_share=0.0)
    _, answered = world.ask()
    world.transport("w:1").lose(ConnectionResetError())
    assert answered.events == [502, "worker_failed"]
    assert [error.should_retry for error in answered.errors] == [True]
    assert "too many" in answered.errors[0].message
    assert (world.context.retries.num_denied, world.metrics.retries) == (1, {})
    assert world.is_clean()


@pytest.mark.parametrize("last", ["lost", "500"])
def test_a_request_that_fails_at_two_workers_goes_to_no_third_and_is_charged_itself(
    monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    world = ExchangeWorld(monkeypatch, "w:1", "w:2", "w:3", max_attempts=9)
    charged: list[str] = []
    acquitted: list[tuple[str, int]] = []
    faults = RequestFaults(
        lambda worker, why, is_silent: charged.append(worker), lambda *what: acquitted.append(what)
    )
    world.use(faults=faults)
    _, answered = world.ask()
    world.transport("w:1").lose(ConnectionResetError())
    second = next(name for name in ("w:2", "w:3") if world.pools[name].transports)
    if last == "lost":
        world.transport(second).lose(ConnectionResetError())
        assert answered.events == [502, "worker_failed"]
        assert answered.errors[0].message.endswith(
            "2 workers failed on it, so the request itself is the likely cause"
        )
        assert [error.should_retry for error in answered.errors] == [False]
    else:
        world.transport(second).feed(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n")
        assert answered.events == [500, "end"]
    assert sum(bool(pool.transports) for pool in world.pools.values()) == 2
    assert (charged, acquitted, faults.by_key) == (["w:1"], [("w:1", 1)], {"none": 1})
    assert world.is_clean()


def test_refusals_do_not_count_as_failures_of_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers refuse connections and one is saturated; the fourth answers."""
    world = ExchangeWorld(monkeypatch, "w:1", "w:2", "w:3", "w:4", max_attempts=3)
    for name in ("w:1", "w:2"):
        world.pools[name].error = ConnectionRefusedError(111, "Connection refused")
    charged: list[str] = []
    world.use(faults=RequestFaults(lambda worker, why, is_silent: charged.append(worker)))
    exchange, answered = world.ask()
    world.transport("w:3").feed(b"HTTP/1.1 429 No\r\nContent-Length: 0\r\n\r\n")
    world.transport("w:4").feed(PLAIN)
    assert answered.events == [200, b"{}", "end"]
    assert (charged, exchange.failed_at) == (["w:1", "w:2"], ())


def test_attempts_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    world = ExchangeWorld(monkeypatch, "w:1", "w:2", "w:3", max_attempts=2)
    for pool in world.pools.values():
        pool.error = TimeoutError()
    _, answered = world.ask()
    assert answered.events == [502, "worker_failed"]
    assert len(world.suspected) == 2
    assert world.metrics.retries == {"worker_failed": 1}


def test_a_lost_resting_connection_is_no_failure(world: ExchangeWorld) -> None:
    world.ask()
    world.transport().feed(PLAIN)
    _, answered = world.ask()
    world.transport().lose()
    assert len(world.pools["w:1"].transports) == 2
    world.transport().feed(PLAIN)
    assert answered.events == [200, b"{}", "end"]
    assert not world.suspected
    assert world.metrics.retries == {}


def test_the_last_worker_of_a_model_is_dropped_and_the_client_gets_an_error(world: ExchangeWorld) -> None:
    _, answered = world.ask()
    world.router.fleet.drop(WorkerId("w:1"))
    world.transport().lose()
    assert answered.events == [502, "worker_failed"]
    assert world.metrics.retries == {}


def test_an_answer_that_has_begun_is_not_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    world = ExchangeWorld(monkeypatch, "w:1", "w:2")
    _, answered = world.ask()
    world.transport("w:1").feed(PLAIN[:-1])
    world.transport("w:1").lose()
    assert answered.events == [200, b"{", "abort"]
    assert not world.pools["w:2"].transports


# before a worker is chosen -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "expected"),
    [(BODY.replace(b'"m"', b'"none"'), [404, "model_not_found"]), (BODY, [503, "no_worker"])],
)
def test_without_a_worker_the_client_gets_an_error(
    world: ExchangeWorld, body: bytes, expected: list[object]
) -> None:
    for member in world.router.fleet:
        member.is_up = expected[0] == 404
    _, answered = world.ask(body)
    assert answered.events == expected
    assert world.is_clean()


def begin_unread(answered: Answered) -> None:
    answered.events, answered.has_begun = [], False


def test_a_client_full_before_its_answer_pauses_the_worker_from_the_first_byte(
    world: ExchangeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's buffer is full of an earlier answer."""
    monkeypatch.setattr(Answered, "client_is_full", True, raising=False)
    monkeypatch.setattr(Answered, "__init__", begin_unread)
    exchange, _ = world.ask()
    assert not world.transport().is_reading
    exchange.client_free()
    assert world.transport().is_reading


def test_a_client_that_disconnects_during_tokenization_ends_its_request(
    world: ExchangeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokenizer's answer is discarded: no decision, no booking, no request to a worker."""
    started: list[object] = []
    monkeypatch.setattr(PromptSource, "is_local", lambda self, request: False)
    monkeypatch.setattr(InlineTasks, "start", lambda self, name, coro: started.append(coro))

    class SlowTokenizer:
        def is_resting(self, url: str) -> bool:
            return False

        async def ask(self, *args: object) -> Prompt:
            exchange.client_gone()
            return Prompt()

    world.context.prompts.worker_tokenizer = SlowTokenizer()  # type: ignore[assignment]
    exchange, answered = world.ask()
    with pytest.raises(StopIteration):
        started[0].send(None)  # type: ignore[attr-defined]
    assert answered.events == []
    assert world.is_clean()
    assert not world.pools["w:1"].transports


# another worker ----------------------------------------------------------------------------------

UNAVAILABLE = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nbusy"


def test_a_request_to_a_silent_worker_is_moved_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    world = ExchangeWorld(monkeypatch, "w:1", "w:2")
    _, waiting = world.ask()
    _, begun = world.ask()
    world.transport("w:2").feed(HEAD, chunk(EVENT))
    for name in ("w:2", "w:1"):
        world.dispatch.worker_down(WorkerId(name), f"{name} is silent")
    assert world.transport("w:1").end == "aborted"
    world.pools["w:2"].transports[0].feed(END)
    assert begun.events == [200, EVENT, "end"]
    assert len(world.pools["w:2"].transports) == 2
    world.transport("w:2").feed(PLAIN)
    assert waiting.events == [200, b"{}", "end"]
    assert world.is_clean()
    assert world.metrics.retries == {"worker_failed": 1}
    assert world.suspected == [("w:1", "w:1 is silent", False)]


def test_an_unavailable_worker_is_retried_while_another_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    world = ExchangeWorld(monkeypatch, "w:1", "w:2")
    _, answered = world.ask()
    world.transport("w:1").feed(UNAVAILABLE)
    assert answered.events == []
    world.transport("w:2").feed(UNAVAILABLE)
    assert answered.events == [503, b"busy", "end"]  # the last worker's own answer
    assert world.is_clean()


OVERLOADED = b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}'


@pytest.mark.parametrize(
    ("status", "headers", "body", "busy_s"),
    [
        (529, b"", b"", 1.0),
        (529, b"Retry-After: 2.5\r\n", OVERLOADED, 2.5),
        (500, b"", OVERLOADED, 1.0),
        (503, b"Retry-After: Sun, 06 Nov 1994 08:49:37 GMT\r\n", b"", 1.0),
        (503, b"Retry-After: Fri, 31 Dec 9999 23:59:59 GMT\r\n", b"", 10.0),
        (503, b"Retry-After: 0.5\r\n", b"", 1.0),
        (429, b"Retry-After-Ms: 3500\r\n", b"", 3.5),
    ],
)
def test_a_saturated_workers_request_goes_to_an_idle_one_and_counts_against_nothing(
    monkeypatch: pytest.MonkeyPatch, status: int, headers: bytes, body: bytes, busy_s: float
) -> None:
    busy: list[tuple[str, float]] = []
    charged: list[str] = []
    faults = RequestFaults(lambda worker, why, is_silent: charged.append(worker))
    head = b"HTTP/1.1 %d X\r\n%bContent-Length: %d\r\n\r\n" % (status, headers, len(body))
    for _ in range(6):  # more than eject a worker
        world = ExchangeWorld(monkeypatch, "w:1", "w:2")
        world.use(busy=lambda *what: busy.append(what), faults=faults)
        _, answered = world.ask()
        world.transport("w:1").feed(head + body)
        world.transport("w:2").feed(PLAIN)
        assert answered.events == [200, b"{}", "end"]
        assert world.metrics.retries == {"worker_busy": 1} and not world.suspected
    assert busy == [("w:1", busy_s)] * 6
    assert not (charged or faults.by_key)


def test_the_last_workers_529_passes_through_with_a_time(world: ExchangeWorld) -> None:
    _, answered = world.ask()
    world.transport().feed(b"HTTP/1.1 529 X\r\nContent-Length: %d\r\n\r\n" % len(OVERLOADED) + OVERLOADED)
    assert answered.events == [529, OVERLOADED, "end"]
    assert world.is_clean()


def test_another_500_passes_through_and_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = ExchangeWorld(monkeypatch, "w:1", "w:2")
    _, answered = world.ask()
    world.transport("w:1").feed(b"HTTP/1.1 500 X\r\nRetry-After: 3\r\nContent-Length: 3\r\n\r\nbad")
    assert answered.events == [500, b"bad", "end"]
    assert not world.pools["w:2"].transports and world.is_clean()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EADDRNOTAVAIL])
def test_running_out_of_connections_is_no_fault_of_a_worker(world: ExchangeWorld, number: int) -> None:
    world.pools["w:1"].error = OSError(number, "too many")
    _, answered = world.ask()
    assert answered.events == [503, "no_worker"]
    assert not world.suspected
    assert world.is_clean()


def test_a_total_timeout_is_no_fault_of_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    world = ExchangeWorld(monkeypatch, "w:1", total_timeout_s=7.0)
    _, answered = world.ask()
    world.transport().feed(HEAD, chunk(EVENT))
    world.loop.advance(8)
    assert answered.events[-1] == "end"
    assert b"total timeout exceeded" in answered.events[-2]  # type: ignore[operator]
    assert not world.suspected
    assert world.metrics.worker(WorkerId("w:1")).num_failed == 0


class PendingTasks(InlineTasks):
    """Tasks that never run."""

    def __init__(self) -> None:
        self.cancelled: list[str] = []

    def start(self, name: str, coro: Coroutine[Any, Any, Any]) -> Any:
        coro.close()
        return SimpleNamespace(cancel=lambda: self.cancelled.append(name))


def test_a_client_that_disconnects_cancels_its_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    world = ExchangeWorld(monkeypatch, "w:1")
    tasks = PendingTasks()
    world.use(tasks=cast(Tasks, tasks))
    exchange, _ = world.ask()
    exchange.client_gone()
    assert tasks.cancelled == ["connect"]
    assert world.is_clean()


# memory for bodies -------------------------------------------------------------------------------


def held(world: ExchangeWorld, exchange: InferenceExchange) -> int:
    """Hold the body as the connection does."""
    exchange.http.num_held = world.context.bodies.num_bytes = 1000
    return 1000


def test_a_body_is_released_when_its_answer_begins(world: ExchangeWorld) -> None:
    exchange, _ = world.ask()
    held(world, exchange)
    world.transport().feed(PLAIN[:-1])
    assert world.context.bodies.num_bytes == 0
    world.transport().feed(PLAIN[-1:])
    assert world.context.bodies.num_bytes == 0


@pytest.mark.parametrize("end", ["failed", "client gone", "cut", "too late"])
def test_a_body_is_released_at_each_other_end(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    world = ExchangeWorld(monkeypatch, "w:1", first_byte_timeout_s=5.0)
    exchange, answered = world.ask()
    held(world, exchange)
    if end == "failed":
        world.transport().lose(ConnectionResetError())
    elif end == "client gone":
        exchange.client_gone()
    elif end == "cut":
        exchange.cancel("the gateway stopped")
    else:
        world.loop.advance(6.0)
        assert answered.events == [504, "worker_timeout"]
        assert answered.errors[0].should_retry
    assert world.context.bodies.num_bytes == 0
    assert world.is_clean()


def test_a_body_is_kept_while_another_worker_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    world = ExchangeWorld(monkeypatch, "w:1", "w:2")
    exchange, _ = world.ask()
    held(world, exchange)
    world.transport("w:1").lose(ConnectionResetError())
    assert world.context.bodies.num_bytes == 1000
    world.transport("w:2").feed(PLAIN)
    assert world.context.bodies.num_bytes == 0
