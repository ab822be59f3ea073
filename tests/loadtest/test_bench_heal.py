"""The figure `stream.heal_requests`, and its definition."""

import pytest

from loadtest import bench_heal
from loadtest.bench_heal import ENGINES, GOAL, heal

pytestmark = pytest.mark.process


@pytest.mark.parametrize("engine", ENGINES)
async def test_each_hot_prefix_is_known_after_two_requests(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_heal, "NUM_PREFIXES", 3)
    healed = await heal(**ENGINES[engine])
    assert len(healed) == 3
    for each in healed:
        assert 1 < each.num_requests <= GOAL  # a prefix known at once would not have been lost
        assert each.num_known >= each.num_cached > 0
