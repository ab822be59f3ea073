"""Fair queue of the requests that wait for one model: bounded, by priority, fair between tenants.

push ─► band (priority: lower goes first, as in vLLM)
             └─ queue of a tenant: first come, first served ─► pop: from the least-served tenant
full: the newest request of the longest tenant queue in the last band is displaced, or the new one rejected
remove: its client disconnected      expire: its deadline has passed

Fair by tokens, as virtual token counters are: a tenant queue counts the tokens served to it, divided by its
weight; a tenant that comes (back) starts at the counter of the one served last, so idle time earns no credit.
While two tenants wait, the work served to them differs by at most one request of each. All operations take
O(log n); time is a parameter.
"""

from bisect import bisect_left, insort
from collections import OrderedDict
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final

NEVER: Final = float("inf")

MAX_BANDS_KEPT: Final = 64
"""Empty bands that keep their counters: clients may name any priority."""

MIN_KEPT: Final = 64
"""Empty tenant queues, or deadlines of removed requests, that are too few to be worth a clean-up."""


class QueueEntry:
    """Waiting request: `num_tokens` is its work, `deadline_s` the loop time by which it must be answered."""

    __slots__ = ("tenant", "priority", "num_tokens", "weight", "arrived_s", "deadline_s", "number")

    def __init__(
        self,
        tenant: str,
        num_tokens: int,
        arrived_s: float,
        *,
        priority: int = 0,
        weight: float = 1.0,
        deadline_s: float = NEVER,
    ) -> None:
        self.tenant = tenant
        self.priority = priority
        self.num_tokens = num_tokens
        self.weight = weight
        self.arrived_s = arrived_s
        self.deadline_s = deadline_s
        self.number = 0  # in order of arrival; 0 while it is not waiting

    def __repr__(self) -> str:
        return f"QueueEntry({self.tenant!r}, priority={self.priority}, {self.num_tokens} tokens)"


class TenantQueue:
    """Waiting requests of one tenant in one band; `served` is its virtual token counter."""

    __slots__ = ("tenant", "entries", "num_tokens", "served", "is_listed")

    def __init__(self, tenant: str, served: float) -> None:
        self.tenant = tenant
        self.entries: OrderedDict[int, QueueEntry] = OrderedDict()
        self.num_tokens = 0
        self.served = served
        self.is_listed = False


class Band:
    """Waiting requests of one priority, queued by tenant. A tenant queue is in `_turns` once, under a counter
    that may be outdated: counters only grow, so it is corrected when it comes up."""

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.num_waiting = 0
        self.num_queues = 0
        self.num_tokens = 0
        self._queues: dict[str, TenantQueue] = {}
        self._turns: list[tuple[float, int, TenantQueue]] = []
        self._by_length: list[dict[str, TenantQueue]] = [{}]
        self._now = 0.0  # the counter of the tenant queue served last

    def __repr__(self) -> str:
        return f"Band({self.priority}, waiting={self.num_waiting}, queues={self.num_queues})"

    def queue(self, tenant: str) -> TenantQueue | None:
        return self._queues.get(tenant)

    def add(self, entry: QueueEntry) -> None:
        queue = self._queues.get(entry.tenant)
        if queue is None:
            if len(self._queues) > 2 * self.num_queues + MIN_KEPT:
                self._forget()
            queue = self._queues[entry.tenant] = TenantQueue(entry.tenant, self._now)
        if not queue.entries:
            self.num_queues += 1
            queue.served = max(queue.served, self._now)
        queue.entries[entry.number] = entry
        if not queue.is_listed:
            queue.is_listed = True
            heappush(self._turns, (queue.served, entry.number, queue))
        self._count(queue, entry, 1)

    def next(self) -> QueueEntry:
        """Next request to serve, from the least-served tenant. The band must not be empty."""
        turns = self._turns
        while True:
            served, number, queue = turns[0]
            if not queue.entries:
                heappop(turns)
                queue.is_listed = False
                continue
            first = next(iter(queue.entries))
            if (served, number) == (queue.served, first):
                return queue.entries[first]
            heapreplace(turns, (queue.served, first, queue))

    def serve(self, entry: QueueEntry) -> None:
        queue = self._queues[entry.tenant]
        self._now = max(self._now, queue.served)
        self.remove(entry)
        queue.served += entry.num_tokens / entry.weight

    def remove(self, entry: QueueEntry) -> None:
        queue = self._queues[entry.tenant]
        del queue.entries[entry.number]
        if not queue.entries:
            self.num_queues -= 1
        self._count(queue, entry, -1)

    def charge(self, tenant: str, num_tokens: float) -> None:
        """Add cost that was not known when the tenant's request was served."""
        if queue := self._queues.get(tenant):
            queue.served += num_tokens
            if not self.num_waiting:  # the tenant delayed no other by it
                self._now = max(self._now, queue.served)

    def newest_of_longest(self) -> QueueEntry:
        queue = next(iter(self._by_length[-1].values()))
        return queue.entries[next(reversed(queue.entries))]

    def num_of(self, tenant: str) -> int:
        queue = self._queues.get(tenant)
        return len(queue.entries) if queue else 0

    def tokens_of(self, tenant: str) -> int:
        queue = self._queues.get(tenant)
        return queue.num_tokens if queue else 0

    @property
    def longest(self) -> int:
        return len(self._by_length) - 1

    def _count(self, queue: TenantQueue, entry: QueueEntry, change: int) -> None:
        self.num_waiting += change
        self.num_tokens += change * entry.num_tokens
        queue.num_tokens += change * entry.num_tokens
        length, by_length = len(queue.entries), self._by_length
        if length - change:
            del by_length[length - change][queue.tenant]
        if length == len(by_length):
            by_length.append({})
        if length:
            by_length[length][queue.tenant] = queue
        while len(by_length) > 1 and not by_length[-1]:
            by_length.pop()

    def _forget(self) -> None:
        """Drop empty tenant queues that would start at `_now` as new ones do. Few are ahead of it without
        waiting."""
        self._queues = {
            t: queue for t, queue in self._queues.items() if queue.entries or queue.served > self._now
        }
        self._turns = [turn for turn in self._turns if turn[2].entries]
        heapify(self._turns)
        for queue in self._queues.values():
            queue.is_listed = bool(queue.entries)


class FairQueue:
    def __init__(self, max_waiting: int) -> None:
        self.max_waiting = max_waiting
        self._bands: dict[int, Band] = {}
        self._order: list[int] = []  # priorities of bands with requests
        self._deadlines: list[tuple[float, int, QueueEntry]] = []
        self._number = 0
        self._num_waiting = 0

    def __len__(self) -> int:
        return self._num_waiting

    def __repr__(self) -> str:
        return f"FairQueue({self.bands()})"

    @property
    def num_tokens(self) -> int:
        return sum([self._bands[priority].num_tokens for priority in self._order])

    def bands(self) -> list[Band]:
        """Bands with requests, in the order in which they are served."""
        return [self._bands[priority] for priority in self._order]

    def push(self, entry: QueueEntry) -> QueueEntry | None:
        """Queue a request. Returns the request that has to leave a full queue (the new one or a displaced
        one), else None."""
        out = None
        if self._num_waiting >= self.max_waiting:
            out = self._displaced(entry)
            if out is entry:
                return out
            self.remove(out)
        self._number += 1
        entry.number = self._number
        band = self._bands.get(entry.priority)
        if band is None:
            if len(self._bands) >= MAX_BANDS_KEPT:
                self._bands = {priority: self._bands[priority] for priority in self._order}
            band = self._bands[entry.priority] = Band(entry.priority)
        if not band.num_waiting:
            insort(self._order, entry.priority)
        band.add(entry)
        self._num_waiting += 1
        if entry.deadline_s != NEVER:
            self._keep_deadline(entry)
        return out

    def has_room(self, tenant: str, priority: int) -> bool:
        """True if a request that arrives now would be queued."""
        return self._num_waiting < self.max_waiting or self._victim(tenant, priority) is not None

    def displace(self, tenant: str, priority: int, num_tokens: int) -> QueueEntry | None:
        """Take out the request that has to leave for a new one of so many tokens where memory is short: of a
        later priority, or of a tenant with more tokens in the queue. None: the new one has to."""
        victim = self._victim(tenant, priority)
        if victim is None:
            return None
        if victim.priority == priority:
            band = self._bands[priority]
            if band.tokens_of(victim.tenant) <= band.tokens_of(tenant) + num_tokens:
                return None
        self.remove(victim)
        return victim

    def pop(self) -> QueueEntry | None:
        """Take out the next request, which counts as served from now on; None if the queue is empty."""
        if not self._order:
            return None
        band = self._bands[self._order[0]]
        entry = band.next()
        band.serve(entry)
        self._removed(band, entry)
        return entry

    def remove(self, entry: QueueEntry) -> bool:
        """Take a request out; False if it was not waiting."""
        if not entry.number:
            return False
        band = self._bands[entry.priority]
        band.remove(entry)
        self._removed(band, entry)
        return True

    def expire(self, now: float) -> list[QueueEntry]:
        """Take out the requests with expired deadlines."""
        over: list[QueueEntry] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, number, entry = heappop(self._deadlines)
            if entry.number == number:
                self.remove(entry)
                over.append(entry)
        return over

    def charge(self, tenant: str, priority: int, num_tokens: float) -> None:
        """Add cost that was not known when a request was served, already divided by its tenant's weight."""
        if band := self._bands.get(priority):
            band.charge(tenant, num_tokens)

    def ahead(self, tenant: str, priority: int, num_tokens: int) -> int:
        """Estimate of the tokens served up to and including a new request: all earlier bands, and from each
        tenant of its own band as much as from its own tenant."""
        tokens = 0
        for each in self._order:
            if each > priority:
                break
            band = self._bands[each]
            if each < priority:
                tokens += band.num_tokens
            else:
                queue = band.queue(tenant)
                own = (queue.num_tokens if queue else 0) + num_tokens
                others = band.num_queues - (1 if queue and queue.entries else 0)
                tokens += min(band.num_tokens, own * (others + 1) - num_tokens)
        return tokens + num_tokens

    def _displaced(self, entry: QueueEntry) -> QueueEntry:
        return self._victim(entry.tenant, entry.priority) or entry

    def _victim(self, tenant: str, priority: int) -> QueueEntry | None:
        """Request to displace so that no tenant keeps others out by its own queue; None if there is none."""
        if not self._order or self._order[-1] < priority:
            return None
        last = self._bands[self._order[-1]]
        if last.priority == priority and last.longest <= last.num_of(tenant) + 1:
            return None
        return last.newest_of_longest()

    def _removed(self, band: Band, entry: QueueEntry) -> None:
        entry.number = 0
        self._num_waiting -= 1
        if not band.num_waiting:
            del self._order[bisect_left(self._order, band.priority)]

    def _keep_deadline(self, entry: QueueEntry) -> None:
        if len(self._deadlines) > 2 * self._num_waiting + MIN_KEPT:
            self._deadlines = [each for each in self._deadlines if each[2].number == each[1]]
            heapify(self._deadlines)
        heappush(self._deadlines, (entry.deadline_s, entry.number, entry))
