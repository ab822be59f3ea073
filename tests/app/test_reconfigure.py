"""Each live option changes a running gateway, and a rejected reload changes nothing."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.app import Gateway
from gateway.app.reconfigure import prepare
from gateway.config import Config, by_key, config_of, load, replaced
from gateway.config.worker_specs import specs_of
from gateway.core.errors import ConfigError

POLICY = "def choose(query, candidates, rng):\n    return 0\n"


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[Gateway]:
    gateway = Gateway(load(options, {}))
    await gateway.start(serve=False)
    try:
        yield gateway
    finally:
        await gateway.stop(0)


def in_use(gateway: Gateway) -> Config:
    return gateway.dispatch.context.config


def gate(gateway: Gateway) -> Any:
    return gateway.dispatch.context.gate


def limits(gateway: Gateway) -> Any:
    return gateway.front._limits


def urls(gateway: Gateway) -> list[str]:
    return [endpoint.url for endpoint in gateway.roster]


def policy(gateway: Gateway) -> str:
    return gateway.router.policy.name


def known(gateway: Gateway) -> Any:
    return gateway.active_policy.describe()["available"]


def bounded(gateway: Gateway) -> bool:
    return gateway.router.spare is not None


def max_in_flight(gateway: Gateway) -> Any:
    return gate(gateway).tenants.of("t", 0.0).limits.max_concurrent


LIVE = [each.key for each in by_key().values() if each.live]

SEEN: dict[str, tuple[Any, Callable[[Gateway], object], object]] = {
    "worker": (["http://127.0.0.1:1"], urls, ["http://127.0.0.1:1"]),
    "prefill": (["http://127.0.0.1:1"], lambda g: [r.value for r in g.declared.roles.values()], ["prefill"]),
    "decode": (["http://127.0.0.1:1"], lambda g: [r.value for r in g.declared.roles.values()], ["decode"]),
    "policy": ("round_robin", policy, "round_robin"),
    "policies": (
        {"mine": {"policy": "least_load"}},
        lambda g: "mine" in known(g),
        True,
    ),
    "policy_file": ("FILE", policy, "file"),
    "policy_budget_ms": (7.0, lambda g: g.active_policy._made.library._budget_s, 0.007),
    "policy_ab": (
        {"round_robin": 1, "least_load": 1},
        lambda g: g.active_policy.experiments.finished in g.observers.finished,
        True,
    ),
    "policy_shadow": (["round_robin"], lambda g: [*g.active_policy.experiments.comparisons], ["round_robin"]),
    "policy_medium_worth": (["CPU=0.3"], lambda g: g.active_policy._made.library._worth["CPU"], 0.3),
    "location": ("rack1", lambda g: g.active_policy._made.library._place, "rack1"),
    "session_header": ("x-talk", lambda g: in_use(g).headers.session_header, "x-talk"),
    "session_cookie": ("talk", lambda g: in_use(g).headers.session_cookie, "talk"),
    "queue_above_ttft_s": (2.0, lambda g: gate(g).queues.rule.above_ttft_s, 2.0),
    "queue_above_in_flight": (
        3,
        lambda g: (gate(g).queues.rule.max_in_flight, bounded(g)),
        (3, True),
    ),
    "queue_max_requests": (5, lambda g: gate(g).queues._max_queued, 5),
    "queue_timeout_s": (6.0, lambda g: gate(g).queues._timeout_s, 6.0),
    "tenants": (
        {"t": {"max_concurrent": 4}},
        max_in_flight,
        4,
    ),
    "trust_headers_from": (["10.0.0.0/8"], lambda g: gate(g)._trusted.trusts("10.1.1.1"), True),
    "tenant_header": ("x-t", lambda g: gate(g)._names.tenant, b"x-t"),
    "priority_header": ("x-p", lambda g: gate(g)._names.priority, b"x-p"),
    "slo_header": ("x-s", lambda g: gate(g)._names.slo_ttft_ms, b"x-s"),
    "connect_timeout_s": (1.5, lambda g: g.pools.of("http://127.0.0.1:9").connect_timeout_s, 1.5),
    "first_byte_timeout_s": (1.5, lambda g: in_use(g).proxy.first_byte_timeout_s, 1.5),
    "idle_timeout_s": (1.5, lambda g: in_use(g).proxy.idle_timeout_s, 1.5),
    "total_timeout_s": (1.5, lambda g: in_use(g).proxy.total_timeout_s, 1.5),
    "stream_keepalive_s": (1.5, lambda g: in_use(g).proxy.stream_keepalive_s, 1.5),
    "pool_idle_s": (1.5, lambda g: g.pools.of("http://127.0.0.1:9").idle_s, 1.5),
    "max_attempts": (
        5,
        lambda g: (in_use(g).proxy.max_attempts, g.dispatch.context.retries.max_attempts),
        (5, 5),
    ),
    "retry_share": (0.5, lambda g: g.dispatch.context.retries.share, 0.5),
    "route": (["/sleep"], lambda g: "/sleep" in g.api.routes, True),
    "close_route": (["/generate"], lambda g: "/generate" in g.api.routes, False),
    "body_memory_bytes": (1 << 31, lambda g: g.surface.bodies.max_bytes, 1 << 31),
    "disaggregation_prefill_timeout_s": (1.5, lambda g: in_use(g).disaggregation.prefill_timeout_s, 1.5),
    "allow_transfer_fields": (True, lambda g: in_use(g).proxy.allow_transfer_fields, True),
    "expose_headers": (True, lambda g: in_use(g).headers.expose_headers, True),
    "probe_interval_s": (1.5, lambda g: g.roster._options.probe_interval_s, 1.5),
    "usage_injection": ("off", lambda g: g.dispatch.context.ask_usage.__self__._mode, "off"),  # type: ignore[attr-defined]
    "max_body_bytes": (2048, lambda g: limits(g).max_body_bytes, 2048),
    "head_timeout_s": (1.5, lambda g: (limits(g).head_timeout_s, g.front._handshake_timeout_s), (1.5, 1.5)),
    "body_timeout_s": (1.5, lambda g: limits(g).body_timeout_s, 1.5),
    "min_body_rate": (1.5, lambda g: limits(g).min_body_rate, 1.5),
    "keep_alive_s": (1.5, lambda g: limits(g).keep_alive_s, 1.5),
    "log_level": ("error", lambda g: logging.getLogger().level, logging.ERROR),
    "log_requests": (True, lambda g: len(g.telemetry.end_observers), 1),
    "drain_timeout_s": (1.5, lambda g: g.config.server.drain_timeout_s, 1.5),
}
"""For each option: another value, the part that it changes, and that part's value then."""

HEADERS = ("tenant_header", "priority_header", "slo_header")
WITH_A_GATE = {"queue_above_in_flight": 1, "tenants": {"t": {"max_concurrent": 9}}}


def test_every_live_option_is_covered() -> None:
    assert SEEN.keys() == set(LIVE)


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
        gateway.pools.of("http://127.0.0.1:9")
        given = {**before, name: value}
        if name in ("queue_max_requests", "queue_timeout_s") or name in HEADERS:
            given = {**WITH_A_GATE, **given}  # without flow control these options have no effect
        config = load(given, {})
        added = specs_of(config)
        try:
            assert before.get(name) is not None or _is_new(seen, gateway, expected)
            (await prepare(gateway, config, added))()
            assert seen(gateway) == expected
        finally:
            logging.getLogger().setLevel(level)


def _is_new(seen: Callable[[Gateway], object], gateway: Gateway, expected: object) -> bool:
    try:
        return seen(gateway) != expected
    except (AttributeError, KeyError):  # its part does not exist yet
        return True


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"policy": "best"}, "no policy"),
        ({"body_memory_bytes": 1000}, "no room for one"),
        ({"policy_file": "/none/such.py"}, "cannot be read"),
        ({"mask_cached_tokens": True, "expose_headers": True}, "discloses the hidden counts"),
        ({"prefill": ["http://a:1"], "decode": ["http://a:1"]}, "is a --prefill worker too"),
    ],
)
async def test_a_rejected_reload_changes_nothing(change: dict[str, Any], words: str) -> None:
    async with running(**WITH_A_GATE) as gateway:
        before = (gateway.config, in_use(gateway), policy(gateway), gate(gateway).queues.rule)
        config = replaced(gateway.config, max_attempts=9, queue_above_in_flight=7, **change)
        with pytest.raises(ConfigError, match=words):
            await prepare(gateway, config)
        assert before == (gateway.config, in_use(gateway), policy(gateway), gate(gateway).queues.rule)


async def test_workers_are_added_dropped_and_kept() -> None:
    async with running(worker=["http://127.0.0.1:1", "http://127.0.0.1:2"]) as gateway:
        swap = await prepare(
            gateway, gateway.config, added=["http://127.0.0.1:3"], dropped=["http://127.0.0.1:1"]
        )
        assert urls(gateway) == ["http://127.0.0.1:1", "http://127.0.0.1:2"]
        swap()
        assert urls(gateway) == ["http://127.0.0.1:2", "http://127.0.0.1:3"]


async def test_turning_flow_control_off_admits_all_waiting_requests() -> None:
    async with running(**WITH_A_GATE) as gateway:
        (await prepare(gateway, config_of()))()
        await asyncio.sleep(0)
        assert not gate(gateway).queues.rule.is_on and max_in_flight(gateway) == 0
