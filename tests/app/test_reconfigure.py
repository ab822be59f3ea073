"""Each live option changes a running gateway, and a rejected reload changes nothing."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.app import Gateway
from gateway.app.component import ConfigChange
from gateway.app.gateway_parts import Parts
from gateway.config import Config, by_key, config_of, load, replaced
from gateway.config.worker_specs import specs_of
from gateway.core.errors import ConfigError
from gateway.routing.active_policy import ActivePolicy

POLICY = "def choose(query, candidates, rng):\n    return 0\n"


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[Gateway]:
    gateway = Gateway(load(options, {}))
    await gateway.start(serve=False)
    try:
        yield gateway
    finally:
        await gateway.stop(0)


def in_use(parts: Parts) -> Config:
    return parts.requests.dispatch.context.config


def gate(parts: Parts) -> Any:
    return parts.requests.gate


def limits(parts: Parts) -> Any:
    return parts.front_door.listener._limits


def urls(parts: Parts) -> list[str]:
    return [endpoint.url for endpoint in parts.roster.roster]


def roles(parts: Parts) -> list[str]:
    return [role.value for role in parts.workers.declared.roles.values()]


def policy(parts: Parts) -> str:
    return parts.routing.router.policy.name


def active(parts: Parts) -> ActivePolicy:
    return parts.policies.active_policy


def library(parts: Parts) -> Any:
    return active(parts)._made.library


def pool(parts: Parts) -> Any:
    return parts.upstream.pools.of("http://127.0.0.1:9")


def bounded(parts: Parts) -> bool:
    return parts.routing.router.spare is not None


def max_in_flight(parts: Parts) -> Any:
    return gate(parts).tenants.of("t", 0.0).limits.max_concurrent


LIVE = [each.key for each in by_key().values() if each.live]

SEEN: dict[str, tuple[Any, Callable[[Parts], object], object]] = {
    "worker": (["http://127.0.0.1:1"], urls, ["http://127.0.0.1:1"]),
    "prefill": (
        ["http://127.0.0.1:1"],
        roles,
        ["prefill"],
    ),
    "decode": (
        ["http://127.0.0.1:1"],
        roles,
        ["decode"],
    ),
    "policy": ("round_robin", policy, "round_robin"),
    "policies": (
        {"mine": {"policy": "least_load"}},
        lambda p: "mine" in active(p).describe()["available"],
        True,
    ),
    "policy_file": ("FILE", policy, "file"),
    "policy_budget_ms": (7.0, lambda p: library(p)._budget_s, 0.007),
    "policy_ab": (
        {"round_robin": 1, "least_load": 1},
        lambda p: active(p).experiments.finished in p.observers.finished,
        True,
    ),
    "policy_shadow": (
        ["round_robin"],
        lambda p: [*active(p).experiments.comparisons],
        ["round_robin"],
    ),
    "policy_medium_worth": (
        ["CPU=0.3"],
        lambda p: library(p)._worth["CPU"],
        0.3,
    ),
    "location": ("rack1", lambda p: library(p)._place, "rack1"),
    "session_header": ("x-talk", lambda p: in_use(p).headers.session_header, "x-talk"),
    "session_cookie": ("talk", lambda p: in_use(p).headers.session_cookie, "talk"),
    "queue_above_ttft_s": (2.0, lambda p: gate(p).queues.rule.above_ttft_s, 2.0),
    "queue_above_in_flight": (
        3,
        lambda p: (gate(p).queues.rule.max_in_flight, bounded(p)),
        (3, True),
    ),
    "queue_max_requests": (5, lambda p: gate(p).queues._max_queued, 5),
    "queue_timeout_s": (6.0, lambda p: gate(p).queues._timeout_s, 6.0),
    "scaling_models": (["a"], lambda p: p.scaling.planner.expects("a"), True),
    "scaling_zero_wait_s": (6.0, lambda p: gate(p).queues.zero.wait_s, 6.0),
    "scaling_zero_max_requests": (7, lambda p: gate(p).queues.zero.max_requests, 7),
    "scaling_zero_max_bytes": (8, lambda p: gate(p).queues.zero.max_bytes, 8),
    "tenants": (
        {"t": {"max_concurrent": 4}},
        max_in_flight,
        4,
    ),
    "trust_headers_from": (["10.0.0.0/8"], lambda p: gate(p)._trusted.trusts("10.1.1.1"), True),
    "tenant_header": ("x-t", lambda p: gate(p)._names.tenant, b"x-t"),
    "priority_header": ("x-p", lambda p: gate(p)._names.priority, b"x-p"),
    "slo_header": ("x-s", lambda p: gate(p)._names.slo_ttft_ms, b"x-s"),
    "connect_timeout_s": (
        1.5,
        lambda p: pool(p).connect_timeout_s,
        1.5,
    ),
    "first_byte_timeout_s": (1.5, lambda p: in_use(p).proxy.first_byte_timeout_s, 1.5),
    "idle_timeout_s": (1.5, lambda p: in_use(p).proxy.idle_timeout_s, 1.5),
    "total_timeout_s": (1.5, lambda p: in_use(p).proxy.total_timeout_s, 1.5),
    "stream_keepalive_s": (1.5, lambda p: in_use(p).proxy.stream_keepalive_s, 1.5),
    "pool_idle_s": (1.5, lambda p: pool(p).idle_s, 1.5),
    "max_attempts": (
        5,
        lambda p: (in_use(p).proxy.max_attempts, p.requests.dispatch.context.retries.max_attempts),
        (5, 5),
    ),
    "retry_share": (0.5, lambda p: p.requests.dispatch.context.retries.share, 0.5),
    "route": (["/sleep"], lambda p: "/sleep" in p.api.api.routes, True),
    "close_route": (["/generate"], lambda p: "/generate" in p.api.api.routes, False),
    "body_memory_bytes": (1 << 31, lambda p: p.surface.bodies.max_bytes, 1 << 31),
    "disaggregation_prefill_timeout_s": (1.5, lambda p: in_use(p).disaggregation.prefill_timeout_s, 1.5),
    "allow_transfer_fields": (True, lambda p: in_use(p).proxy.allow_transfer_fields, True),
    "expose_headers": (True, lambda p: in_use(p).headers.expose_headers, True),
    "probe_interval_s": (1.5, lambda p: p.roster.roster._options.probe_interval_s, 1.5),
    "usage_injection": ("off", lambda p: p.requests.dispatch.context.ask_usage.__self__._mode, "off"),  # type: ignore[attr-defined]
    "max_body_bytes": (2048, lambda p: limits(p).max_body_bytes, 2048),
    "head_timeout_s": (
        1.5,
        lambda p: (limits(p).head_timeout_s, p.front_door.listener._handshake_timeout_s),
        (1.5, 1.5),
    ),
    "body_timeout_s": (1.5, lambda p: limits(p).body_timeout_s, 1.5),
    "min_body_rate": (1.5, lambda p: limits(p).min_body_rate, 1.5),
    "keep_alive_s": (1.5, lambda p: limits(p).keep_alive_s, 1.5),
    "log_level": ("error", lambda p: logging.getLogger().level, logging.ERROR),
    "log_requests": (True, lambda p: len(p.telemetry.telemetry.end_observers), 1),
    "warming_share": (
        0.5,
        lambda p: (p.warming.warmer.limits.share, p.warming.warmer.decided in p.observers.decided),
        (0.5, True),
    ),
    "warming_max_prefixes": (3, lambda p: p.warming.warmer.limits.max_prefixes, 3),
    "warming_max_s": (1.5, lambda p: p.warming.warmer.limits.max_s, 1.5),
    "warming_hold_s": (1.5, lambda p: p.warming.warmer.limits.hold_s, 1.5),
    "warming_keep_bytes": (1 << 20, lambda p: p.warming.warmer.prefixes.max_bytes, 1 << 20),
    "warming_keep_s": (1.5, lambda p: p.warming.warmer.prefixes.keep_s, 1.5),
    "drain_timeout_s": (1.5, lambda p: p.reloads.config.server.drain_timeout_s, 1.5),
}
"""For each option: another value, the part that it changes, and that part's value then."""

HEADERS = ("tenant_header", "priority_header", "slo_header")
WITH_A_GATE = {"queue_above_in_flight": 1, "tenants": {"t": {"max_concurrent": 9}}}


def test_every_live_option_is_covered() -> None:
    assert set(LIVE) - SEEN.keys() == set(), "each needs a line in SEEN"
    assert SEEN.keys() - set(LIVE) == set(), "these are not live (any more)"


@pytest.mark.parametrize("before", [{}, WITH_A_GATE], ids=["plain", "with flow control"])
@pytest.mark.parametrize("name", LIVE)
async def test_a_live_option_changes_the_running_gateway(
    name: str, before: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "file.py").write_text(POLICY)
    value, seen, expected = SEEN[name]
    value = str(tmp_path / "file.py") if value == "FILE" else value
    level = logging.getLogger().level
    async with running(**before) as gateway:
        pool(gateway.parts)
        given = {**before, name: value}
        if name in ("queue_max_requests", "queue_timeout_s") or name in HEADERS:
            given = {**WITH_A_GATE, **given}  # without flow control these options have no effect
        if name.startswith("scaling_zero"):
            given = {"scaling_models": ["m"], **given}  # else no model starts from zero
        config = load(given, {})
        added = specs_of(config)
        try:
            assert before.get(name) is not None or _is_new(seen, gateway.parts, expected)
            (await gateway.prepare(ConfigChange(config, added)))()
            assert seen(gateway.parts) == expected
        finally:
            logging.getLogger().setLevel(level)


def _is_new(seen: Callable[[Parts], object], parts: Parts, expected: object) -> bool:
    try:
        return seen(parts) != expected
    except (AttributeError, KeyError):  # its part does not exist yet
        return True


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"policy": "best"}, "no policy"),
        ({"body_memory_bytes": 1000}, "is less than max_body_bytes"),
        ({"policy_file": "/none/such.py"}, "cannot be read"),
        ({"mask_cached_tokens": True, "expose_headers": True}, "discloses the hidden counts"),
        ({"prefill": ["http://a:1"], "decode": ["http://a:1"]}, "is a --prefill worker too"),
    ],
)
async def test_a_rejected_reload_changes_nothing(change: dict[str, Any], words: str) -> None:
    async with running(**WITH_A_GATE) as gateway:
        parts = gateway.parts
        before = (gateway.config, in_use(parts), policy(parts), gate(parts).queues.rule)
        config = replaced(gateway.config, max_attempts=9, queue_above_in_flight=7, **change)
        with pytest.raises(ConfigError, match=words):
            await gateway.prepare(ConfigChange(config))
        assert before == (gateway.config, in_use(parts), policy(parts), gate(parts).queues.rule)


async def test_workers_are_added_dropped_and_kept() -> None:
    async with running(worker=["http://127.0.0.1:1", "http://127.0.0.1:2"]) as gateway:
        swap = await gateway.prepare(
            ConfigChange(gateway.config, added=["http://127.0.0.1:3"], dropped=["http://127.0.0.1:1"])
        )
        assert urls(gateway.parts) == ["http://127.0.0.1:1", "http://127.0.0.1:2"]
        swap()
        assert urls(gateway.parts) == ["http://127.0.0.1:2", "http://127.0.0.1:3"]


async def test_turning_flow_control_off_admits_all_waiting_requests() -> None:
    async with running(**WITH_A_GATE) as gateway:
        (await gateway.prepare(ConfigChange(config_of())))()
        await asyncio.sleep(0)
        assert not gate(gateway.parts).queues.rule.is_on and max_in_flight(gateway.parts) == 0
