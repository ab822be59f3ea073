import asyncio
from collections.abc import Generator

import pytest

from gateway.runtime import work_slices
from gateway.runtime.work_slices import SLICE_S, in_slices


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Time, which each step advances by half a slice."""
    times = [0.0]
    monkeypatch.setattr(work_slices, "perf_counter", lambda: times[0])
    return times


async def test_others_have_their_turn_after_each_slice(now: list[float]) -> None:
    order: list[object] = []

    def steps() -> Generator[None, None, str]:
        for number in range(6):
            order.append(number)
            now[0] += SLICE_S / 2
            yield
        return "the result"

    async def other() -> None:
        while 5 not in order:
            order.append("other")
            await asyncio.sleep(0)

    result, _ = await asyncio.gather(in_slices(steps()), other())
    assert result == "the result"
    assert order == [0, 1, "other", 2, 3, "other", 4, 5]


async def test_an_error_of_a_step_is_raised(now: list[float]) -> None:
    def steps() -> Generator[None]:
        yield
        raise ValueError("not a list")

    with pytest.raises(ValueError, match="not a list"):
        await in_slices(steps())
