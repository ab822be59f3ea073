"""Decisions in turn: one gateway of all looks and books at a time (`--booking atomic`).

    requests wait ─► take the turn ─► the last one's bookings are heard ─► decide all ─► give it back
                     (a script)                                                          with the bookings

All that wait at a gateway are decided in one turn. A turn that is not given back ends by the server's clock.
Where one cannot be had in time it is done without turns until Redis gives them again. It holds two small keys
for them, and nothing of what is booked.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable

from redis.asyncio import Redis

from gateway.bookings.publisher import Teller
from gateway.bookings.pubsub import Speaker
from gateway.bookings.shared_ledger import Table
from gateway.redis.client import LOST, open_client
from gateway.redis.keys import lock_keys
from gateway.redis.options import RedisOptions
from gateway.runtime.rate_limited_log import RateLimitedLog
from gateway.runtime.tasks import Tasks

log = logging.getLogger("kvgate.bookings")

ANSWER_S = 0.2
"""For an answer of Redis. It takes a fraction of a millisecond, but a gateway's loop may be late itself."""
WAIT_S = 0.5
"""For a turn, while Redis answers. Four gateways under a burst wait for some milliseconds."""
LEASE_MS = 200
"""Of a turn that is not given back: its gateway died. To decide a hundred requests takes a tenth of it."""
HEAR_S = 0.1
"""For the last one's bookings, which are on their way when the turn is given."""
LOOK_S = 0.0003
TRY_S = 1.0
"""Between two trials, after a turn could not be had; no request waits for them."""

_TAKE = """
local holder = redis.call('GET', KEYS[1])
if holder and string.sub(holder, 1, #ARGV[1]) ~= ARGV[1] then return 0 end
local number = redis.call('INCR', KEYS[2])
redis.call('SET', KEYS[1], ARGV[1] .. number, 'PX', ARGV[2])
return number
"""
_GIVE = """
redis.call('PUBLISH', ARGV[2], ARGV[3])
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
return 1
"""


class Turns:
    """`enter` has `act` called in this gateway's next turn, or at once where there are no turns now."""

    def __init__(self, options: RedisOptions, table: Table, speaker: Speaker) -> None:
        self.num_taken = self.num_late = self.num_without = 0
        self._table = table
        self._speaker = speaker
        self._keys = lock_keys(options.prefix)
        self._client: Redis = open_client(options, max_connections=1)
        self._take = self._client.register_script(_TAKE)
        self._waiting: deque[Callable[[], None]] = deque()
        self._log = RateLimitedLog(log)
        self._woken = asyncio.Event()
        self._last = 0
        self._is_off = False

    def __repr__(self) -> str:
        return f"Turns({self.num_taken} taken, {len(self._waiting)} waiting, off={self._is_off})"

    def start(self, tasks: Tasks, teller: Teller) -> None:
        self._loop = asyncio.get_running_loop()
        self._teller = teller
        self._name = f"{teller.gateway:x}:"
        tasks.start("decide in turn", self._run())

    async def close(self) -> None:
        await self._client.aclose()

    def enter(self, act: Callable[[], None]) -> None:
        if self._is_off or not self._speaker.is_open:
            self.num_without += 1
            return act()
        self._waiting.append(act)
        self._woken.set()
        return None

    async def _run(self) -> None:
        try:
            while True:
                await self._woken.wait()
                self._woken.clear()
                try:
                    number = await self._turn()
                except LOST as exc:
                    await self._do_without(exc)
                    continue
                self._act()
                self._give(number)
        finally:  # nobody waits for what has ended
            self._is_off = True
            self._act()

    async def _do_without(self, exc: BaseException) -> None:
        """Until Redis gives turns again."""
        self._is_off = True
        why = str(exc) or f"no answer in {ANSWER_S * 1000:g} ms"
        self._log.warning("redis gives no turn (%s): gateways decide as with --booking shared", why)
        self.num_without += len(self._waiting)
        self._act()
        while self._is_off:
            await asyncio.sleep(TRY_S)
            with contextlib.suppress(*LOST):
                self._give(await self._ask())
                self._is_off = False
        self._log.info("redis gives turns again: gateways decide one at a time")

    def _act(self) -> None:
        """All that wait now, in the order in which they came."""
        waiting, self._waiting = self._waiting, deque()
        for act in waiting:
            act()

    async def _turn(self) -> int:
        """The number of ours, when all before it are heard. Raises one of LOST."""
        number = await self._ask()
        self.num_taken += 1
        await self._heard(number - 1)
        self._last = number
        return number

    async def _ask(self) -> int:
        until = self._loop.time() + WAIT_S
        while self._loop.time() < until:
            async with asyncio.timeout(ANSWER_S):
                number = int(await self._take(keys=self._keys, args=[self._name, LEASE_MS]))
            if number:
                return number
            await asyncio.sleep(LOOK_S)
        raise TimeoutError(f"others have it for {WAIT_S * 1000:g} ms")

    async def _heard(self, number: int) -> None:
        """Until that turn's bookings are known here; those of one whose gateway died never are."""
        if number == self._last:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HEAR_S):
                while self._table.turn < number:  # noqa: ASYNC110  perhaps another process hears
                    await asyncio.sleep(LOOK_S)
        self.num_late += self._table.turn < number

    def _give(self, number: int) -> None:
        told, name = self._teller.news(turn=number), f"{self._name}{number}"
        self._speaker.write("EVAL", _GIVE, 1, self._keys[0], name, self._speaker.channel, told)
