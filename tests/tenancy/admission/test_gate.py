"""Admission gate: identity of requests, limits, and the settlement of their cost."""

import asyncio
from typing import Any

import pytest

from gateway.config import config_of
from gateway.config.tenant_limits import TenantLimits
from gateway.core.caller import Caller
from gateway.core.errors import TooManyRequests
from gateway.core.request import InferenceRequest
from gateway.core.route_table import RouteKind
from gateway.core.usage import Usage
from gateway.http.messages import ResponseHead
from gateway.http.response_observer import ResponseObserver
from gateway.tenancy.admission.gate import gate_of, num_generated
from gateway.tenancy.admission.saturation import Saturation
from tests.support.worlds.gate import GateWorld

NO_QUEUE = Saturation()
ONE_EACH = Saturation(max_in_flight=1)


def refused(world: GateWorld, *args: Any, **more: Any) -> TooManyRequests:
    with pytest.raises(TooManyRequests) as caught:
        world.ask(*args, **more)
    return caught.value


# identity ---------------------------------------------------------------------------------------------


def test_headers_of_a_trusted_peer_reach_policies() -> None:
    world = GateWorld(NO_QUEUE)
    request = world.ask("acme", priority=-2, slo_ms=1500).request
    assert (request.tenant, request.priority, request.slo_ttft_s) == ("acme", -2, 1.5)


def test_an_authenticated_tenant_overrides_a_declared_one() -> None:
    world = GateWorld(NO_QUEUE, tenants={"shown": TenantLimits(priority=-3)})
    request = world.ask("acme", slo_ms=1500, caller=Caller("shown")).request
    assert (request.tenant, request.priority, request.slo_ttft_s) == ("shown", -3, 1.5)


@pytest.mark.parametrize("peer", ["10.0.0.1", "", None])
def test_headers_of_other_peers_are_ignored(peer: str | None) -> None:
    world = GateWorld(NO_QUEUE)
    request = world.ask("acme", priority=-2, slo_ms=1500, peer=peer).request
    assert (request.tenant, request.priority, request.slo_ttft_s) == ("anonymous", 0, None)


def test_without_trusted_peers_headers_are_not_read() -> None:
    world = GateWorld(NO_QUEUE, trusts=())
    assert world.ask("acme", priority=-2).request.tenant == "anonymous"


@pytest.mark.parametrize(
    ("of_tenant", "in_header", "in_body", "priority"),
    [
        (0, None, None, 0),
        (0, None, 5, 5),  # any client may lower its priority
        (0, None, -5, 0),  # and none may raise it
        (-3, None, None, -3),
        (-3, None, -9, -3),
        (-3, None, 0, 0),
        (4, None, 1, 4),
        (4, -1, 9, -1),
    ],
)
def test_priority_by_header_tenant_and_body(
    of_tenant: int, in_header: int | None, in_body: int | None, priority: int
) -> None:
    world = GateWorld(NO_QUEUE, tenants={"t": TenantLimits(priority=of_tenant)})
    assert world.ask(priority=in_header, body_priority=in_body).request.priority == priority


@pytest.mark.parametrize(
    ("objective", "in_header", "peer", "priority"),
    [
        ("chat", None, "127.0.0.1", -10),
        ("batch", None, "127.0.0.1", 5),
        ("unknown", None, "127.0.0.1", 0),
        ("chat", 2, "127.0.0.1", 2),
        ("chat", None, "10.0.0.1", 3),
        (None, None, "127.0.0.1", 3),
    ],
    ids=["high", "low", "unknown", "beside a priority", "of any client", "none"],
)
def test_priority_by_an_objective_in_a_trusted_header(
    objective: str | None, in_header: int | None, peer: str, priority: int
) -> None:
    world = GateWorld(
        NO_QUEUE, tenants={"t": TenantLimits(priority=3), "anonymous": TenantLimits(priority=3)}
    )
    world.objects.objectives = {"chat": 10, "batch": -5}
    more = [(b"x-gateway-inference-objective", objective.encode())] if objective else []
    assert world.ask(priority=in_header, peer=peer, headers=more).request.priority == priority


def test_without_objectives_their_header_is_not_read() -> None:
    world = GateWorld(NO_QUEUE, tenants={"t": TenantLimits(priority=3)})
    asked = world.ask(headers=[(b"x-llm-d-inference-objective", b"chat")])
    assert asked.request.priority == 3


def test_the_slo_of_a_request_precedes_its_tenants() -> None:
    world = GateWorld(NO_QUEUE, tenants={"t": TenantLimits(slo_ttft_s=4.0)})
    assert world.ask().request.slo_ttft_s == 4.0
    assert world.ask(slo_ms=500).request.slo_ttft_s == 0.5
    assert world.ask("other").request.slo_ttft_s is None


# limits -----------------------------------------------------------------------------------------------


def test_requests_beyond_their_rate_are_rejected_with_the_remaining_quota() -> None:
    world = GateWorld(NO_QUEUE, tenants={"t": TenantLimits(requests_per_s=2)})
    first, second = world.ask(), world.ask()
    assert dict(first.more_headers)[b"x-ratelimit-remaining-requests"] == b"1"
    assert dict(second.more_headers)[b"x-ratelimit-remaining-requests"] == b"0"
    assert refused(world).kind == "requests"
    assert world.ask("another").more_headers == []
    world.loop.advance(0.5)
    world.ask()
    stats = world.gate.stats
    assert (stats.requests["t"], stats.refused["t", "rate_limit_exceeded"]) == (3, 1)
    assert stats.latest[-1]["request_id"] == "7" and "at most 2 per second" in stats.latest[-1]["message"]


def test_queued_requests_count_as_active() -> None:
    world = GateWorld(ONE_EACH, "a:1", tenants={"t": TenantLimits(max_concurrent=2)})
    first, second = world.ask(), world.ask()
    assert "2 are in flight" in refused(world).message
    world.end(second)
    third = world.ask()
    world.end(first)
    world.end(third)
    assert world.is_clean()


def test_tokens_are_taken_when_counted_and_corrected_at_the_end() -> None:
    world = GateWorld(NO_QUEUE, tenants={"t": TenantLimits(tokens_per_min=1000)})
    asked = world.ask(num_tokens=400)
    assert dict(asked.more_headers)[b"x-ratelimit-remaining-tokens"] == b"600"
    assert world.gate.needs_usage(asked.ticket)
    late = world.ask(num_tokens=700)
    assert late.events == ["429 rate_limit_exceeded"] and late.error and late.error.kind == "tokens"
    world.end(asked, Usage(prompt_tokens=410, completion_tokens=90))
    assert world.gate.tenants.of("t", world.loop.now).tokens.level(world.loop.now) == 500  # type: ignore[union-attr]
    assert dict(world.gate.stats.tokens) == {("t", "prompt"): 410, ("t", "output"): 90}
    assert not world.gate.needs_usage(world.ask("another").ticket)


def observed(head: ResponseHead, *pieces: bytes) -> ResponseObserver:
    answer = ResponseObserver(head)
    for piece in pieces:
        answer.feed(piece, 1.0)
    return answer


EVENT_STREAM = ResponseHead(200, [(b"content-type", b"text/event-stream")])
WHOLE = ResponseHead(200, [(b"content-type", b"application/json")])
EVENT = b'data: {"choices":[{"text":"x"}]}\n\n'


@pytest.mark.parametrize(
    ("kind", "answer", "usage", "num"),
    [
        (RouteKind.CHAT, observed(EVENT_STREAM, EVENT * 60, EVENT * 40), None, 100),
        (RouteKind.CHAT, observed(EVENT_STREAM, EVENT * 100), Usage(5, None), 100),
        (RouteKind.CHAT, observed(EVENT_STREAM, EVENT * 100), Usage(5, 7), 7),
        (RouteKind.AGENT, observed(WHOLE, b"x" * 400), None, 100),
        (RouteKind.COMPLETION, observed(WHOLE, b"x" * 400), Usage(5, 0), 0),
        (RouteKind.PASS, observed(WHOLE, b"x" * 400), None, 0),
        (RouteKind.PASS, observed(WHOLE, b"x" * 400), Usage(5, None), 0),
        (RouteKind.PASS, observed(EVENT_STREAM, EVENT * 100), None, 100),
        (RouteKind.CHAT, None, None, 0),
    ],
)
def test_generated_tokens_are_counted_as_reported_or_else_guessed(
    kind: RouteKind, answer: ResponseObserver | None, usage: Usage | None, num: int
) -> None:
    request = InferenceRequest(kind, "/v1/x", b"", {"model": "m"})
    assert num_generated(request, answer, usage) == num


def test_a_text_of_sglangs_own_route_is_no_embedding() -> None:
    """A list of answers, or one with long log probabilities, has no usage that is read."""
    request = InferenceRequest(RouteKind.PASS, "/generate", b"", {"model": "m"})
    assert num_generated(request, observed(WHOLE, b"x" * 400), None) == 100
    assert num_generated(request, observed(WHOLE, b"x" * 400), Usage(5, 7)) == 7
    assert num_generated(request, observed(EVENT_STREAM, EVENT * 9), Usage(5, 70)) == 70
    assert num_generated(request, observed(EVENT_STREAM, EVENT * 9), Usage(5, 7)) == 9, "of two prompts"


def test_a_rejected_request_costs_no_tokens() -> None:
    world = GateWorld(
        Saturation(max_in_flight=1), "a:1", tenants={"t": TenantLimits(tokens_per_min=1000)}, timeout_s=1.0
    )
    world.ask("another")
    world.ask("t", 300, slo_ms=1)  # rejected by the prediction
    gone, late = world.ask("t", 300), world.ask("t", 300)
    world.end(gone)
    world.loop.advance(1.1)
    assert late.events == ["429 queue_timeout"]
    tokens = world.gate.tenants.of("t", world.loop.now).tokens
    assert tokens is not None and tokens.level(world.loop.now) == 1000


@pytest.mark.parametrize(("was_sent", "left"), [(True, 600), (False, 1000)])
def test_an_unsent_request_costs_no_tokens(was_sent: bool, left: int) -> None:
    world = GateWorld(NO_QUEUE, tenants={"t": TenantLimits(tokens_per_min=1000)})
    asked = world.ask(num_tokens=400)
    world.gate.ended(asked, asked.request, None, None, was_sent=was_sent)
    tokens = world.gate.tenants.of("t", world.loop.now).tokens
    assert tokens is not None and tokens.level(world.loop.now) == left


def test_generated_tokens_count_in_the_queue() -> None:
    world = GateWorld(ONE_EACH, "a:1")
    running = world.ask("talks")
    for tenant in ("talks", "talks", "brief", "brief", "brief"):
        world.ask(tenant)
    for _ in range(5):
        world.end(running, Usage(100, 500 if running.request.tenant == "talks" else 1))
        running = world.routed[-1]
    turns = [str(asked.request.tenant) for asked in world.routed[1:]]
    assert turns == ["brief", "brief", "brief", "talks", "talks"]


# requests that are not queued ---------------------------------------------------------------------------


def test_routes_without_generation_are_not_queued() -> None:
    world = GateWorld(ONE_EACH, "a:1")
    world.ask()
    assert world.ask(path="/tokenize").events == ["routed"]
    assert world.ask().events == []


def test_an_slo_is_kept_without_a_queue() -> None:
    world = GateWorld(NO_QUEUE, "a:1")
    world.ask(num_tokens=3000)
    assert world.ask(slo_ms=3500).events == ["routed"]
    asked = world.ask(slo_ms=2000)
    assert asked.events == ["429 slo_unreachable"]
    assert world.ask().events == ["routed"]
    assert world.gate.stats.refused == {("t", "slo_unreachable"): 1}


def test_an_idle_worker_is_tried_whatever_the_slo() -> None:
    world = GateWorld(NO_QUEUE)
    world.ask(num_tokens=3000)
    assert world.ask(slo_ms=1).events == ["routed"]
    assert world.ask(slo_ms=1).events == ["429 slo_unreachable"]


def test_an_unknown_model_is_reported_by_the_decision() -> None:
    world = GateWorld(ONE_EACH)
    assert world.ask(model="unknown", slo_ms=100).events == ["routed", "404 model_not_found"]


def test_an_end_counts_once() -> None:
    world = GateWorld(NO_QUEUE)
    asked = world.ask()
    world.gate.ended(asked, asked.request, None, None)
    world.gate.ended(asked, asked.request, None, None)
    assert world.is_clean()


# from a configuration -----------------------------------------------------------------------------------


async def test_where_nothing_is_configured_there_is_no_gate() -> None:
    world: Any = GateWorld(NO_QUEUE)
    world.spare = world.on_freed = world.tokenize = None
    assert asyncio.get_running_loop()
    assert gate_of(config_of(), world) is None
    assert world.spare is None
    gate = gate_of(config_of(tenants={"a": TenantLimits()}), world)
    assert gate is not None and world.spare is None and not gate.queues.rule.is_on
    gate = gate_of(config_of(queue_above_in_flight=3), world)
    assert gate is not None and world.spare == gate.queues.spare and world.on_freed == gate.queues.freed
    assert gate_of(config_of(trust_headers_from=["10.0.0.0/8"]), world) is not None
