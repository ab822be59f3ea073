"""Requests that wait for one model, and whose turn it is: bounded, by priority, fair between tenants.

    push ─► band (priority: lower goes first, as in vLLM)
              └─ line of a tenant: first come, first served ─► pop: the line that was served least
    full: the newest of the longest line of the last band gives way, or who came does
    remove: its client is gone        expire: its deadline is over

Fair by tokens, as virtual token counters are: a line has a counter of what was served to it, by its weight;
a tenant that comes (back) begins where the one served last stood, so that nobody saves up. While two tenants
wait, what they are served differs by no more than one request of each. All in O(log n); time is given.
"""

from bisect import bisect_left, insort
from collections import OrderedDict
from heapq import heapify, heappop, heappush, heapreplace

NEVER = float("inf")

MAX_BANDS_KEPT = 64
"""Bands of which counters are kept when nobody waits there: clients may name any priority."""

MIN_KEPT = 64
"""Lines without requests, and deadlines of requests that are gone, that are not worth a clean-up."""


class Entry:
    """A request that waits. `num_tokens` is its work, `deadline_s` when it is answered at the latest."""

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
        self.number = 0  # in the order of arrival, while it waits

    def __repr__(self) -> str:
        return f"Entry({self.tenant!r}, priority={self.priority}, {self.num_tokens} tokens)"


class Line:
    """One tenant's requests of one band. `served` is its counter."""

    __slots__ = ("tenant", "entries", "num_tokens", "served", "is_listed")

    def __init__(self, tenant: str, served: float) -> None:
        self.tenant = tenant
        self.entries: OrderedDict[int, Entry] = OrderedDict()
        self.num_tokens = 0
        self.served = served
        self.is_listed = False


class Band:
    """All that wait with one priority. A line is in `_turns` once, under a counter that may be outdated: they
    only grow, so it is set right when it comes up."""

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.num_waiting = 0
        self.num_lines = 0
        self.num_tokens = 0
        self._lines: dict[str, Line] = {}
        self._turns: list[tuple[float, int, Line]] = []
        self._by_length: list[dict[str, Line]] = [{}]
        self._now = 0.0  # the counter of the line that was served last

    def __repr__(self) -> str:
        return f"Band({self.priority}, waiting={self.num_waiting}, lines={self.num_lines})"

    def line(self, tenant: str) -> Line | None:
        return self._lines.get(tenant)

    def add(self, entry: Entry) -> None:
        line = self._lines.get(entry.tenant)
        if line is None:
            if len(self._lines) > 2 * self.num_lines + MIN_KEPT:
                self._forget()
            line = self._lines[entry.tenant] = Line(entry.tenant, self._now)
        if not line.entries:
            self.num_lines += 1
            line.served = max(line.served, self._now)
        line.entries[entry.number] = entry
        if not line.is_listed:
            line.is_listed = True
            heappush(self._turns, (line.served, entry.number, line))
        self._count(line, entry, 1)

    def next(self) -> Entry:
        """Whose turn it is. Some request waits."""
        turns = self._turns
        while True:
            served, number, line = turns[0]
            if not line.entries:
                heappop(turns)
                line.is_listed = False
                continue
            first = next(iter(line.entries))
            if (served, number) == (line.served, first):
                return line.entries[first]
            heapreplace(turns, (line.served, first, line))

    def serve(self, entry: Entry) -> None:
        line = self._lines[entry.tenant]
        self._now = max(self._now, line.served)
        self.remove(entry)
        line.served += entry.num_tokens / entry.weight

    def remove(self, entry: Entry) -> None:
        line = self._lines[entry.tenant]
        del line.entries[entry.number]
        if not line.entries:
            self.num_lines -= 1
        self._count(line, entry, -1)

    def charge(self, tenant: str, num_tokens: float) -> None:
        """What its requests cost beyond what was known before."""
        if line := self._lines.get(tenant):
            line.served += num_tokens
            if not self.num_waiting:  # nobody was kept from anything by it
                self._now = max(self._now, line.served)

    def newest_of_longest(self) -> Entry:
        line = next(iter(self._by_length[-1].values()))
        return line.entries[next(reversed(line.entries))]

    def num_of(self, tenant: str) -> int:
        line = self._lines.get(tenant)
        return len(line.entries) if line else 0

    @property
    def longest(self) -> int:
        return len(self._by_length) - 1

    def _count(self, line: Line, entry: Entry, change: int) -> None:
        self.num_waiting += change
        self.num_tokens += change * entry.num_tokens
        line.num_tokens += change * entry.num_tokens
        length, by_length = len(line.entries), self._by_length
        if length - change:
            del by_length[length - change][line.tenant]
        if length == len(by_length):
            by_length.append({})
        if length:
            by_length[length][line.tenant] = line
        while len(by_length) > 1 and not by_length[-1]:
            by_length.pop()

    def _forget(self) -> None:
        """Lines that would begin at `_now` as new ones do. Those that are ahead of it are few, or wait."""
        self._lines = {t: line for t, line in self._lines.items() if line.entries or line.served > self._now}
        self._turns = [turn for turn in self._turns if turn[2].entries]
        heapify(self._turns)
        for line in self._lines.values():
            line.is_listed = bool(line.entries)


class FairQueue:
    def __init__(self, max_waiting: int) -> None:
        self.max_waiting = max_waiting
        self._bands: dict[int, Band] = {}
        self._order: list[int] = []  # priorities of bands with requests
        self._deadlines: list[tuple[float, int, Entry]] = []
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
        """Those with requests, the first to be served first."""
        return [self._bands[priority] for priority in self._order]

    def push(self, entry: Entry) -> Entry | None:
        """Let it wait. Who gives way where the queue is full: it, or one that waited; else None."""
        out = None
        if self._num_waiting >= self.max_waiting:
            out = self._gives_way(entry)
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
        """For a request that comes now."""
        return self._num_waiting < self.max_waiting or self._victim(tenant, priority) is not None

    def pop(self) -> Entry | None:
        """Whose turn it is, served from now on."""
        if not self._order:
            return None
        band = self._bands[self._order[0]]
        entry = band.next()
        band.serve(entry)
        self._removed(band, entry)
        return entry

    def remove(self, entry: Entry) -> bool:
        """It waits no more; False if it did not wait."""
        if not entry.number:
            return False
        band = self._bands[entry.priority]
        band.remove(entry)
        self._removed(band, entry)
        return True

    def expire(self, now: float) -> list[Entry]:
        """Take out those whose deadlines are over."""
        over: list[Entry] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, number, entry = heappop(self._deadlines)
            if entry.number == number:
                self.remove(entry)
                over.append(entry)
        return over

    def charge(self, tenant: str, priority: int, num_tokens: float) -> None:
        """What a request that was served cost beyond what was known before, divided by its weight."""
        if band := self._bands.get(priority):
            band.charge(tenant, num_tokens)

    def ahead(self, tenant: str, priority: int, num_tokens: int) -> int:
        """About how many tokens would be served before a request, and its own: all of the earlier bands, and
        of its own band as much from each line as from its own."""
        tokens = 0
        for each in self._order:
            if each > priority:
                break
            band = self._bands[each]
            if each < priority:
                tokens += band.num_tokens
            else:
                line = band.line(tenant)
                own = (line.num_tokens if line else 0) + num_tokens
                others = band.num_lines - (1 if line and line.entries else 0)
                tokens += min(band.num_tokens, own * (others + 1) - num_tokens)
        return tokens + num_tokens

    def _gives_way(self, entry: Entry) -> Entry:
        return self._victim(entry.tenant, entry.priority) or entry

    def _victim(self, tenant: str, priority: int) -> Entry | None:
        """Nobody keeps others out by what it lets wait."""
        if not self._order or self._order[-1] < priority:
            return None
        last = self._bands[self._order[-1]]
        if last.priority == priority and last.longest <= last.num_of(tenant) + 1:
            return None
        return last.newest_of_longest()

    def _removed(self, band: Band, entry: Entry) -> None:
        entry.number = 0
        self._num_waiting -= 1
        if not band.num_waiting:
            del self._order[bisect_left(self._order, band.priority)]

    def _keep_deadline(self, entry: Entry) -> None:
        if len(self._deadlines) > 2 * self._num_waiting + MIN_KEPT:
            self._deadlines = [each for each in self._deadlines if each[2].number == each[1]]
            heapify(self._deadlines)
        heappush(self._deadlines, (entry.deadline_s, entry.number, entry))
