"""WebSockets that are opened and left, or fed far more than the other side reads: bounded, ended in time."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

from tests.support.blackbox.scripted_worker import Call, FakeWorker, Script
from tests.support.blackbox.siege import MAX_GROWTH_BYTES, Siege, count, has_ended, siege
from tests.support.blackbox.tunnels import AGREED, agree, offer
from tests.support.patience import until

NUM = count(20, 100)
IDLE_S = 2
OFFER = offer("/v1/realtime?model=ws")
PIECE = b"\x82\x7e\xff\xff" + bytes(65_535)
MOST_BYTES = 32 << 20
"""Bytes of one connection in the kernel's buffers on both sides of the gateway: up to 10 MB each on Linux."""


async def read_nothing(call: Call) -> None:
    call.hold(True)
    await agree(call)


async def flood(call: Call) -> None:
    """Send for as long as the gateway accepts it."""
    await call.send(AGREED)
    while not call.gone.is_set():
        await call.send(PIECE)


@contextlib.asynccontextmanager
async def worker_of(under: Siege, script: Script) -> AsyncIterator[FakeWorker]:
    worker = await FakeWorker(("ws",), script).start()
    await under.gateway.join(worker)
    try:
        yield worker
        await under.gateway.drop(worker)
    finally:
        await worker.die()


async def opened(under: Siege, worker: FakeWorker) -> list[socket.socket]:
    socks = [under.connect(reads_little=True) for _ in range(NUM)]
    for sock in socks:
        sock.send(OFFER)
        sock.setblocking(False)
    await worker.called(NUM)
    return socks


async def are_ended(socks: list[socket.socket]) -> None:
    left = set(socks)

    def is_over() -> bool:
        left.difference_update([sock for sock in left if has_ended(sock)])
        return not left

    await until(is_over, "every WebSocket is closed")


async def is_full(socks: list[socket.socket]) -> int:
    """Send on each until all have been full for a while, or are ended; returns the most bytes that one took.

    Where this process is slow, the first are ended before the last are full; from then on bytes are dropped.
    """
    taken = dict.fromkeys(socks, 0)
    num_full = 0
    while num_full < 5:
        before = sum(taken.values())
        for sock in socks:
            with contextlib.suppress(OSError):  # it is full, or has been reset
                while taken[sock] < MOST_BYTES and not has_ended(sock):
                    taken[sock] += sock.send(PIECE)
        num_full = num_full + 1 if sum(taken.values()) == before else 0
        await asyncio.sleep(0.05)
    return max(taken.values())


async def leave_open(under: Siege) -> None:
    async with worker_of(under, agree) as worker:
        await are_ended(await opened(under, worker))


async def overfeed_the_worker(under: Siege) -> None:
    async with worker_of(under, read_nothing) as worker:
        socks = await opened(under, worker)
        assert await is_full(socks) < MOST_BYTES
        assert under.growth_mb() < MAX_GROWTH_BYTES / 1e6
        await are_ended(socks)


async def overfeed_the_clients(under: Siege) -> None:
    async with worker_of(under, flood) as worker:
        socks = await opened(under, worker)
        await until(lambda: not worker.forwarded_links(), "the gateway ends them all")
        assert under.growth_mb() < MAX_GROWTH_BYTES / 1e6
        await are_ended(socks)


async def test_websockets_that_are_left_or_overfed_are_ended() -> None:
    async with siege("--idle-timeout-s", str(IDLE_S)) as under:
        for attack in (leave_open, overfeed_the_worker, overfeed_the_clients):
            await under.keep_good(attack(under))
