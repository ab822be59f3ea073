"""The figure `redis.burst_moved`, and that it means what it says."""

import pytest

from gateway.redis.server import EmbeddedServer
from loadtest import bench_bookings
from loadtest.bench_bookings import BURST, NUM_WORKERS, bursts, moved


def test_what_went_elsewhere_is_counted_in_hundredths() -> None:
    assert moved([31, 11, 11, 11], [31, 11, 11, 11]) == 0
    assert moved([16, 16, 16, 16], [64, 0, 0, 0]) == 75


@pytest.mark.process
async def test_every_request_of_a_burst_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_bookings, "NUM_BURSTS", 1)
    server = EmbeddedServer()
    server.start()
    try:
        (spread,) = await bursts(server.url, "shared", num_gateways=2)
    finally:
        server.stop()
    assert (sum(spread), len(spread)) == (BURST, NUM_WORKERS)
