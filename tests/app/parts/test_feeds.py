"""Limits of workers' blocks, by the configuration and with those of the whole fleet."""

from gateway.app.parts.feeds import limits_of
from gateway.config import config_of
from gateway.core.block_limits import FleetBlocks
from gateway.core.worker import Worker, WorkerId

LIARS = [Worker(WorkerId(f"liar:{number}"), f"http://liar:{number}", ()) for number in range(3)]


def test_several_workers_that_store_too_much_are_bounded_together() -> None:
    limits = limits_of(config_of(index_max_worker_blocks=1024), FleetBlocks(2000))
    first, second, third = (limits(worker) for worker in LIARS)
    assert first.exceeded(1000, 0) is None
    assert second.exceeded(500, 500) is None
    assert "all workers together store more than 2,000 blocks" in str(third.exceeded(700, 0))
    assert "it stores 1,025 blocks" in str(first.exceeded(1025, 0))
    assert third.exceeded(700, 0) is None, "the blocks of the first are forgotten"
