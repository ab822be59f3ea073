"""Clients that are slow on purpose, at every stage: each is ended, and delays no other."""

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable

from tests.support.blackbox.http1_bytes import CHAT
from tests.support.blackbox.siege import Siege, count, has_ended, siege
from tests.support.patience import patience

NUM = count(25, 200)
QUICK = (
    *("--head-timeout-s", "1", "--body-timeout-s", "1", "KVGATE_MIN_BODY_RATE=100000"),
    *("--keep-alive-s", "1", "--head-timeout-s", "1", "--idle-timeout-s", "2"),
)
ENDS_S = patience(20.0)
HEAD = b"POST " + CHAT.encode() + b" HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\n"
UPGRADE = b"GET /v1/realtime?model=m HTTP/1.1\r\nHost: g\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
KEY = b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"

STAGES: dict[str, tuple[bytes, bytes]] = {
    "nothing": (b"", b""),
    "head, a byte at a time": (HEAD, b"x"),
    "head, a header at a time": (HEAD, b"a: b\r\n"),
    "body, a byte at a time": (HEAD + b"Content-Length: 100000\r\n\r\n", b" "),
    "body, a chunk at a time": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    "websocket head": (UPGRADE, b"x"),
    "empty lines": (b"", b"\r\n"),
    "kept alive": (b"GET /health HTTP/1.1\r\nHost: g\r\n\r\n", b""),
}
ADMIN_STAGES: dict[str, tuple[bytes, bytes]] = {
    "nothing": (b"", b""),
    "head, a byte at a time": (b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n", b"x"),
    "body, a byte at a time": (
        b"POST /admin/workers HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Content-Length: 100000\r\n\r\n",
        b" ",
    ),
}


async def drip(socks: list[socket.socket], piece: bytes, is_over: Callable[[], bool]) -> None:
    """Send a piece on each now and then, for as long as the peer accepts them."""
    while not is_over():
        for sock in socks if piece else ():
            with contextlib.suppress(OSError):
                sock.send(piece)
        await asyncio.sleep(0.1)


async def attack(under: Siege, port: int, begun: bytes, piece: bytes) -> None:
    """Raise AssertionError where a connection is still open when all limits are over."""
    socks = [under.connect(port) for _ in range(NUM)]
    for sock in socks:
        sock.send(begun)
    end = time.monotonic() + ENDS_S
    left = set(socks)

    def is_over() -> bool:
        left.difference_update([sock for sock in left if has_ended(sock)])
        return not left or time.monotonic() > end

    await drip(socks, piece, is_over)
    assert not left, f"{len(left)} of {NUM} connections are still open"


async def test_slow_clients_are_ended_at_every_stage() -> None:
    async with siege(*QUICK) as under:
        port = under.gateway.port
        await under.keep_good(asyncio.gather(*(attack(under, port, *stage) for stage in STAGES.values())))


async def test_slow_admins_are_ended_at_every_stage() -> None:
    async with siege(*QUICK) as under:
        port = under.gateway.admin_port
        await under.keep_good(
            asyncio.gather(*(attack(under, port, *stage) for stage in ADMIN_STAGES.values()))
        )
        assert (await under.gateway.admin("GET", "/health")).status == 200
