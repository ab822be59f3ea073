"""What is added to the logs of all followed workers, by one connection that waits for it.

A log that is not taken from as fast as it grows is left alone until it is: it costs nobody else their turn,
and no memory here.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from redis.exceptions import NoPermissionError

from gateway.redis.client import LOST, Client
from gateway.replication.redis_log import Entry, entry
from gateway.runtime.rate_limited_log import RateLimitedLog

log = logging.getLogger("kvgate.redis")

BLOCK_S = 0.2
"""For news; by so much somebody who begins to follow waits at most until it is read for, where all else is
silent."""
AT_ONCE = 64
MAX_WAITING = 1024
"""Entries that one worker's feed has not taken."""
RETRY_S = 0.2
CLOCK_S = 10.0
"""Between two comparisons of the server's clock with ours."""

Elsewhere = Callable[[], Awaitable[None]]


@dataclass(slots=True, eq=False)
class Followed:
    """One log. `entries` are to be taken from it by who follows, in order; `is_there`: there was an answer
    since the connection was last lost, and all that it brought is among `entries`."""

    key: str
    after: str
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    entries: deque[Entry] = field(default_factory=deque)
    is_there: bool = False


class Tail:
    """`client` is for nothing else; `run` is to be started. `server` changes with who answers: what was told
    by one need not be what another knows, which was its replica. `on_other` is called then."""

    def __init__(
        self, client: Client, clock: Callable[[], float] = time.time, on_other: Elsewhere | None = None
    ) -> None:
        self._client = client
        self._on_other = on_other
        self._log = RateLimitedLog(log)
        self._met, self._run_id = 0, ""
        self.server = 0
        self._clock = clock
        self._followed: dict[str, Followed] = {}
        self._offset_s = 0.0
        self._compared_at = 0.0
        self.is_lost = False
        self.num_losses = 0

    def __repr__(self) -> str:
        return f"Tail({len(self._followed)} logs, lost={self.is_lost})"

    def follow(self, key: str, after: str) -> Followed:
        """What comes behind `after`, in place of what was followed there."""
        followed = self._followed[key] = Followed(key, after)
        return followed

    def leave(self, followed: Followed) -> None:
        if self._followed.get(followed.key) is followed:
            del self._followed[followed.key]

    def age_s(self, entry: Entry) -> float:
        """How long ago it was written, by the server's clock."""
        return max(0.0, self._clock() + self._offset_s - entry.told_us / 1e6)

    async def run(self) -> None:
        while True:
            try:
                await self._compare_clocks()
                await self._meet()
                await self._read()
            except LOST as exc:
                self._lost(exc)
                await asyncio.sleep(RETRY_S)
                continue
            if self.is_lost:
                self.is_lost = False
                self._log.info("redis is there again")

    async def _read(self) -> None:
        open_ones = [each for each in self._followed.values() if len(each.entries) < MAX_WAITING]
        if not open_ones:
            return await asyncio.sleep(BLOCK_S / 10)
        streams: dict[Any, Any] = {each.key: each.after for each in open_ones}
        told: Any = await self._client.xread(streams, count=AT_ONCE, block=round(BLOCK_S * 1000))
        await self._meet()
        for key, entries in told or ():
            followed = self._followed.get(key.decode())
            if followed not in open_ones:  # no longer, or from elsewhere
                continue
            assert followed
            followed.entries.extend(map(entry, entries))
            followed.after = followed.entries[-1].id
            followed.woken.set()
        for each in open_ones:
            if not each.is_there:
                each.is_there = True
                each.woken.set()

    async def _meet(self) -> None:
        """Who answers, if there is another connection than before."""
        if self._met == (num := self._client.connects.num):
            return
        try:
            run_id = str((await self._client.info("server"))["run_id"])
        except NoPermissionError:
            run_id = f"connection {num}"
        if self._run_id not in ("", run_id):
            self.server += 1
            self._compared_at = 0.0
            self._log.info("another server answers: what it knows is read anew")
            if self._on_other:
                await self._on_other()
        self._met, self._run_id = num, run_id

    async def _compare_clocks(self) -> None:
        now = time.monotonic()
        if self._compared_at and now - self._compared_at < CLOCK_S:
            return
        before = self._clock()
        seconds, micros = await self._client.time()
        after = self._clock()
        self._offset_s = seconds + micros / 1e6 - (before + after) / 2
        self._compared_at = now

    def _lost(self, exc: BaseException) -> None:
        if not self.is_lost:
            self.is_lost = True
            self.num_losses += 1
            self._log.warning("redis is lost, what is known stays: %s", str(exc) or type(exc).__name__)
        for each in self._followed.values():
            each.is_there = False
            each.woken.set()
