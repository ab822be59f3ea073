import asyncio

from gateway.index.memory import MemoryIndex
from gateway.index.memory_sweep import keep_swept
from gateway.runtime.tasks import Tasks
from tests.index.contract import ROOT, A, stored
from tests.support.patience import patience


async def test_blocks_of_a_dropped_worker_are_swept_until_the_task_stops() -> None:
    index = MemoryIndex()
    index.add_worker(A, ROOT, 4)
    index.apply(A, stored(range(8), [1, 2]))
    index.drop_worker(A)
    assert repr(index) == "MemoryIndex(workers=0, blocks=2)"
    tasks = Tasks()
    tasks.start("sweep", keep_swept(index, 0))
    async with asyncio.timeout(patience(10)):
        while repr(index) != "MemoryIndex(workers=0, blocks=0)":  # noqa: ASYNC110
            await asyncio.sleep(0)
    await tasks.stop()
    assert len(tasks) == 0
