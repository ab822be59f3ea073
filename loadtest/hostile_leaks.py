"""Memory that a gateway keeps after masses of clients: connections, aborted streams, distinct prompts.

It is compared with the steady state, in which each bounded cache is full, so that what grows beyond it has no
bound. Good requests fill the caches first: `long_prompts` of words never seen before (texts and tokens,
64 MiB; the encoder's words, some 100 MB; earlier prompts, 16 MiB; block hashes), then `short_prompts`,
more than the 10,000 decisions that are recorded. Both states are read at rest: nothing is booked, KV events
are followed, or remain BLIND (a replay that waits to be applied takes up to 128 MiB for a while), and free
memory is given back to the system, which a body of a megabyte has the gateway do. Full counts (FULL=1) are
the promised ones; others are named in the figure.
"""

import asyncio
import contextlib
import itertools
import json
import os
import random
import socket
import struct
import sys
import urllib.request
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import uvloop

from gateway.app import bundled_tokenizer
from gateway.core.decode_errors import LARGE
from loadtest.fleet import RunningFleet, rss_mb, simulated_fleet
from loadtest.report import Figure, publish

PATH = b"/v1/chat/completions"
AT_ONCE = 16
MOST_MB = 64.0
SIM_FLAGS = ["--prefill-tokens-per-s", "1000000", "--decode-tokens-per-s", "5000"]
IDLE_S = 20.0
FOLLOWED_S = 40.0
TRIMMED_S = 1.5
"""Time until a gateway has given free memory back: it does so half a second after a large body."""


@dataclass(frozen=True, slots=True)
class AttackCounts:
    """Counts of attacks, and of the good requests before them that fill the caches."""

    connections: int
    aborts: int
    prompts: int
    long_prompts: int = 550
    short_prompts: int = 10_500


FULL = AttackCounts(50_000, 20_000, 100_000)
REDUCED = AttackCounts(50_000, 5_000, 10_000)
SMOKE = AttackCounts(2_000, 300, 500, long_prompts=20, short_prompts=400)
LONG_WORDS = 4_000
"""Words of a long prompt: 24,000 tokens, 125 KB with its text. All together are more than the encoder
remembers."""
LETTERS = "bcdfghjklmnpqrstvwxz"


def long_prompt(number: int) -> str:
    """Return a prompt of words that no other one has."""
    rng = random.Random(number)
    return " ".join(["".join(rng.choices(LETTERS, k=7)) for _ in range(LONG_WORDS)])


class LeakError(RuntimeError):
    """Unexpected behaviour that spoils the measurement."""


def counts() -> AttackCounts:
    return FULL if os.environ.get("FULL") else SMOKE if os.environ.get("SMOKE") else REDUCED


async def many(num: int, attack: Callable[[int], Awaitable[None]]) -> None:
    """Run an attack `num` times, AT_ONCE of them at a time."""
    numbers = iter(range(num))

    async def work() -> None:
        for number in numbers:
            await attack(number)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(work())


def chat(text: str, **fields: object) -> bytes:
    messages = [{"role": "user", "content": text}]
    body = json.dumps({"model": "m", "messages": messages, "max_tokens": 2, **fields}).encode()
    head = b"POST %b HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % (PATH, len(body)) + body


async def come_and_go(port: int, number: int) -> None:
    """Open a connection that ends before any request, within a head, or within a body; by a FIN or an RST."""
    begun = (b"", b"POST", b"POST " + PATH + b" HTTP/1.1\r\nHost: g\r\nContent-Length: 9\r\n\r\n{")
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(begun[number % 3])
    await _leave(writer, with_reset=number % 2 == 1)


async def abort_a_stream(port: int, number: int, rng: random.Random) -> None:
    """Abort a stream before the response, or within it; by a FIN or an RST."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(chat(f"aborted {number % 50}", stream=True, max_tokens=50))
    with contextlib.suppress(ConnectionError):
        for _ in range(rng.randrange(3)):
            await reader.read(200)
    await _leave(writer, with_reset=rng.random() < 0.5)


async def _leave(writer: asyncio.StreamWriter, *, with_reset: bool) -> None:
    if with_reset and (sock := writer.get_extra_info("socket")):  # None where it is closed already
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


class KeptConnections:
    """Connections that are kept, on which whole responses are read."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, text: str) -> None:
        """Send a request. Raises LeakError for a status other than 200."""
        reader, writer = self._idle.pop() if self._idle else await self._open()
        writer.write(chat(text))
        head = await reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        body = await reader.readexactly(int(length or 0))
        if not head.startswith(b"HTTP/1.1 200 "):
            raise LeakError(f"a good request was answered {head[9:12].decode()}: {body[:200]!r}")
        self._idle.append((reader, writer))

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self._port)

    async def close(self) -> None:
        for _, writer in self._idle:
            await _leave(writer, with_reset=False)
        self._idle.clear()


class Leaks:
    """Gateway under attack in one way after the other."""

    def __init__(self, fleet: RunningFleet, num: AttackCounts) -> None:
        self._fleet = fleet
        self._num = num
        self._port = urlsplit(fleet.gateway_url).port or 0
        self._prompts = itertools.count()

    async def run(self) -> list[Figure]:
        rng, num = random.Random(1), self._num
        asking = KeptConnections(self._port)

        async def ask(_: int) -> None:
            await asking.ask(f"{next(self._prompts)} is a number of its own. " * 8)

        await many(num.long_prompts, lambda n: asking.ask(long_prompt(n)))
        await many(num.short_prompts, ask)
        await asking.close()  # they would idle for longer than they are kept
        figures = [
            await self._grown_by(
                "connections", num.connections, FULL.connections, lambda n: come_and_go(self._port, n)
            ),
            await self._grown_by(
                "aborts", num.aborts, FULL.aborts, lambda n: abort_a_stream(self._port, n, rng)
            ),
            await self._grown_by("prompts", num.prompts, FULL.prompts, ask),
        ]
        await asking.close()
        left = await self._left()
        return [*figures, Figure("hostile.bookings_left", left, "", 0.0, [left])]

    async def _grown_by(
        self, what: str, num: int, full: int, attack: Callable[[int], Awaitable[None]]
    ) -> Figure:
        """Memory after an attack over that before; the rounds are ten readings on the way, and that."""
        before_mb, grown = await self._at_rest(), []
        for _ in range(10):
            await many(num // 10, attack)
            grown.append(rss_mb(self._fleet.gateway_pid) - before_mb)
        grown.append(await self._at_rest() - before_mb)
        name = f"hostile.leak_{what}_mb" + ("" if num == full else f".{num}")
        return Figure(name, round(grown[-1], 2), "MB", MOST_MB, [round(g, 2) for g in grown])

    async def _at_rest(self) -> float:
        """Memory when all has come to rest."""
        await self._left()
        await self._followed()
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(chat("a" * LARGE))
        await reader.readuntil(b"\r\n\r\n")  # refused: no worker takes so long a prompt
        await _leave(writer, with_reset=False)
        await asyncio.sleep(TRIMMED_S)
        return rss_mb(self._fleet.gateway_pid)

    async def _left(self) -> float:
        """Requests and tokens that are booked when all has come to rest, or after IDLE_S."""
        end = asyncio.get_running_loop().time() + IDLE_S
        while (  # noqa: ASYNC110  state of another process
            left := await asyncio.to_thread(self._booked)
        ) and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.1)
        return left

    async def _followed(self) -> None:
        """Wait until the index holds what the workers' caches do: masses of prompts are more events at once
        than a gateway applies, so that streams are BLIND for 30 s; or FOLLOWED_S, where they stay so."""
        end = asyncio.get_running_loop().time() + FOLLOWED_S
        while {w["stream"] for w in await asyncio.to_thread(self._workers)} != {"exact"}:  # noqa: ASYNC110
            if asyncio.get_running_loop().time() > end:
                return
            await asyncio.sleep(0.2)

    def _booked(self) -> float:
        return float(sum(worker["in_flight"] + worker["booked_tokens"] for worker in self._workers()))

    def _workers(self) -> list[dict[str, Any]]:
        with _direct.open(f"{self._fleet.admin_url}/admin/workers", timeout=10) as answer:
            return [worker for each in json.load(answer)["endpoints"] for worker in each["workers"]]


_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def measure() -> list[Figure]:
    """Measure the figures. Raises LeakError."""
    with (
        simulated_fleet(2, SIM_FLAGS, ["--tokenizer", str(bundled_tokenizer())]) as fleet,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        return runner.run(_measured(fleet))


async def _measured(fleet: RunningFleet) -> list[Figure]:
    try:
        return await Leaks(fleet, counts()).run()
    except* (OSError, asyncio.IncompleteReadError) as group:
        raise LeakError(f"a good request was cut: {group.exceptions[0]!r}") from group


if __name__ == "__main__":
    publish("hostile_leaks", measure())
    sys.exit(0)
