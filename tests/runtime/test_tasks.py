"""Tasks are named, kept alive, loud when they die, and stopped by their owner."""

import asyncio
import gc
import logging
import os
import signal

import pytest

from gateway.runtime.tasks import Tasks, on_hangup, stop_event
from tests.support.patience import patience


async def test_a_task_has_its_name_and_is_kept_until_it_ends() -> None:
    tasks, gate = Tasks(), asyncio.Event()

    async def wait() -> str:
        await gate.wait()
        return "done"

    task = tasks.start("waiting", wait())
    gc.collect()
    assert (task.get_name(), len(tasks)) == ("waiting", 1)
    gate.set()
    assert await task == "done"
    await asyncio.sleep(0)
    assert len(tasks) == 0


async def test_a_task_that_raises_is_logged_with_its_name_and_cause(caplog: pytest.LogCaptureFixture) -> None:
    async def die() -> None:
        raise RuntimeError("no such luck")

    tasks = Tasks()
    await asyncio.wait([tasks.start("unlucky", die())])
    await asyncio.sleep(0)
    (record,) = caplog.records
    assert record.getMessage() == "task unlucky died"
    assert record.exc_info is not None and str(record.exc_info[1]) == "no such luck"
    assert record.levelno == logging.ERROR
    assert len(tasks) == 0


async def test_stopping_waits_until_all_tasks_have_ended_and_logs_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ended: list[int] = []

    async def work(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # closing may take an iteration of the loop
            ended.append(number)

    tasks = Tasks()
    for number in range(3):
        tasks.start(f"work {number}", work(number))
    await asyncio.sleep(0)
    await tasks.stop()
    assert sorted(ended) == [0, 1, 2]
    assert len(tasks) == 0
    assert not caplog.records


async def test_a_task_that_raises_while_stopped_is_logged_and_hurts_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise OSError("could not close")

    tasks = Tasks()
    tasks.start("bad", fail())
    other = tasks.start("good", asyncio.Event().wait())
    await asyncio.sleep(0)
    await tasks.stop()
    assert other.cancelled()
    assert [record.getMessage() for record in caplog.records] == ["task bad died"]


async def test_stopping_without_tasks_is_no_error() -> None:
    await Tasks().stop()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_sets_the_stop_event(number: signal.Signals) -> None:
    stop = stop_event()
    try:
        assert not stop.is_set()
        os.kill(os.getpid(), number)
        async with asyncio.timeout(patience(5)):
            await stop.wait()
    finally:
        for each in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().remove_signal_handler(each)


async def test_each_hangup_signal_is_reported() -> None:
    heard: asyncio.Queue[bool] = asyncio.Queue()
    on_hangup(lambda: heard.put_nowait(True))
    try:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGHUP)
            async with asyncio.timeout(patience(5)):
                assert await heard.get()
    finally:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)


async def test_a_task_that_was_cancelled_before_ends_in_its_own_way() -> None:
    tasks, given_back = Tasks(), asyncio.Event()

    async def lease() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            given_back.set()

    task = tasks.start("lease", lease())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    await tasks.stop()
    assert given_back.is_set()
