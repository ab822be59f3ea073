import asyncio

import pytest

from gateway.models.late_calls import MAX_LATE, LateCalls
from tests.support.patience import patience, until


async def test_a_call_in_time_has_its_result_and_its_errors() -> None:
    calls = LateCalls(patience(5))

    async def answer() -> int:
        return 7

    async def fail() -> int:
        raise ValueError("no")

    assert await calls.run(answer(), patience(5)) == 7
    with pytest.raises(ValueError, match="no"):
        await calls.run(fail(), patience(5))
    assert len(calls) == 0


async def test_a_call_goes_on_after_its_caller_and_ends_by_itself() -> None:
    calls, gate, ended = LateCalls(patience(20)), asyncio.Event(), []

    async def slow() -> None:
        await gate.wait()
        ended.append(1)
        raise ValueError("no caller waits for it")

    with pytest.raises(TimeoutError):
        await calls.run(slow(), 0.01)
    assert (len(calls), ended) == (1, []) and "1 go on" in repr(calls)
    gate.set()
    await until(lambda: not len(calls), "it ended")
    assert ended == [1]


async def test_a_call_ends_at_the_limit() -> None:
    calls = LateCalls(0.01)
    with pytest.raises(TimeoutError):
        await calls.run(asyncio.Event().wait(), patience(60))


async def test_calls_that_go_on_are_bounded_and_can_be_cancelled() -> None:
    calls, num_cancelled = LateCalls(patience(60)), 0

    async def endless() -> None:
        nonlocal num_cancelled
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            num_cancelled += 1
            raise

    for _ in range(MAX_LATE + 3):
        with pytest.raises(TimeoutError):
            await calls.run(endless(), 0.001)
    await until(lambda: num_cancelled == 3, "those beyond the bound are cancelled")
    assert len(calls) == MAX_LATE
    calls.cancel()
    await until(lambda: num_cancelled == MAX_LATE + 3 and not len(calls), "all are cancelled")


async def test_a_call_ends_with_a_caller_that_is_cancelled() -> None:
    calls, begun, gone = LateCalls(patience(60)), asyncio.Event(), asyncio.Event()

    async def endless() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            gone.set()

    caller = asyncio.get_running_loop().create_task(calls.run(endless(), patience(60)))
    await begun.wait()
    caller.cancel()
    async with asyncio.timeout(patience(20)):
        await gone.wait()
    assert caller.cancelled() and len(calls) == 0
