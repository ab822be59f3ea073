"""Tail of the logs of all followed workers, read by one blocking connection.

A log that its feed does not read as fast as it grows is skipped until it does: it costs the others no time,
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

from gateway.core.causes import cause_of
from gateway.redis.client import LOST, RedisClient
from gateway.replication.redis_log import LogEntry, entry
from gateway.runtime.rate_limited_log import RateLimitedLog

log = logging.getLogger("kvgate.redis")

BLOCK_S = 0.2
"""Longest wait for new entries; also the longest delay until a newly followed log is read while all others
are silent."""
AT_ONCE = 64
MAX_WAITING = 1024
"""Unread entries of one worker's feed at which its log is skipped."""
RETRY_S = 0.2
CLOCK_S = 10.0
"""Time between two comparisons of the server's clock with ours."""

OnOtherServer = Callable[[], Awaitable[None]]


@dataclass(slots=True, eq=False)
class FollowedLog:
    """Log that is followed. Its feed takes `entries` in order; `is_live`: the connection answered since it
    was last lost, and all of that answer is among `entries`."""

    key: str
    after: str
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    entries: deque[LogEntry] = field(default_factory=deque)
    is_live: bool = False


class LogTail:
    """Reader of followed logs on a `client` of its own; `run` must be started.

    `server` changes when another server answers, which (as a former replica) may lack entries of the one
    before; `on_other` is called then.
    """

    def __init__(
        self,
        client: RedisClient,
        clock: Callable[[], float] = time.time,
        on_other: OnOtherServer | None = None,
    ) -> None:
        self._client = client
        self._on_other = on_other
        self._log = RateLimitedLog(log)
        self._num_connects, self._run_id = 0, ""
        self.server = 0
        self._clock = clock
        self._followed: dict[str, FollowedLog] = {}
        self._offset_s = 0.0
        self._compared_at = 0.0
        self.is_lost = False
        self.num_losses = 0

    def __repr__(self) -> str:
        return f"LogTail({len(self._followed)} logs, lost={self.is_lost})"

    def follow(self, key: str, after: str) -> FollowedLog:
        """Follow a log from the entry `after` on, replacing an earlier follow of it."""
        followed = self._followed[key] = FollowedLog(key, after)
        return followed

    def unfollow(self, followed: FollowedLog) -> None:
        if self._followed.get(followed.key) is followed:
            del self._followed[followed.key]

    def age_s(self, entry: LogEntry) -> float:
        """Return the time since an entry was written, by the server's clock."""
        return max(0.0, self._clock() + self._offset_s - entry.written_us / 1e6)

    async def run(self) -> None:
        while True:
            try:
                await self._compare_clocks()
                await self._check_server()
                await self._read()
            except LOST as exc:
                self._lost(exc)
                await asyncio.sleep(RETRY_S)
                continue
            if self.is_lost:
                self.is_lost = False
                self._log.info("redis available again")

    async def _read(self) -> None:
        open_ones = [each for each in self._followed.values() if len(each.entries) < MAX_WAITING]
        if not open_ones:
            return await asyncio.sleep(BLOCK_S / 10)
        streams: dict[Any, Any] = {each.key: each.after for each in open_ones}
        reply: Any = await self._client.xread(streams, count=AT_ONCE, block=round(BLOCK_S * 1000))
        await self._check_server()
        for key, entries in reply or ():
            followed = self._followed.get(key.decode())
            if followed not in open_ones:  # unfollowed, or another log
                continue
            assert followed
            followed.entries.extend(map(entry, entries))
            followed.after = followed.entries[-1].id
            followed.woken.set()
        for each in open_ones:
            if not each.is_live:
                each.is_live = True
                each.woken.set()

    async def _check_server(self) -> None:
        """Detect another server behind a new connection."""
        if self._num_connects == (num := self._client.connects.num):
            return
        try:
            run_id = str((await self._client.info("server"))["run_id"])
        except NoPermissionError:
            run_id = f"connection {num}"
        if self._run_id not in ("", run_id):
            self.server += 1
            self._compared_at = 0.0
            self._log.info("connected to a different Redis server; resyncing")
            if self._on_other:
                await self._on_other()
        self._num_connects, self._run_id = num, run_id

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
            self._log.warning("redis lost, keeping the current index: %s", cause_of(exc))
        for each in self._followed.values():
            each.is_live = False
            each.woken.set()
