"""Simulated workers of the demo: they join, and end with the block."""

import os

import pytest

from gateway.core.errors import ConfigError
from gateway.demo import processes
from gateway.demo.processes import NUM_WORKERS, gateway_with_fleet

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


async def test_a_worker_that_does_not_start_ends_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "SIM_FLAGS", ["--no-such-flag"])
    before = children()
    with pytest.raises(ConfigError, match="a simulated worker did not start"):
        async with gateway_with_fleet(port=0):
            pass
    assert children() <= before
