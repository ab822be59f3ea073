"""A short run of the benchmark: workers that come and go lose no request."""

import pytest

from loadtest.day_upgrades import run


@pytest.mark.process
def test_workers_come_and_go_and_nothing_fails() -> None:
    tally = run(2)
    assert tally.num_asked > 20
    assert not tally.failed
