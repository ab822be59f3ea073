"""Distributed lock of decisions: one gateway of all looks up and books at a time (`--booking atomic`).

    requests wait ─► acquire ─► receive the last holder's bookings ─► decide all ─► release
                     (a script)                                                     with the bookings

All requests that wait at a gateway are decided under one acquisition. A lock that is not released expires by
the server's clock. Where it cannot be acquired in time, decisions go on without it until Redis works again.
Redis has two small keys for it, and nothing of the bookings.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable

from redis.asyncio import Redis

from gateway.bookings.publisher import BookingsPublisher
from gateway.bookings.pubsub import PublishConnection
from gateway.bookings.shared_ledger import Table
from gateway.redis.client import LOST, open_client
from gateway.redis.keys import lock_keys
from gateway.redis.options import RedisOptions
from gateway.runtime.rate_limited_log import RateLimitedLog
from gateway.runtime.tasks import Tasks

log = logging.getLogger("kvgate.bookings")

ANSWER_S = 0.2
"""Timeout of a Redis reply. It takes a fraction of a millisecond, but a gateway's loop may be late itself."""
WAIT_S = 0.5
"""Longest wait for the lock, while Redis replies. Four gateways under a burst wait for some milliseconds."""
LEASE_MS = 200
"""Expiry of a lock that is not released, when its gateway died. Deciding a hundred requests takes a tenth of
it."""
HEAR_S = 0.1
"""Longest wait for the last holder's bookings, which are on their way when the lock is acquired."""
LOOK_S = 0.0003
TRY_S = 1.0
"""Time between two attempts after the lock was not acquired in time; no request waits for them."""

_ACQUIRE = """
local holder = redis.call('GET', KEYS[1])
if holder and string.sub(holder, 1, #ARGV[1]) ~= ARGV[1] then return 0 end
local number = redis.call('INCR', KEYS[2])
redis.call('SET', KEYS[1], ARGV[1] .. number, 'PX', ARGV[2])
return number
"""
_RELEASE = """
redis.call('PUBLISH', ARGV[2], ARGV[3])
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
return 1
"""


class DistributedLock:
    """Distributed lock: `enter` has `act` called under this gateway's next acquisition, or at once while the
    lock is unavailable."""

    def __init__(self, options: RedisOptions, table: Table, publish_connection: PublishConnection) -> None:
        self.num_acquired = self.num_late = self.num_without = 0
        self._table = table
        self._publish_connection = publish_connection
        self._keys = lock_keys(options.prefix)
        self._client: Redis = open_client(options, max_connections=1)
        self._acquire_script = self._client.register_script(_ACQUIRE)
        self._waiting: deque[Callable[[], None]] = deque()
        self._log = RateLimitedLog(log)
        self._woken = asyncio.Event()
        self._last = 0
        self._is_off = False

    def __repr__(self) -> str:
        return (
            f"DistributedLock({self.num_acquired} acquired, {len(self._waiting)} waiting, off={self._is_off})"
        )

    def start(self, tasks: Tasks, publisher: BookingsPublisher) -> None:
        self._loop = asyncio.get_running_loop()
        self._publisher = publisher
        self._name = f"{publisher.gateway:x}:"
        tasks.start("decide in turn", self._run())

    async def close(self) -> None:
        await self._client.aclose()

    def enter(self, act: Callable[[], None]) -> None:
        if self._is_off or not self._publish_connection.is_open:
            self.num_without += 1
            return act()
        self._waiting.append(act)
        self._woken.set()
        return None

    async def _run(self) -> None:
        try:
            await self._skip_earlier_acquisitions()
            while True:
                await self._woken.wait()
                self._woken.clear()
                try:
                    number = await self._acquire()
                except LOST as exc:
                    await self._decide_without_lock(exc)
                    continue
                self._act()
                self._release(number)
        finally:  # no request waits for a task that has ended
            self._is_off = True
            self._act()

    async def _skip_earlier_acquisitions(self) -> None:
        """Read the number of the last acquisition before this gateway's start: its bookings were published
        before this gateway subscribed, and are in the others' snapshots if they still count."""
        with contextlib.suppress(*LOST):
            async with asyncio.timeout(ANSWER_S):
                self._last = int(await self._client.get(self._keys[1]) or 0)

    async def _decide_without_lock(self, exc: BaseException) -> None:
        """Decide without the lock until Redis grants it again."""
        self._is_off = True
        why = str(exc) or f"no answer in {ANSWER_S * 1000:g} ms"
        self._log.warning("distributed lock unavailable (%s); deciding as with --booking shared", why)
        self.num_without += len(self._waiting)
        self._act()
        while self._is_off:
            await asyncio.sleep(TRY_S)
            with contextlib.suppress(*LOST):
                self._release(await self._try_acquire())
                self._is_off = False
        self._log.info("distributed lock available again; gateways decide one at a time")

    def _act(self) -> None:
        """Call all waiting actions, in the order in which they came."""
        waiting, self._waiting = self._waiting, deque()
        for act in waiting:
            act()

    async def _acquire(self) -> int:
        """Acquire the lock and wait for the bookings before it; returns the acquisition's number. Raises one
        of LOST."""
        number = await self._try_acquire()
        self.num_acquired += 1
        await self._wait_for_bookings(number - 1)
        self._last = number
        return number

    async def _try_acquire(self) -> int:
        until = self._loop.time() + WAIT_S
        while self._loop.time() < until:
            async with asyncio.timeout(ANSWER_S):
                number = int(await self._acquire_script(keys=self._keys, args=[self._name, LEASE_MS]))
            if number:
                return number
            await asyncio.sleep(LOOK_S)
        raise TimeoutError(f"others hold it for {WAIT_S * 1000:g} ms")

    async def _wait_for_bookings(self, number: int) -> None:
        """Wait until that acquisition's bookings are known here; a gateway that died never sends them."""
        if number == self._last:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HEAR_S):
                while self._table.lock_number < number:  # noqa: ASYNC110  another process may subscribe
                    await asyncio.sleep(LOOK_S)
        self.num_late += self._table.lock_number < number

    def _release(self, number: int) -> None:
        message, name = self._publisher.changes(lock_number=number), f"{self._name}{number}"
        self._publish_connection.write(
            "EVAL", _RELEASE, 1, self._keys[0], name, self._publish_connection.channel, message
        )
