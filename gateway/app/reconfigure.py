"""A running gateway takes another configuration: first all that can fail, then all at once.

`live=` in an option's declaration lists what may change; each such option has its place here.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from engines import DEFAULT_CONNECTORS, KV_CONNECTORS
from gateway.app.front_end import check_bodies, routes_of
from gateway.config import Config
from gateway.config.worker_specs import parse_spec
from gateway.discovery.declared import declared_settings
from gateway.http.networks import Trusted
from gateway.tenancy.admission.gate import follow, gate_of
from gateway.tenancy.admission.request_identity import trusted_peers
from gateway.tenancy.auth import credentials

if TYPE_CHECKING:
    from gateway.app.gateway import Gateway

Swap = Callable[[], None]
"""Applies a prepared configuration. It cannot fail and has no await, so each request sees either the old
values or the new ones."""


async def prepare(
    gateway: "Gateway",
    config: Config,
    added: Sequence[str] = (),
    dropped: Sequence[str] = (),
    policy_source: str | None = None,
) -> Swap:
    """Validate a new configuration and return the swap that applies it. Raises ConfigError, with nothing
    changed."""
    trusted = trusted_peers(config)
    gateway.check_workers([parse_spec(spec)[0] for spec in added])
    declared_settings(config, KV_CONNECTORS, DEFAULT_CONNECTORS)
    check_bodies(config)
    credentials.check(config)
    chosen = await gateway.active_policy.prepare(config, policy_source)
    return partial(
        _swap, gateway, config, trusted, added, dropped, partial(gateway.active_policy.use, *chosen)
    )


def _swap(
    gateway: "Gateway",
    config: Config,
    trusted: Trusted,
    added: Sequence[str],
    dropped: Sequence[str],
    choose: Swap,
) -> None:
    dispatch = gateway.dispatch
    gateway.config = config
    choose()
    gateway.watch_experiments()
    dispatch.reconfigure(config, gateway.asking())
    if (gate := dispatch.context.gate) is not None:
        gate.reconfigure(config)
        follow(gateway.router, gate.queues)
    else:
        time_slice = dispatch.context.time_slice
        dispatch.open_gate(gate_of(config, gateway.router, gateway.quota_usage, time_slice))
    gateway.api.routes = routes_of(config)
    gateway.surface.bodies.max_bytes = config.server.body_memory_bytes
    gateway.credentials.reconfigure(config)
    gateway.front.take(config)
    gateway.roster.look_every(config.lifecycle.probe_interval_s)
    gateway.telemetry.take(config)
    if gateway.telemetry.traces is not None:
        gateway.telemetry.traces.trusts = trusted.trusts
    logging.getLogger().setLevel(config.log.level.upper())
    for spec in dropped:
        gateway.drop_worker(parse_spec(spec)[0])
    for spec in added:
        gateway.add_worker(*parse_spec(spec))
