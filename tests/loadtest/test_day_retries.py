"""Short run of the benchmark: half a dying fleet gets no more retries than the budget."""

import pytest

from gateway.proxy.retries import FLOOR
from loadtest.day_retries import run


@pytest.mark.process
def test_the_load_stays_within_the_budget() -> None:
    reported = run("die", 400, "--eject-after-failures", "0")
    assert reported.num_answered > 0
    assert reported.num_reached <= 1.2 * reported.num_asked + 2 * FLOOR
