"""Short run of the benchmark: workers that join and leave lose no request."""

import pytest

from loadtest.day_upgrades import run


@pytest.mark.process
def test_workers_join_and_leave_and_no_request_fails() -> None:
    tally = run(2)
    assert tally.num_asked > 20
    assert not tally.failed
