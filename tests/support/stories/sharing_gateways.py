"""Gateways that share Redis, before the same simulated engines."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from gateway.app import Gateway
from gateway.config import replaced
from gateway.replication.redis_link import ReplicaTimes
from gateway.replication.replica_feed import ReplicaFeed
from tests.support.gateway_process import GatewayProcess
from tests.support.redis_servers import Server, Several
from tests.support.stories.fleet_story import FleetStory, fleet_story


@dataclass(frozen=True)
class Pace:
    times: ReplicaTimes
    timeout_s: float


LASTING = Pace(ReplicaTimes(lease_s=60, renew_s=0.1, ask_s=0.1, grace_s=20, pause_s=0.01), 10)
"""Leases long enough that leaders change only by what a story does, however slow the machine is."""
QUICK = Pace(
    ReplicaTimes(lease_s=0.6, renew_s=0.1, grace_s=0.5, direct_after_s=0.4, retry_s=0.05, pause_s=0.01), 0.3
)
"""Short leases, for stories that lose Redis: leaders may change at any time, also on a slow machine."""


@asynccontextmanager
async def sharing_gateway(
    first: FleetStory,
    server: Server | Several,
    pace: Pace = LASTING,
    *,
    kind: type[FleetStory] = FleetStory,
    **options: Any,
) -> AsyncIterator[Any]:
    """A gateway that shares Redis, before the engines of `first`, which itself shares nothing."""
    changes = {"redis": server.url, "redis_timeout_s": pace.timeout_s} | options
    gateway = Gateway(replaced(first.gateway.config, **changes))
    assert gateway.parts.index.shared
    gateway.parts.index.shared.times = pace.times
    await gateway.start()
    try:
        s = kind(gateway, first.sims, first.session)
        await s.until(lambda: len(gateway.fleet) == len(first.gateway.fleet))
        yield s
    finally:
        await gateway.stop()


Join = Callable[..., AbstractAsyncContextManager[Any]]
"""`sharing_gateway`, or a function that calls it."""


@asynccontextmanager
async def sharing_gateways(
    server: Server | Several, num: int = 2, pace: Pace = LASTING, *, join: Join = sharing_gateway, **sim: Any
) -> AsyncIterator[tuple[FleetStory, list[Any]]]:
    """Simulated engines and `num` gateways that share Redis, each made by `join`; the first one leads."""
    async with fleet_story(**sim) as first, AsyncExitStack() as stack:
        sharing = []
        for _ in range(num):
            sharing.append(await stack.enter_async_context(join(first, server, pace=pace)))
            await sharing[-1].settled()
            if "replay_buffer" in sim:
                await sharing[-1].until_subscribed()
        yield first, sharing


def feeds(s: FleetStory) -> list[ReplicaFeed]:
    assert s.gateway.parts.index.shared
    return list(s.gateway.parts.index.shared.feeds.values())


def num_led(s: FleetStory) -> int:
    return sum(feed.leader is not None for feed in feeds(s))


def sums(s: FleetStory) -> dict[str, int]:
    names = ("num_takeovers", "num_fenced", "num_rewrites", "num_resyncs")
    return {name: sum(getattr(feed.counts, name) for feed in feeds(s)) for name in names}


async def all_settled(*gateways: FleetStory) -> None:
    for s in gateways:
        await s.settled()


async def until_leader(s: FleetStory) -> None:
    await s.until(lambda: num_led(s) == len(s.sims))


def metric(running: GatewayProcess, name: str) -> float:
    lines = [line for line in running.metrics().splitlines() if line.startswith(f"kvgate_{name}{{")]
    return sum(float(line.split()[-1]) for line in lines)


BRISK = Pace(
    ReplicaTimes(
        lease_s=60, renew_s=0.1, ask_s=0.1, grace_s=20, direct_after_s=0.4, retry_s=0.05, pause_s=0.01
    ),
    10,
)
"""A leader keeps its lease for the whole story, and has the first claim to a lost one; followers soon read
the events themselves."""
EQUAL = Pace(replace(BRISK.times, grace_s=0.1), 10)
"""Any gateway may have the lease in the end."""


async def until_shared_again(*gateways: FleetStory) -> None:
    for s in gateways:
        await s.until(lambda s=s: not any(feed._direct for feed in feeds(s)))  # type: ignore[misc]
    first = gateways[0]
    await first.until(lambda: not any(s.gateway.parts.index.shared.error_reporter for s in gateways))  # type: ignore[union-attr]
    await first.until(lambda: sum(map(num_led, gateways)) == len(first.sims))
    await all_settled(*gateways)


@asynccontextmanager
async def leader_process(
    first: FleetStory, server: Server, index: str = "replicated"
) -> AsyncIterator[GatewayProcess]:
    """A gateway process that leads both workers. A thread starts it, since the engines run in this loop."""
    workers = [flag for sim in first.sims for flag in ("--worker", sim.url)]
    tokenizer = first.gateway.config.tokenizer.path[0]
    flags = ("--tokenizer", tokenizer, "--redis", server.url, "--probe-interval-s", "0.2")
    leader = GatewayProcess(*workers, *flags, "--index", index)
    await asyncio.to_thread(leader.__enter__)
    try:
        await first.until(lambda: metric(leader, "replica_leader") == 2)
        yield leader
    finally:
        if leader.process.poll() is None:
            leader.process.send_signal(signal.SIGCONT)
        await asyncio.to_thread(leader.stop)
        log = leader.log()
        leader._log.close()
        assert "Traceback" not in log and " ERROR " not in log, log
