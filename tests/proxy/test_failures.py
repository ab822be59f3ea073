"""Failures of exchanges: each decision by itself; `test_exchange.py` has the whole stories."""

import errno
from typing import cast

import pytest

from gateway.core.errors import GatewayError, NoWorker
from gateway.core.worker import WorkerId
from gateway.http.messages import ResponseHead
from gateway.http.response_observer import ResponseObserver
from gateway.proxy.failures import (
    charge,
    cut_off,
    lost,
    may_try_another,
    out_of_connections,
    refuse,
    retried,
)
from gateway.server.responder import Responder
from tests.support.worlds.exchanges import Answered, ExchangeWorld

BODY = b'{"model":"m","prompt":[1,2,3]}'


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> ExchangeWorld:
    return ExchangeWorld(monkeypatch, "a:1", "b:1")


def test_another_worker_is_one_that_has_not_failed_and_the_budget_pays_for(world: ExchangeWorld) -> None:
    exchange, fleet = world.ask(BODY)[0], world.router.fleet

    def may_try(worker: str) -> bool:
        return may_try_another(fleet, exchange.request, exchange.tries, WorkerId(worker), is_up=False)

    assert may_try("a:1")
    exchange.tries.failed[WorkerId("b:1")] = "died"
    assert not may_try("a:1")
    del exchange.tries.failed[WorkerId("b:1")]
    exchange.tries.may_repeat = False
    assert not may_try("a:1")


def test_a_charge_counts_at_the_worker_and_is_reported(world: ExchangeWorld) -> None:
    exchange = world.ask(BODY)[0]
    assert exchange.decision
    worker = exchange.decision.worker.id
    charge(world.context, exchange, world.metrics.worker(worker), "it died", is_refused=True)
    assert world.metrics.worker(worker).num_failed == 1
    assert world.suspected == [(worker, "it died", True)]


def test_a_lost_attempt_is_an_error_where_no_other_follows(world: ExchangeWorld) -> None:
    exchange = world.ask(BODY)[0]
    tries, log = exchange.tries, world.context.log
    assert lost(exchange, tries, "died", log, is_refused=False) is None
    tries.may_repeat = False
    error = lost(exchange, tries, "died too", log, is_refused=False)
    assert error is not None and error.retry_after_s == 1 and not error.should_retry


@pytest.mark.parametrize(("is_busy", "cause"), [(True, "worker_busy"), (False, "worker_failed")])
def test_a_retry_is_counted_by_its_cause(world: ExchangeWorld, is_busy: bool, cause: str) -> None:
    retried(world.context, WorkerId("a:1"), "died", "7", is_busy=is_busy)
    assert world.metrics.retries == {cause: 1}


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_without_files_for_connections_the_gateway_is_to_blame(world: ExchangeWorld, number: int) -> None:
    error = out_of_connections(OSError(number, "no files"), world.context.log, "7")
    assert error is not None and error.status == NoWorker("").status
    assert out_of_connections(OSError(errno.ECONNREFUSED, "refused"), world.context.log, "7") is None


def test_an_error_is_the_answer_unless_one_has_begun() -> None:
    answered = Answered()
    refuse(cast(Responder, answered), GatewayError("no"), b"7")
    answered.has_begun = True
    refuse(cast(Responder, answered), GatewayError("no"), b"7")
    assert answered.events == [500, "internal_error", "abort"]


def test_a_stream_is_cut_with_an_error_event_and_any_other_answer_without() -> None:
    stream = ResponseHead(200, [(b"content-type", b"text/event-stream")], b"OK")
    plain = ResponseHead(200, [(b"content-type", b"application/json")], b"OK")
    answered = Answered()
    cut_off(cast(Responder, answered), ResponseObserver(stream, None, masks=False, limit=None), "died", b"7")
    assert b"the answer is incomplete: died" in cast(bytes, answered.events[0])
    for answer in (ResponseObserver(plain, None, masks=False, limit=None), None):
        answered = Answered()
        cut_off(cast(Responder, answered), answer, "died", b"7")
        assert answered.events == ["abort"]
