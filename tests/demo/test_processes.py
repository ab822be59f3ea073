"""Simulated workers of the demo: they join, and end with the block."""

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import pytest

from gateway.core.errors import ConfigError
from gateway.demo import processes
from gateway.demo.player import Player, Side
from gateway.demo.processes import NUM_WORKERS, gateway_with_fleet
from gateway.demo.score import Score
from gateway.demo.traffic import DemoRequest, traffic

pytestmark = pytest.mark.process


def children() -> set[str]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return set(file.read().split())


async def test_the_workers_join_and_end_with_the_block() -> None:
    before = children()
    async with gateway_with_fleet(port=0, policy="round_robin") as (gateway, urls):
        assert len(list(gateway.fleet)) == len(set(urls)) == NUM_WORKERS
        assert len(children() - before) == NUM_WORKERS
    assert children() <= before


async def test_the_client_counts_what_the_gateway_counts() -> None:
    """Agents ask with tools, and some of the answers are tool calls."""
    agents = [replace(r, at_s=0.1 * i) for i, r in enumerate(islice(agent_requests(), 40))]
    async with gateway_with_fleet(port=0) as (gateway, _):
        score = Score("kvgate")
        side = Side(f"http://127.0.0.1:{gateway.port}", score)
        await Player((side,), time.monotonic).play(iter(agents))
        answered = sum(gateway.metrics.worker(each.worker.id).num_answered for each in gateway.fleet)
    assert (score.num_answered, score.num_failed) == (answered, 0) == (40, 0)


def agent_requests() -> Iterator[DemoRequest]:
    return (request for request in traffic() if request.kind == "agent")


async def test_a_worker_that_does_not_start_ends_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "SIM_FLAGS", ["--no-such-flag"])
    before = children()
    with pytest.raises(ConfigError, match="a simulated worker did not start"):
        async with gateway_with_fleet(port=0):
            pass
    assert children() <= before
