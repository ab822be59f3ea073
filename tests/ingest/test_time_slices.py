"""Time slices of event readers: short together, fair, and none lost."""

import asyncio
from itertools import count

import pytest

from gateway.ingest.time_slices import TimeSlices
from gateway.runtime.work_slices import SLICE_S
from tests.support.patience import until


async def test_calls_together_hold_the_loop_for_one_slice() -> None:
    """The clock advances by half a slice per reading, so two calls fit each slice."""
    time_slices, called = TimeSlices(clock=count(0, SLICE_S / 2).__next__), list[int]()
    for i in range(5):
        time_slices.add(lambda i=i: called.append(i))  # type: ignore[misc]
    assert repr(time_slices) == "TimeSlices(5 waiting)"
    seen = []
    while len(called) < 5:
        await asyncio.sleep(0)
        seen.append(len(called))
    assert called == [0, 1, 2, 3, 4]
    assert max(b - a for a, b in zip([0, *seen], seen, strict=False)) == 1


async def test_a_call_added_again_waits_behind_the_others() -> None:
    time_slices, called = TimeSlices(), list[str]()

    def greedy() -> None:
        called.append("greedy")
        if len(called) < 5:
            time_slices.add(greedy)

    time_slices.add(greedy)
    time_slices.add(lambda: called.append("other"))
    await until(lambda: len(called) == 5)
    assert called == ["greedy", "other", "greedy", "greedy", "greedy"]


async def test_a_call_that_raises_does_not_cancel_the_others() -> None:
    time_slices, called, errors = TimeSlices(), list[str](), list[str]()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: errors.append(str(context["exception"])))

    def fail() -> None:
        raise ValueError("a bug")

    time_slices.add(fail)
    time_slices.add(lambda: called.append("other"))
    await until(lambda: bool(called))
    assert errors == ["a bug"]


async def test_a_call_added_later_gets_a_slice() -> None:
    time_slices, called = TimeSlices(), list[int]()
    for i in range(3):
        time_slices.add(lambda i=i: called.append(i))  # type: ignore[misc]
        await until(lambda i=i: called[-1:] == [i])  # type: ignore[misc]
    assert called == [0, 1, 2]


async def test_an_awaited_call_runs_in_its_order() -> None:
    time_slices, called = TimeSlices(), list[str]()
    time_slices.add(lambda: called.append("before"))
    await time_slices.run(lambda: called.append("taken"))
    assert called == ["before", "taken"]


async def test_an_awaited_call_raises_in_its_caller() -> None:
    time_slices, called = TimeSlices(), list[str]()

    def fail() -> None:
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        await time_slices.run(fail)
    await time_slices.run(lambda: called.append("other"))
    assert called == ["other"]


async def test_a_cancelled_call_does_not_run() -> None:
    time_slices, called = TimeSlices(), list[str]()
    taking = asyncio.get_running_loop().create_task(time_slices.run(lambda: called.append("cancelled")))
    await asyncio.sleep(0)  # the task is waiting
    taking.cancel()
    time_slices.add(lambda: called.append("last"))
    with pytest.raises(asyncio.CancelledError):
        await taking
    await until(lambda: "last" in called)
    assert called == ["last"]
