"""Warmer: sends a worker that joined with an empty cache the prefixes that it will be asked for.

    joined ─► its events are followed ─► choose ─► idle? ─► send ─┬─► choose again, of what it lacks now
                                           ▲                      │
                                           └──────────────────────┘   until nothing is left, the share of its
                                                                      cache is used, or `max_s` have passed

One request at a time, while the worker has none of clients; when one comes, it is cancelled at once. It is
booked as load and its blocks as assumed, as those of any request: routing sees both. Usage, recordings and
speed models do not have it.
"""

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from gateway.core.decision import Decided
from gateway.core.event_stream import StreamState
from gateway.core.fleet import Fleet, Member
from gateway.core.ledger import Ledger
from gateway.core.route_table import RouteKind
from gateway.core.speed import TYPICAL
from gateway.core.worker import Role, ServedModel, Worker, WorkerId
from gateway.index.assumed import AssumedIndex
from gateway.index.base import Index
from gateway.runtime.tasks import Tasks
from gateway.warming.body import PATH, body_of
from gateway.warming.choice import choose
from gateway.warming.hot_prefixes import Branch, HotPrefixes, PrefixSpace
from gateway.warming.metrics import WarmingCounts
from gateway.warming.prospects import prospects_of

log = logging.getLogger("kvgate.warming")

LOOK_S: Final = 0.01
"""Time between two looks at the load of a worker: a client's request waits no longer for a cancellation."""
EVENTS_WAIT_S: Final = 2.0
"""Longest wait for the event stream of a worker: blocks of before would not be known to lie there."""
UP_WAIT_S: Final = 2.0
RETRY_S: Final = 0.5
"""Longest pause after a request that was cancelled."""
STEP_S: Final = 0.1
"""Work of one request to a worker that may get clients' requests: engines do not break off a step."""
MIN_TOKEN_S: Final = 1e-6
BUSY_WEIGHT: Final = 0.1
"""Weight of the last request in the share of a worker's busy time."""
MAX_TRIES: Final = 3
"""Requests for one prefix to one worker; all but the last were cancelled."""


@dataclass(frozen=True, slots=True)
class WarmingLimits:
    """The options of `[warming]`; see `config/warming.py`."""

    share: float = 0.0
    max_prefixes: int = 16
    max_s: float = 30.0
    hold_s: float = 5.0


@dataclass(frozen=True, slots=True)
class WarmingSources:
    """Parts of the gateway that the warmer reads and books in. `send` returns why a request failed, None if
    it was answered, "" at the end of its time. `lowest_priority` is an engine's, by its name. `freed` is
    called with a worker that has less to do, `hold` with one that should get no requests for so many seconds
    (False where it gets some), and `warmed` with the share of its prefixes that it has in the end."""

    fleet: Fleet
    index: Index
    assumed: AssumedIndex
    ledger: Ledger
    send: Callable[[Worker, bytes, float], Coroutine[Any, Any, str | None]]
    lowest_priority: Callable[[str], int | None]
    freed: Callable[[WorkerId], None]
    hold: Callable[[WorkerId, float], bool]
    warmed: Callable[[WorkerId, float], None]


class Warmer:
    """Warms the workers that join, and keeps the prefixes for that."""

    def __init__(
        self,
        sources: WarmingSources,
        prefixes: HotPrefixes,
        limits: WarmingLimits,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        rng: random.Random | None = None,
    ) -> None:
        self.sources, self.prefixes, self.limits = sources, prefixes, limits
        self.counts = WarmingCounts()
        self.clock, self.sleep, self.rng = clock, sleep, rng or random.Random()
        self._tasks = Tasks()
        self._busy: dict[WorkerId, float] = {}
        self._running: dict[WorkerId, asyncio.Task[None]] = {}

    def __repr__(self) -> str:
        return f"Warmer({self.limits}, {sorted(self._running)})"

    def decided(self, decided: Decided) -> None:
        """Note the prompt of a client's request."""
        decision, request = decided.decision, decided.request
        worker, busy = decision.worker, self._busy.get(decision.worker.id, 0.0)
        is_busy = self.sources.ledger.load(worker.id).num_in_flight > 1  # beside this request
        self._busy[worker.id] = busy + (is_busy - busy) * BUSY_WEIGHT
        served = worker.find(decision.model) or self.sources.fleet.served().get(decision.model)
        if decision.attempt > 1 or request.kind is RouteKind.PASS or served is None or not worker.block_size:
            return
        space = PrefixSpace(served.root, served.adapter, request.cache_salt, worker.block_size)
        for tokens, blocks in zip(decided.prompt.tokens, decided.blocks, strict=False):
            self.prefixes.note(space, blocks, tokens, self.clock())

    def busy(self, worker: WorkerId) -> float | None:
        """Return the share of a worker's requests that found it busy; None where it takes no requests."""
        member = self.sources.fleet.get(worker)
        if member is None or not member.is_open or member.ejected is not None:
            return None
        return self._busy.get(worker, 0.0)

    def joined(self, workers: Iterable[Worker]) -> None:
        """Begin to warm workers with an empty cache; what was begun for an earlier process ends."""
        for worker in workers if self.limits.share else ():
            if (before := self._running.pop(worker.id, None)) is not None:
                before.cancel()
            task = self._tasks.start(f"warm {worker.id}", self._warm_one(worker))
            self._running[worker.id] = task
            task.add_done_callback(partial(self._ended, worker.id))

    def is_current(self, worker: WorkerId) -> bool:
        """True in the task that warms the process that runs now."""
        return self._running.get(worker) is asyncio.current_task()

    def forget(self) -> None:
        """Forget old prefixes, and workers that have left."""
        fleet = self.sources.fleet
        self._busy = {worker: busy for worker, busy in self._busy.items() if fleet.get(worker) is not None}
        self.prefixes.forget(self.clock())

    def end(self) -> None:
        """End what runs, and forget all prefixes."""
        for task in self._running.values():
            task.cancel()
        self.prefixes.clear()
        self._busy.clear()

    async def stop(self) -> None:
        await self._tasks.stop()

    def _ended(self, worker: WorkerId, task: "asyncio.Task[None]") -> None:
        if self._running.get(worker) is task:
            del self._running[worker]

    async def _warm_one(self, worker: Worker) -> None:
        if (member := self.sources.fleet.get(worker.id)) is None:
            return
        if reason := refusal_of(worker, self.sources.fleet):
            self.counts.skipped[reason] += 1
            return
        await _Warming(self, member).run()


class _Warming:
    """Warming of one worker."""

    def __init__(self, warmer: Warmer, member: Member) -> None:
        self._warmer, self._sources, self._member = warmer, warmer.sources, member
        self._limits, self._clock, self._sleep = warmer.limits, warmer.clock, warmer.sleep
        self._worker = member.worker
        self._began_s = self._clock()
        self._held_until_s = self._began_s
        self._token_s = TYPICAL.token_s
        self._tries = Counter[Branch]()
        self._reached = Counter[Branch]()  # blocks of prefixes that were sent in part
        self._num_sent = self._num_tokens = self._num_all = 0

    async def run(self) -> None:
        """Send prefixes until there is none to send, or none may be sent."""
        await self._wait(self._is_there, UP_WAIT_S, self._is_same)  # one that restarted is not up yet
        if self._next() is None:
            self._warmer.counts.skipped["no_prefixes"] += 1
            return
        if self._limits.hold_s and self._sources.hold(self._worker.id, self._limits.hold_s):
            self._held_until_s = self._clock() + self._limits.hold_s
        try:
            failure = await self._send_all()
        finally:
            if self._warmer.is_current(self._worker.id):  # else another process of it is being warmed
                self._sources.warmed(self._worker.id, self._num_tokens / self._num_all)
        figures = self._num_sent, self._num_tokens, self._num_all, self._clock() - self._began_s
        text = "worker %s warmed: %d prefixes, %d tokens of %d in %.1f s%s"
        end = f"; no more are sent, since it {failure}" if failure else ""
        log.log(logging.WARNING if failure else logging.INFO, text, self._worker.id, *figures, end)

    async def _send_all(self) -> str:
        """Send one prefix after the other; returns why no more are sent, "" at the end of them."""
        await self._wait(lambda: self._member.stream in (None, StreamState.EXACT), EVENTS_WAIT_S)
        while self._next() and await self._wait(self._is_idle, self._left_s()):
            if not (found := self._next()):  # requests may have filled its cache meanwhile
                break
            if failure := await self._send(*found):
                return failure
            if failure is not None:  # several gateways that gave way to each other try again apart
                await self._sleep(self._warmer.rng.uniform(0.0, RETRY_S))
        return ""

    def _next(self) -> tuple[Branch, int] | None:
        """Return the prefix to send now, and its tokens that the worker lacks."""
        sources, name, now = self._sources, self._worker.id, self._clock()
        num_left = self._limits.max_prefixes - self._num_sent
        if num_left <= 0 or now - self._began_s >= self._limits.max_s or not self._is_there():
            return None
        hot = self._warmer.prefixes.hot(self._is_wanted, now)
        hot = [branch for branch in hot if self._tries[branch] < MAX_TRIES and self._fits(branch)]
        prospects = prospects_of(name, hot, sources.index, sources.assumed, self._warmer.busy, now)
        chosen = choose(prospects, self._num_tokens_left(), num_left)
        if not chosen:
            return None
        self._num_all = max(self._num_all, self._num_tokens + sum(each.num_new for each in chosen))
        return hot[chosen[0].end], chosen[0].num_new

    async def _send(self, branch: Branch, num_new: int) -> str | None:
        """Send a prefix, or as much of it as the worker may compute at once; returns why it failed, None
        where it did not, "" where it was cancelled."""
        sources, worker, counts = self._sources, self._worker, self._warmer.counts
        num, num_new = self._piece(branch, num_new)
        served = self._served(branch.space)
        assert served is not None, "only prefixes that it serves are chosen"
        hashes, began_s = branch.prefix_hashes()[:num], self._clock()
        body = body_of(branch, num, served.called or served.name, sources.lowest_priority(worker.engine))
        booking = sources.ledger.book(worker.id, num_new, len(hashes) * branch.space.block_size, began_s)
        sources.assumed.pin(worker.id, hashes)
        self._tries[branch] += 1
        failure: str | None = ""
        try:
            failure = await self._unless_needed(sources.send(worker, body, self._left_s()))
        finally:
            now = self._clock()
            sources.ledger.release(booking, now)
            sources.assumed.unpin(worker.id, hashes, now, was_run=failure is None)
            sources.freed(worker.id)
            counts.seconds += now - began_s
            counts.requests["done" if failure is None else "failed" if failure else "cancelled"] += 1
        if failure is None:
            self._token_s = max((now - began_s) / max(num_new, 1), MIN_TOKEN_S)
            self._reached[branch], self._tries[branch] = num, 0
            if num == branch.num_blocks:
                self._tries[branch] = MAX_TRIES
                self._num_sent += 1
            self._num_tokens += num_new
            counts.tokens += num_new
        return failure

    def _piece(self, branch: Branch, num_new: int) -> tuple[int, int]:
        """Return the blocks of a prefix to send now, and their new tokens: all while the worker is held back,
        else what it computes in `STEP_S`."""
        size, num = branch.space.block_size, branch.num_blocks
        if self._clock() < self._held_until_s:
            return num, num_new
        begin = max(num - num_new // size, self._reached[branch])
        end = min(num, begin + max(int(STEP_S / self._token_s) // size, 1))
        return end, (end - begin) * size

    async def _unless_needed(self, sending: Coroutine[Any, Any, str | None]) -> str | None:
        """Await a request; "" where it was cancelled because a client's needs the worker, or it has gone."""
        task = asyncio.get_running_loop().create_task(sending)
        try:
            while not task.done():
                await asyncio.wait([task], timeout=LOOK_S)
                if not task.done() and not self._is_alone():
                    return ""
            return task.result()
        finally:
            task.cancel()

    async def _wait(
        self, is_true: Callable[[], bool], seconds: float, may_wait: Callable[[], bool] | None = None
    ) -> bool:
        """Wait until something is true of the worker; False if it is not in time, or the worker has gone."""
        until_s = self._clock() + seconds
        while (may_wait or self._is_there)():
            if is_true():
                return True
            if self._clock() >= until_s:
                return False
            await self._sleep(LOOK_S)
        return False

    def _left_s(self) -> float:
        return max(self._began_s + self._limits.max_s - self._clock(), LOOK_S)

    def _is_there(self) -> bool:
        """True while the same process may be sent requests."""
        member = self._member
        return self._is_same() and member.is_open and member.ejected is None and not member.is_busy

    def _is_same(self) -> bool:
        return self._sources.fleet.get(self._worker.id) is self._member

    def _is_idle(self) -> bool:
        return not self._sources.ledger.load(self._worker.id).num_in_flight

    def _is_alone(self) -> bool:
        """True while our request is all that the worker has, and the worker is there."""
        ledger, name = self._sources.ledger, self._worker.id
        num = ledger.here(name).num_in_flight + ledger.remote(name).num_in_flight
        return num <= 1 and self._is_there()

    def _num_tokens_left(self) -> int:
        """Return the tokens until the share of its cache is full, by prefixes or by anything else."""
        worker, sources = self._worker, self._sources
        size, num_blocks = worker.block_size or 0, worker.num_blocks or 0
        num_held = max(sources.index.num_blocks(worker.id), sources.assumed.num_kept(worker.id)) * size
        return int(num_blocks * size * self._limits.share) - max(num_held, self._num_tokens)

    def _is_wanted(self, space: PrefixSpace) -> bool:
        return self._served(space) is not None

    def _served(self, space: PrefixSpace) -> ServedModel | None:
        """Return the name by which the worker is asked for prompts of this space; None where it must not."""
        fleet, worker = self._sources.fleet, self._worker
        judge = fleet.eligibility
        if space.block_size != worker.block_size:
            return None
        if space.cache_salt is not None and judge is not None and not judge.takes_salt(worker):
            return None
        unusable = {each.served.name for each in fleet.unusable(worker.id)}
        for served in worker.served:
            if (served.root, served.adapter) == (space.root, space.adapter) and served.name not in unusable:
                paths = (judge.reachable(worker, served) if judge is not None else served).paths
                return served if paths is None or PATH in paths else None
        return None

    def _fits(self, branch: Branch) -> bool:
        """True where the model is long enough for the prefix and a token."""
        served = self._served(branch.space)
        longest = served.max_model_len if served is not None else None
        return longest is None or branch.num_blocks * branch.space.block_size < longest


def refusal_of(worker: Worker, fleet: Fleet) -> str:
    """Return why a worker is sent no prefixes, "" where it may be."""
    if worker.role is Role.DECODE or worker.is_bound:
        return "role"
    if fleet.eligibility is not None and not fleet.eligibility.takes_lists(worker.engine):
        return "no_token_ids"
    return "" if worker.block_size and worker.num_blocks else "cache_size_unknown"
