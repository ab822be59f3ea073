"""The figures of a fleet of zero: what is lost, and what counts as waiting."""

import pytest

from loadtest.bench_zero import ColdStartRun, cold_start

pytestmark = pytest.mark.process


def test_requests_sent_before_the_worker_was_ready_waited() -> None:
    run = ColdStartRun([1.0, 2.0, 3.0, 6.0], [5.5, None, 5.25, 6.5], 5.0, 10.0, 12.0)
    assert run.num_lost == 1 and run.after_start_ms == [250.0, 500.0]


async def test_no_request_is_lost_in_a_cold_start() -> None:
    run = await cold_start(per_s=20.0, cold_s=0.5, more_s=0.5)
    assert run.num_lost == 0 and len(run.after_start_ms) > 5
    assert min(run.after_start_ms) > 0.0
