"""A short run of the benchmark: half a dying fleet is not asked for more than the budget."""

import pytest

from gateway.proxy.retries import FLOOR
from loadtest.day_retries import run


@pytest.mark.process
def test_the_load_stays_within_the_budget() -> None:
    told = run("die", 400, "--eject-after-failures", "0")
    assert told.num_answered > 0
    assert told.num_reached <= 1.2 * told.num_asked + 2 * FLOOR
