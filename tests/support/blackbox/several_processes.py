"""Gateway of several processes: their pids, a client at each, and streams that end when the test says so."""

import asyncio
import re
from pathlib import Path

from tests.support.blackbox.bench import Bench
from tests.support.blackbox.http1_bytes import DONE, SSE_HEAD, chunked, completion, event, post
from tests.support.blackbox.real_gateway import Gateway
from tests.support.blackbox.scripted_worker import Call
from tests.support.blackbox.strict_client import Client

TWO = ("--processes", "2")


def pids(gateway: Gateway) -> dict[int, int]:
    """Processes by number, from the log; the last of each number."""
    ready = (re.search(r"process (\d+) \(pid (\d+)\) is ready", line) for line in gateway.log)
    return {int(found[1]): int(found[2]) for found in ready if found}


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"  # ended, even if its exit code was not read


async def on_each(bench: Bench, num: int = 2) -> list[Client]:
    """Connections at different processes: each new one goes to the process with the fewest."""
    return [await bench.client() for _ in range(num)]


class Streams:
    """Script of a worker with streams that end when the test says so."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()

    async def __call__(self, call: Call) -> None:
        await call.send(SSE_HEAD + chunked(event("a"), end=False))
        await self.may_end.wait()
        if not call.gone.is_set():
            await call.send(chunked(event("b"), DONE))


async def begin_stream(client: Client) -> None:
    await client.send(post(completion(stream=True)))
    await client.head()
    assert await client.event() == event("a")


async def end_stream(client: Client) -> None:
    assert [await client.event(), await client.event()] == [event("b"), DONE]
    assert await client.piece() == b""
