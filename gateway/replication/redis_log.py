"""Log and snapshot of one worker in Redis, and the lease of their leader.

    lease     ─► fence:gateway       each write is a script that checks the lease first: a leader paused past
                                     its lease, unaware of it, writes nothing
    log       ─► <epoch>-<place>     batches and states, a Redis stream; the id consists of the message's own
                                     numbers, so that Redis rejects duplicate writes
    snapshot  ─► parts               as an agent sends them; the log continues behind it

Places count batches in steps of 2^20; the states between two batches have the numbers in between. Fences are
the server's own time in ms, or one more than the last: later than any before also when all was lost. All
times are the server's: clocks of gateways may differ.
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
"""Parts of a snapshot per command, some 20 KB each."""
KEPT_S = 600
"""Time that a worker's log is kept for the next leader when no gateway reads its events."""

START = "0-0"
MAX_TIME_DIGITS = 18
"""Digits of microseconds since 1970 (now sixteen) that are accepted."""

_ACQUIRE = """
local held = redis.call('PTTL', KEYS[1])
local time = redis.call('TIME')
local holder = redis.pcall('GET', KEYS[1])
local is_ours = type(holder) == 'string' and string.match(holder, '^%d+:(.*)$') == ARGV[1]
if held >= 0 and not is_ours then return {0, held} end
if ARGV[3] == '1' and redis.call('EXISTS', KEYS[3]) == 0 then return {0, -1} end
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local fence = math.max((tonumber(redis.call('GET', KEYS[2]) or '0') or 0) + 1, now)
local text = string.format('%.0f', fence)
redis.call('SET', KEYS[2], text, 'EX', ARGV[4])
redis.call('SET', KEYS[1], text .. ':' .. ARGV[1], 'PX', ARGV[2])
return {1, fence}
"""
"""A gateway acquires its own lease again: the answer to its first call may be lost with the connection."""
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
"""Renewal by SET and EXPIRE instead of EXPIRE alone, so that a server without memory rejects it like all
writes. The lease then ends, and every gateway reads events for itself."""
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


class WriteResult(Enum):
    """Result of a write. FENCED: the lease is another gateway's. TORN: the log does not end with our last
    write; it, or its end, was lost."""

    OK = b"OK"
    FENCED = b"FENCED"
    TORN = b"TORN"


@dataclass(frozen=True, slots=True)
class Lease:
    fence: int
    value: str


@dataclass(frozen=True, slots=True)
class LogEntry:
    """Entry of a log; `written_us` is the server's time when it was written."""

    id: str
    written_us: int
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
    """Return the id before batch `next_seq` and the states in front of it."""
    return f"{epoch}-{next_seq * STATES}" if epoch else START


def state_id(last: str, epoch: int, next_seq: int) -> str:
    """Return the id of a state behind `last`, before batch `next_seq`."""
    last_epoch, _, place = last.partition("-")
    at = max(int(place), next_seq * STATES) if int(last_epoch) == epoch else next_seq * STATES
    return f"{epoch}-{at + 1}"


class WorkerLog:
    """Log, snapshot and lease of one worker in Redis. `gateway` is our id as a lease holder."""

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
        """Acquire the lease, with a later fence where it is ours already; or return the seconds for which it
        is another gateway's at least.

        With `if_known`, None where the lease is free but there is no snapshot: the former leader may still be
        there, with the complete state.
        """
        keys = [self.keys.lease, self.keys.fence, self.keys.snapshot]
        is_ours, value = await self._run(
            _ACQUIRE, keys, [self._gateway, self._lease_ms, int(if_known), KEPT_S]
        )
        if is_ours:
            return Lease(value, f"{value}:{self._gateway}")
        return None if value < 0 else value / 1000

    async def renew(self, lease: Lease) -> str | None:
        """Renew the lease and return the id of the last entry (an impossible id if others wrote there); None
        where the lease is lost."""
        keys = [self.keys.lease, self.keys.fence, self.keys.snapshot, self.keys.log]
        last = await self._run(_RENEW, keys, [lease.value, self._lease_ms, KEPT_S])
        return None if last is None else str(last.decode())

    async def release(self, lease: Lease) -> None:
        await self._run(_RELEASE, [self.keys.lease], [lease.value])

    async def append(self, lease: Lease, last: str, entries: Sequence[tuple[str, bytes]]) -> WriteResult:
        """Append entries behind `last`, all or none. Repeating a call with a lost answer is OK too."""
        flat = [part for entry in entries for part in entry]
        return WriteResult(
            await self._run(_APPEND, [self.keys.lease, self.keys.log], [lease.value, last, *flat])
        )

    async def replace(
        self, lease: Lease, parts: Sequence[bytes], keep_from: str, state: tuple[str, bytes]
    ) -> WriteResult:
        """Replace the snapshot, with the state behind it. Log entries behind `keep_from` stay for readers;
        none where it is empty."""
        keys = self.keys
        for first in range(0, len(parts), READ_AT_ONCE):
            some = parts[first : first + READ_AT_ONCE]
            reply = await self._run(_DRAFT, [keys.lease, keys.draft], [lease.value, int(not first), *some])
            if (written := WriteResult(reply)) is not WriteResult.OK:
                return written
        names = [keys.lease, keys.draft, keys.snapshot, keys.log]
        return WriteResult(await self._run(_PUBLISH, names, [lease.value, keep_from, KEPT_S, *state]))

    async def snapshot(self) -> list[bytes]:
        """Return the parts; they may be of two snapshots, if one was replaced meanwhile, which their numbers
        show."""
        parts: list[bytes] = []
        while True:
            first = len(parts)
            some = await _answer(self._client.lrange(self.keys.snapshot, first, first + READ_AT_ONCE - 1))
            parts += some
            if len(some) < READ_AT_ONCE:
                return parts

    async def drop_snapshot(self) -> None:
        """Delete a snapshot that does not decode, so that the leader writes everything again."""
        await self._client.unlink(self.keys.snapshot)

    async def read(self, after: str) -> list[LogEntry]:
        """Return all entries behind `after`."""
        entries: list[LogEntry] = []
        while True:
            reply: Any = await self._client.xrange(self.keys.log, f"({after}", "+", count=READ_AT_ONCE)
            entries += map(entry, reply)
            if len(reply) < READ_AT_ONCE:
                return entries
            after = entries[-1].id

    async def last_id(self) -> str:
        reply: Any = await self._client.xrevrange(self.keys.log, count=1)
        return entry(reply[0]).id if reply else START

    async def _run(self, text: str, keys: list[str], args: list[Any]) -> Any:
        return await self._scripts[text](keys=keys, args=args)


def entry(raw: Any) -> LogEntry:
    """Decode a stream entry. A foreign client may have written it: an invalid time counts as 0, missing data
    as empty."""
    name, fields = raw
    micros = fields.get(b"t", b"")
    is_time = micros.isdigit() and len(micros) <= MAX_TIME_DIGITS
    return LogEntry(name.decode(), int(micros) if is_time else 0, fields.get(b"d", b""))


async def _answer(call: Any) -> Any:
    return await call
