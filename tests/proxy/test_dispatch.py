from collections.abc import Callable

import pytest

from gateway.bookings.time_slice import TimeSlice
from gateway.config.tenant_limits import TenantLimits
from gateway.core.blocks import tokens_of
from gateway.core.caller import Caller
from gateway.core.decision import Prompt
from gateway.core.errors import Forbidden, InvalidRequest, TooManyRequests
from gateway.core.request import InferenceRequest
from gateway.core.worker import WorkerId
from gateway.http.messages import HttpRequest
from gateway.models.prompt_source import PromptSource
from gateway.proxy.intake import request_of
from gateway.tenancy.admission.gate import Gate, gate_of
from gateway.tenancy.admission.queues import LOOK_S
from tests.support.worlds.disaggregated import DisaggregatedWorld
from tests.support.worlds.exchanges import ExchangeWorld
from tests.support.worlds.gate import FakeOutlook, zero_config


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> ExchangeWorld:
    return ExchangeWorld(monkeypatch, "w:1", pool_idle_s=2.0, connect_timeout_s=3.0)


def test_an_unreadable_body_leaves_no_state(world: ExchangeWorld) -> None:
    with pytest.raises(InvalidRequest) as caught:
        world.ask(b'{"model":"m"}')
    assert caught.value.param == "prompt"
    assert world.is_clean()
    assert not world.pools["w:1"].transports


def test_an_exchange_is_known_until_it_ends(world: ExchangeWorld) -> None:
    exchange, _ = world.ask()
    assert world.dispatch.exchanges == {exchange}
    assert "w:1" in repr(exchange)
    exchange.client_gone()
    assert world.dispatch.exchanges == set()


def test_each_endpoint_has_one_pool_with_the_configured_timeouts(world: ExchangeWorld) -> None:
    pool = world.context.pools.of("http://w:9")
    assert world.context.pools.of("http://w:9") is pool
    assert world.context.pools.of("http://w:8") is not pool
    assert (pool.idle_s, pool.connect_timeout_s) == (2.0, 3.0)


def test_a_pool_is_dropped_with_its_endpoint(world: ExchangeWorld) -> None:
    world.ask()
    resting = world.transport()
    resting.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    assert resting.end == ""
    world.context.pools.drop("http://w:1")
    assert resting.end == "aborted"
    assert "http://w:1" not in world.context.pools.by_url
    world.context.pools.drop("http://w:1")  # a second time does nothing


def test_a_session_is_read_from_a_header_then_a_cookie_then_the_user_field(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = ExchangeWorld(monkeypatch, "w:1", session_header="X-Session-Id", session_cookie="sid")
    body = b'{"model":"m","prompt":"x","user":"u"}'
    for headers, session in (([], "u"), ([(b"cookie", b"sid=c")], "c"), ([(b"x-session-id", b"h")], "h")):
        assert (
            request_of(world.context, HttpRequest("POST", b"/v1/completions", headers, body)).session
            == session
        )


def test_a_request_has_the_tenant_and_salt_of_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    world = ExchangeWorld(monkeypatch, "w:1")
    http = HttpRequest("POST", b"/v1/completions", [], b'{"model":"m","prompt":"x","cache_salt":"mine"}')
    http.caller = Caller("acme", "id", ["m"], salt="SALT")
    request = request_of(world.context, http)
    assert (request.tenant, request.cache_salt) == ("acme", "SALT")
    assert request.body == b'{"model":"m","prompt":"x","cache_salt":"SALT"}'
    http.caller = Caller("acme", "id", ["n"])
    with pytest.raises(Forbidden, match="may not use the model 'm', only n"):
        request_of(world.context, http)


# behind a gate ------------------------------------------------------------------------------------------

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


def test_a_queued_request_is_sent_after_the_one_before_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    world = ExchangeWorld(monkeypatch, "w:1", queue_above_in_flight=1)
    world.ask()
    _, second = world.ask()
    assert len(world.pools["w:1"].transports) == 1 and second.events == []
    world.transport().feed(ANSWER)
    world.loop.advance(0.0)
    world.transport().feed(ANSWER)
    assert second.events == [200, b"{}", "end"]
    world.loop.advance(1.0)
    assert world.is_clean()


def test_a_client_that_disconnects_leaves_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    world = ExchangeWorld(monkeypatch, "w:1", queue_above_in_flight=1)
    first, _ = world.ask()
    second, answered = world.ask()
    second.client_gone()
    assert answered.events == [] and world.metrics.responses[499] == 1
    gate = world.context.gate
    assert gate and len(gate.queues.models["m"].queue) == 0
    first.client_gone()
    world.loop.advance(1.0)
    assert world.is_clean() and not gate.tenants.of("anonymous", 0.0).num_active


def test_a_request_that_waits_too_long_is_rejected_and_released(monkeypatch: pytest.MonkeyPatch) -> None:
    world = ExchangeWorld(monkeypatch, "w:1", queue_above_in_flight=1, queue_timeout_s=2.0)
    first, _ = world.ask()
    _, second = world.ask()
    world.loop.advance(2.1)
    assert second.events == [429, "queue_timeout"] and world.metrics.responses[429] == 1
    first.client_gone()
    assert world.is_clean()


def test_a_limit_is_checked_before_there_is_an_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    world = ExchangeWorld(monkeypatch, "w:1", tenants={"*": TenantLimits(max_concurrent=1)})
    exchange, _ = world.ask()
    with pytest.raises(TooManyRequests):
        world.ask()
    with pytest.raises(TooManyRequests):
        world.offer()
    assert world.dispatch.exchanges == {exchange}
    exchange.client_gone()
    tunnel, _ = world.offer()
    tunnel.client_gone()
    world.ask()[0].client_gone()
    assert world.is_clean()


def test_with_a_distributed_lock_requests_are_released_one_acquisition_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A released request books when it acquires the lock; until then no other request is released."""
    world = ExchangeWorld(monkeypatch, "w:1", "w:2", queue_above_in_flight=1)
    turns: list[Callable[[], None]] = []
    time_slice = TimeSlice(turns.append, world.router.tokenize)
    world.use(time_slice=time_slice, gate=gate_of(world.context.config, world.router, time_slice=time_slice))

    def tokenize(request: InferenceRequest) -> Prompt:
        return Prompt((tokens_of([1] * 1000),))

    gate = world.context.gate
    assert gate
    gate._tokenize = tokenize
    exchanges = [world.ask()[0] for _ in range(4)]
    assert world.in_flight() == 2  # of few tokens, not worth a turn
    for over in (0, 1):
        exchanges[over].client_gone()
        world.loop.advance(0.0)
        assert len(turns) == 1
    turns[0]()
    world.loop.advance(0.0)
    assert len(turns) == 2 and world.in_flight() == 1
    turns[1]()
    assert world.in_flight() == 2
    for exchange in exchanges[2:]:
        exchange.client_gone()
    world.loop.advance(1.0)
    assert world.is_clean()


def test_priority_headers_are_ignored_where_no_peer_is_trusted(world: ExchangeWorld) -> None:
    exchange, _ = world.ask(b'{"model":"m","prompt":[1],"priority":-9}')
    assert exchange.request.priority == 0
    exchange, _ = world.ask(b'{"model":"m","prompt":[1],"priority":9}')
    assert exchange.request.priority == 9


def test_usage_is_injected_into_streams_where_tokens_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    for limits in (TenantLimits(), TenantLimits(tokens_per_min=1000)):
        world = ExchangeWorld(monkeypatch, "w:1", tenants={"*": limits})
        world.use(ask_usage=lambda worker, is_needed: asked.append(is_needed))
        world.ask()
    assert asked == [False, True]


def test_a_request_rejected_by_a_full_queue_is_not_tokenized(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenized: list[InferenceRequest] = []
    tokenize = PromptSource.tokenize

    def counted(source: PromptSource, request: InferenceRequest) -> Prompt:
        tokenized.append(request)
        return tokenize(source, request)

    monkeypatch.setattr(PromptSource, "tokenize", counted)
    world = ExchangeWorld(monkeypatch, "w:1", queue_above_in_flight=1, queue_max_requests=2)
    waiting = [world.ask()[1] for _ in range(3)]
    assert all(not answered.events for answered in waiting)
    before = len(tokenized)
    for _ in range(5):
        with pytest.raises(TooManyRequests) as caught:
            world.ask()
        assert caught.value.should_retry and caught.value.retry_after_s
    assert len(tokenized) == before


def waiting_gate(world: ExchangeWorld) -> Gate:
    """Admission of a gateway where the model `m` starts from zero."""
    gate = gate_of(zero_config(), world.router, outlook=FakeOutlook())
    assert gate is not None
    world.use(gate=gate)
    return gate


@pytest.mark.parametrize(
    "connector, first, second",
    [("bootstrap", "d:1", "p:1"), ("bootstrap", "p:1", "d:1"), ("nixl", "p:1", "d:1")],
)
def test_at_zero_a_request_waits_until_a_prefill_and_a_decode_worker_are_up(
    monkeypatch: pytest.MonkeyPatch, connector: str, first: str, second: str
) -> None:
    world = DisaggregatedWorld(monkeypatch)
    gate = waiting_gate(world)
    exchange, answered = world.ask()
    assert len(gate.queues.models["m"].queue) == 1 and answered.events == []
    world.join(first, connector)
    world.loop.advance(LOOK_S)
    assert not world.was_asked(first)
    world.join(second, connector)
    world.loop.advance(LOOK_S)
    assert exchange.decision and exchange.decision.prefill and world.was_asked("p:1")
    exchange.client_gone()
    world.loop.advance(1.0)
    assert world.is_clean() and not gate.queues.models["m"].preparing


def test_decode_workers_without_their_prefill_workers_let_requests_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = DisaggregatedWorld(monkeypatch, "d:1", connector="bootstrap")
    gate = waiting_gate(world)
    exchange, _ = world.ask()
    assert len(gate.queues.models["m"].queue) == 1
    world.join("p:1", "bootstrap")
    world.loop.advance(LOOK_S)
    assert exchange.decision and exchange.decision.prefill
    exchange.client_gone()
    world.loop.advance(1.0)
    assert world.is_clean()


def test_model_that_nothing_expects_is_an_error_at_once(world: ExchangeWorld) -> None:
    waiting_gate(world)
    _, answered = world.ask(b'{"model":"other","prompt":[1]}')
    assert answered.events == [404, "model_not_found"]


def test_request_that_its_last_worker_did_not_answer_waits_for_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = ExchangeWorld(monkeypatch, "w:1", first_byte_timeout_s=5.0)
    gate = waiting_gate(world)
    exchange, answered = world.ask()
    world.router.fleet.set_up(WorkerId("w:1"), is_up=False)
    world.transport().lose()
    assert len(gate.queues.models["m"].queue) == 1 and world.in_flight() == 0
    world.loop.advance(20.0)
    assert answered.events == [], "timeouts of workers do not count while none is up"
    world.router.fleet.set_up(WorkerId("w:1"), is_up=True)
    world.loop.advance(LOOK_S)
    assert world.in_flight() == 1 and world.transport().out
    exchange.client_gone()
    world.loop.advance(1.0)
    assert world.is_clean()
