"""The figures of `make bench-kube`: what they count."""

import pytest

from loadtest import bench_kube
from loadtest.bench_kube import core_share, delays_ms, listed

pytestmark = pytest.mark.process


async def test_changes_reach_routing() -> None:
    delays = await delays_ms(2)
    assert len(delays) == 2
    assert all(changed > 0.0 and joined > 0.0 for changed, joined in delays)


def test_a_list_is_compared_and_changes_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_kube, "NUM_PODS", 250)
    cpu_ms, megabytes = listed()
    assert cpu_ms > 0.0 and megabytes > 0.05
    assert core_share(500) > 0.0
