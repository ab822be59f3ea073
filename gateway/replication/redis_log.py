"""One worker's log and snapshot in Redis, and the lease of the one who writes them.

    lease     ─► fence:gateway       each write is a script that looks here first: one who was paused past
                                     its lease, and does not know it, writes nothing
    log       ─► <epoch>-<place>     batches and states, a Redis stream; the id is what the message's own
                                     numbers say, so that Redis refuses what is written twice
    snapshot  ─► parts               as an agent tells them; the log goes on behind it

Places count batches in steps of 2^20; the states told between two batches have the numbers in between.
Fences are the server's own time in ms, or one more than the last: later than any before also when all was
lost. All times are the server's: clocks of gateways may differ.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from redis.asyncio import Redis

from gateway.redis.keys import WorkerKeys

STATES = 1 << 20
"""Places between two batches."""
READ_AT_ONCE = 64
"""Parts of a snapshot, some 20 KB each."""
KEPT_S = 600
"""How long what is known of a worker is kept for whom comes next when no gateway reads its events."""

START = "0-0"
MAX_TIME_DIGITS = 18
"""Of microseconds since 1970, which have sixteen."""

_ACQUIRE = """
local held = redis.call('PTTL', KEYS[1])
local time = redis.call('TIME')
if held >= 0 then return {0, held} end
if ARGV[3] == '1' and redis.call('EXISTS', KEYS[3]) == 0 then return {0, -1} end
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local fence = math.max((tonumber(redis.call('GET', KEYS[2]) or '0') or 0) + 1, now)
local text = string.format('%.0f', fence)
redis.call('SET', KEYS[2], text, 'EX', ARGV[4])
redis.call('SET', KEYS[1], text .. ':' .. ARGV[1], 'PX', ARGV[2])
return {1, fence}
"""
_RENEW = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return false end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
for i = 2, #KEYS do redis.call('EXPIRE', KEYS[i], ARGV[3]) end
local log, snapshot = redis.call('TYPE', KEYS[4]).ok, redis.call('TYPE', KEYS[3]).ok
if log == 'none' then return '0-0' end
if log ~= 'stream' or snapshot ~= 'list' then return '?' end
local tail = redis.call('XREVRANGE', KEYS[4], '+', '-', 'COUNT', 1)
return tail[1] and tail[1][1] or '0-0'
"""
"""It sets what it might only prolong: a server without memory refuses it, as it does all that is written. The
lease then ends, and every gateway reads for itself."""
_RELEASE = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
"""
_APPEND = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 'FENCED' end
local kind = redis.call('TYPE', KEYS[2]).ok
if kind ~= 'stream' and kind ~= 'none' then return 'TORN' end
local tail = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)
local last = tail[1] and tail[1][1] or '0-0'
if last ~= ARGV[2] then
  if last == ARGV[#ARGV - 1] then return 'OK' end
  return 'TORN'
end
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000000 + time[2])
for i = 3, #ARGV, 2 do redis.call('XADD', KEYS[2], ARGV[i], 't', now, 'd', ARGV[i + 1]) end
return 'OK'
"""
_DRAFT = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 'FENCED' end
if ARGV[2] == '1' then redis.call('DEL', KEYS[2]) end
for i = 3, #ARGV do redis.call('RPUSH', KEYS[2], ARGV[i]) end
redis.call('EXPIRE', KEYS[2], 60)
return 'OK'
"""
_PUBLISH = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 'FENCED' end
if redis.call('EXISTS', KEYS[2]) == 0 then return 'TORN' end
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000000 + time[2])
redis.call('RENAME', KEYS[2], KEYS[3])
redis.call('EXPIRE', KEYS[3], ARGV[3])
if ARGV[2] == '' then redis.call('DEL', KEYS[4]) else redis.call('XTRIM', KEYS[4], 'MINID', ARGV[2]) end
redis.call('XADD', KEYS[4], ARGV[4], 't', now, 'd', ARGV[5])
redis.call('EXPIRE', KEYS[4], ARGV[3])
return 'OK'
"""


class Written(Enum):
    """FENCED: the lease is another's. TORN: what lies there is not what we wrote last; all was lost, or the
    end of it."""

    OK = b"OK"
    FENCED = b"FENCED"
    TORN = b"TORN"


@dataclass(frozen=True, slots=True)
class Lease:
    fence: int
    value: str


@dataclass(frozen=True, slots=True)
class Entry:
    """`told_us` is the server's time when it was written."""

    id: str
    told_us: int
    data: bytes

    @property
    def epoch(self) -> int:
        return int(self.id.partition("-")[0])

    @property
    def place(self) -> int:
        return int(self.id.partition("-")[2])


def batch_id(epoch: int, seq: int) -> str:
    return f"{epoch}-{(seq + 1) * STATES}"


def after_id(epoch: int, next_seq: int) -> str:
    """Of what comes before batch `next_seq` and the states told in front of it."""
    return f"{epoch}-{next_seq * STATES}" if epoch else START


def state_id(last: str, epoch: int, next_seq: int) -> str:
    """Of a state told behind `last`, before batch `next_seq`."""
    said, _, place = last.partition("-")
    at = max(int(place), next_seq * STATES) if int(said) == epoch else next_seq * STATES
    return f"{epoch}-{at + 1}"


class WorkerLog:
    """`gateway` is who we are, among those who ask for the lease."""

    def __init__(self, client: Redis, keys: WorkerKeys, gateway: str, *, lease_s: float) -> None:
        self.keys = keys
        self._client = client
        self._gateway = gateway
        self._lease_ms = round(lease_s * 1000)
        self._scripts = {
            text: client.register_script(text)
            for text in (_ACQUIRE, _RENEW, _RELEASE, _APPEND, _DRAFT, _PUBLISH)
        }

    async def acquire(self, *, if_known: bool) -> Lease | float | None:
        """The lease; or for how many seconds it is another's at least; None where nobody has it and there is
        no snapshot, with `if_known`: who had it may still be there, and knows all."""
        keys = [self.keys.lease, self.keys.fence, self.keys.snapshot]
        is_ours, told = await self._run(
            _ACQUIRE, keys, [self._gateway, self._lease_ms, int(if_known), KEPT_S]
        )
        if is_ours:
            return Lease(told, f"{told}:{self._gateway}")
        return None if told < 0 else told / 1000

    async def renew(self, lease: Lease) -> str | None:
        """The id of what was told last, or what can be none where others wrote there; None where the lease is
        no longer ours."""
        keys = [self.keys.lease, self.keys.fence, self.keys.snapshot, self.keys.log]
        last = await self._run(_RENEW, keys, [lease.value, self._lease_ms, KEPT_S])
        return None if last is None else str(last.decode())

    async def release(self, lease: Lease) -> None:
        await self._run(_RELEASE, [self.keys.lease], [lease.value])

    async def append(self, lease: Lease, last: str, entries: Sequence[tuple[str, bytes]]) -> Written:
        """Behind `last`, all or none. Told again where the answer was lost, it is OK too."""
        flat = [part for entry in entries for part in entry]
        return Written(await self._run(_APPEND, [self.keys.lease, self.keys.log], [lease.value, last, *flat]))

    async def replace(
        self, lease: Lease, parts: Sequence[bytes], keep_from: str, state: tuple[str, bytes]
    ) -> Written:
        """Another snapshot, with the state told behind it. Of the log what is behind `keep_from` stays for
        those who read; nothing where that is empty."""
        keys = self.keys
        for first in range(0, len(parts), READ_AT_ONCE):
            some = parts[first : first + READ_AT_ONCE]
            told = await self._run(_DRAFT, [keys.lease, keys.draft], [lease.value, int(not first), *some])
            if (written := Written(told)) is not Written.OK:
                return written
        names = [keys.lease, keys.draft, keys.snapshot, keys.log]
        return Written(await self._run(_PUBLISH, names, [lease.value, keep_from, KEPT_S, *state]))

    async def snapshot(self) -> list[bytes]:
        """Its parts; they may be of two, where another took its place meanwhile, which their numbers show."""
        parts: list[bytes] = []
        while True:
            first = len(parts)
            some = await _answer(self._client.lrange(self.keys.snapshot, first, first + READ_AT_ONCE - 1))
            parts += some
            if len(some) < READ_AT_ONCE:
                return parts

    async def disown(self) -> None:
        """What lies there cannot be read: without a snapshot, whoever holds the lease writes all anew."""
        await self._client.unlink(self.keys.snapshot)

    async def read(self, after: str) -> list[Entry]:
        """All that was told behind `after`."""
        entries: list[Entry] = []
        while True:
            told: Any = await self._client.xrange(self.keys.log, f"({after}", "+", count=READ_AT_ONCE)
            entries += map(entry, told)
            if len(told) < READ_AT_ONCE:
                return entries
            after = entries[-1].id

    async def last_id(self) -> str:
        told: Any = await self._client.xrevrange(self.keys.log, count=1)
        return entry(told[0]).id if told else START

    async def _run(self, text: str, keys: list[str], args: list[Any]) -> Any:
        return await self._scripts[text](keys=keys, args=args)


def entry(told: Any) -> Entry:
    """Whoever may write to Redis may write anything: what is no time is 0, and no data is none of ours."""
    name, fields = told
    micros = fields.get(b"t", b"")
    is_time = micros.isdigit() and len(micros) <= MAX_TIME_DIGITS
    return Entry(name.decode(), int(micros) if is_time else 0, fields.get(b"d", b""))


async def _answer(call: Any) -> Any:
    return await call
