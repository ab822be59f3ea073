"""Evidence that the KV events read for a worker are that worker's own.

An engine that does not report its publisher is read at a configured port, where another engine of the same
host may publish, and two workers may lead to one publisher. Such a stream is not exact until a prompt that
was sent to the worker has appeared in it: blocks that were not known before.

    state     while
    --------  ----------------------------------------------------------------------------------------------
    UNPROVEN  no prompt was sent that must appear: nothing is wrong
    BLIND     such a prompt was computed and did not appear, or another worker has its events at that place

Where NUM_UNSEEN prompts in a row were computed and none appeared, the events are another worker's (or about
other tokens): they are no longer applied, and the worker's cache is assumed from what is sent there.

Any prompt may appear; only a plain one must, since not every engine publishes salts, adapters and images in
the form that is known here. Blocks that another worker was sent too, or that the answer reports as cached,
show nothing. Prompts count as unseen only where the stream was being read, once each, and where no run of
unknown place has their tokens: an engine does not announce again what it holds.
"""

import asyncio
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from gateway.core.blocks import BlockHash, Tokens, hash_blocks, root_hash
from gateway.core.decision import Decided, Decision
from gateway.core.outcome import Outcome
from gateway.core.worker import Worker, WorkerId
from gateway.index.base import Index
from gateway.runtime.rate_limited_log import RateLimitedLog

log = logging.getLogger("kvgate.ingest")

SETTLE_S: Final = 0.5
"""Time for the events of a prompt after its answer: they take milliseconds, and some engines publish at the
end of a request."""
TICK_S: Final = 0.25
NUM_UNSEEN: Final = 8
"""Prompts in a row that did not appear: fewer may be retries, evictions or a busy engine."""
MAX_SENT: Final = 64
"""Prompts of a worker that are remembered."""
MAX_RECENT: Final = 256
"""Last prompts of all workers that are remembered: their events may still come."""
OK: Final = 200
UNPROVEN: Final = (
    "events come from a port that the worker does not report; its first prompt shows if they are its own"
)


class OwnedStream(Protocol):
    """Subscription with events that may be another worker's."""

    @property
    def is_disowned(self) -> bool: ...

    @property
    def is_read(self) -> bool:
        """True while events are applied as they come: it is connected, and neither replayed nor behind."""

    def has_orphan(self, tokens: Tokens, block_size: int) -> bool:
        """Return True if blocks of unknown place begin with a block of `tokens`."""

    def doubt_owner(self, reason: str, *, is_fault: bool) -> None:
        """Be UNPROVEN, or BLIND where the reason is a fault, until the owner is proven."""

    def prove_owner(self) -> None:
        """Be as exact as the events are."""

    def disown(self, reason: str) -> None:
        """Forget the blocks of the events, go BLIND and apply no more."""


@dataclass(slots=True, eq=False)
class _AwaitedPrompt:
    """Prompt with `depth` blocks that show nothing: events had reported them when it was sent, another worker
    was sent them too, or they were cached. `must_appear`: it is plain, the worker computes it, and its stream
    was being read."""

    blocks: Sequence[BlockHash]
    tokens: Tokens
    block_size: int
    depth: int
    must_appear: bool

    def skip(self, blocks: Sequence[BlockHash]) -> None:
        """Let the blocks that it shares with others show nothing."""
        self.depth = max(self.depth, num_shared(self.blocks, blocks))


@dataclass(slots=True, eq=False)
class _UnprovenStream:
    """Worker with a stream to be proven; `due` are answered prompts with the time of the look at each."""

    stream: OwnedStream
    place: str
    fault: str | None = None
    sent: OrderedDict[str, _AwaitedPrompt] = field(default_factory=OrderedDict)
    due: list[tuple[float, _AwaitedPrompt]] = field(default_factory=list)
    unseen: set[BlockHash] = field(default_factory=set)

    def awaited(self) -> Iterator[_AwaitedPrompt]:
        yield from self.sent.values()
        yield from (prompt for _, prompt in self.due)


class OwnershipObserver:
    """Observer of decisions and answers that proves streams. A request costs a look at a dict that is empty
    where all streams are proven, and little more while the others are not read, as with engines that publish
    no events."""

    def __init__(self, index: Index, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._index = index
        self._clock = clock
        self._watched: dict[WorkerId, _UnprovenStream] = {}
        self._waiting: dict[WorkerId, _UnprovenStream] = {}
        """The watched streams in which prompts may appear: they are read, or await a prompt."""
        self._proven: dict[WorkerId, OwnedStream] = {}
        self._recent: deque[tuple[Decision, Sequence[BlockHash]]] = deque(maxlen=MAX_RECENT)
        self._log = RateLimitedLog(log, clock=clock)

    def __repr__(self) -> str:
        return f"OwnershipObserver({len(self._watched)} streams to be proven)"

    def watch(self, worker: WorkerId, stream: OwnedStream, place: str, fault: str | None = None) -> None:
        """Doubt the stream of a worker, which is read at `place`, until it is proven, for a fault or since
        nothing shows yet that it is its own; if it is proven, nothing changes."""
        if self._proven.get(worker) is stream or stream.is_disowned:
            return
        watched = self._watched.get(worker)
        if watched is None or watched.stream is not stream:
            self._watched[worker] = _UnprovenStream(stream, place, fault)
            self._update_waiting()
        elif fault is None or fault == watched.fault:
            return
        else:
            watched.fault = fault
        stream.doubt_owner(fault or UNPROVEN, is_fault=fault is not None)

    def drop(self, worker: WorkerId, stream: OwnedStream) -> None:
        """Forget a stream that is read no more."""
        if self._proven.get(worker) is stream:
            del self._proven[worker]
        watched = self._watched.get(worker)
        if watched is not None and watched.stream is stream:
            del self._watched[worker]
            self._update_waiting()

    def _update_waiting(self) -> None:
        self._waiting = {
            worker: watched
            for worker, watched in self._watched.items()
            if watched.stream.is_read or watched.sent or watched.due
        }

    # requests ----------------------------------------------------------------------------------

    def decided(self, decided: Decided) -> None:
        if not self._watched or not decided.blocks:
            return
        for worker in _workers_of(decided.decision):
            watched = self._watched.get(worker.id)
            if watched is not None and watched.stream.is_read:
                self._waiting[worker.id] = watched
        if self._waiting:
            self._await_all(decided)
        self._recent.append((decided.decision, decided.blocks[-1]))

    def _await_all(self, decided: Decided) -> None:
        decision, blocks = decided.decision, decided.blocks[-1]
        there = _ids_of(decision)
        for worker in _workers_of(decision):
            watched = self._waiting.get(worker.id)
            if watched is not None and watched.stream.is_read and decided.prompt.tokens:
                self._await(decided, worker, watched, blocks)
        for other, watched in self._waiting.items():
            if other not in there:
                for awaited in watched.awaited():
                    awaited.skip(blocks)

    def _await(
        self, decided: Decided, worker: Worker, watched: _UnprovenStream, blocks: Sequence[BlockHash]
    ) -> None:
        decision = decided.decision
        depth = self._index.overlap(blocks).get(worker.id, 0)
        is_computed = decision.prefill is None or worker is decision.prefill
        is_due = is_computed and decided.request.reads_cache and is_plain(decided, worker)
        awaited = _AwaitedPrompt(blocks, decided.prompt.tokens[-1], worker.block_size or 0, depth, is_due)
        for other, sent in self._recent:
            if worker.id not in _ids_of(other):
                awaited.skip(sent)
        if awaited.depth < len(blocks):
            watched.sent[decision.id] = awaited
            if len(watched.sent) > MAX_SENT:
                watched.sent.popitem(last=False)

    def finished(self, decision: Decision, outcome: Outcome) -> None:
        if not self._watched:
            return
        for worker in _workers_of(decision):
            watched = self._watched.get(worker.id)
            sent = watched.sent.pop(decision.id, None) if watched is not None else None
            if watched is None or sent is None or outcome.result != "ended" or outcome.status != OK:
                continue
            watched.due.append((self._clock() + SETTLE_S, sent))
            cached = (outcome.reported_cached_tokens or 0) // sent.block_size
            if cached:  # these may be credited by the answer, not by events
                for awaited in watched.awaited():
                    awaited.skip(sent.blocks[:cached])

    def tick(self) -> None:
        """Look for prompts that were answered some time ago."""
        now = self._clock()
        for worker, watched in list(self._watched.items()):
            while watched.due and watched.due[0][0] <= now and worker in self._watched:
                self._judge(worker, watched, watched.due.pop(0)[1])
        self._update_waiting()
        if not self._watched:
            self._recent.clear()

    def _judge(self, worker: WorkerId, watched: _UnprovenStream, sent: _AwaitedPrompt) -> None:
        stream = watched.stream
        if sent.depth >= len(sent.blocks):
            return
        if self._index.holds(worker, sent.blocks[: sent.depth + 1]):
            del self._watched[worker]
            self._proven[worker] = stream
            stream.prove_owner()
            return
        behind = sent.tokens[sent.depth * sent.block_size :]
        if not (sent.must_appear and stream.is_read) or stream.has_orphan(behind, sent.block_size):
            return
        watched.unseen.add(sent.blocks[-1])
        num = len(watched.unseen)
        if num < NUM_UNSEEN:
            prompts = f"the last {num} prompts" if num > 1 else "a prompt"
            reason = f"{prompts} that it computed did not appear in the KV events at {watched.place}"
            return stream.doubt_owner(reason, is_fault=True)
        del self._watched[worker]
        reason = f"none of {NUM_UNSEEN} prompts that it computed was in the KV events at {watched.place}"
        text = (
            "worker %s: KV events no longer applied (%s): they belong to another worker, or to other tokens; "
            'its cache is assumed from sent prompts ([workers."URL"] events_port sets its port)'
        )
        self._log.warning(text, worker, reason)
        return stream.disown(reason)


def num_shared(some: Sequence[BlockHash], others: Sequence[BlockHash]) -> int:
    """Return how many leading blocks two prompts share. A hash covers all blocks before it."""
    if not some or not others or some[0] != others[0]:
        return 0
    low, high = 1, min(len(some), len(others))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if some[middle - 1] == others[middle - 1] else (low, middle - 1)
    return low


def _ids_of(decision: Decision) -> Sequence[WorkerId]:
    return [worker.id for worker in _workers_of(decision)]


def _workers_of(decision: Decision) -> Sequence[Worker]:
    """Return the workers that get the prompt."""
    return (decision.worker,) if decision.prefill is None else (decision.prefill, decision.worker)


def is_plain(decided: Decided, worker: Worker) -> bool:
    """Return True for a prompt with hashes that depend on its tokens alone: no adapter, no salt, no image."""
    tokens, size = decided.prompt.tokens, worker.block_size
    if not tokens or not size or not decided.blocks or not decided.blocks[-1] or decided.prompt.links:
        return False
    first = hash_blocks(tokens[-1][:size], size, root_hash(worker.served[0].root))
    return first == list(decided.blocks[-1][:1])


async def keep_proving(observer: OwnershipObserver, interval_s: float = TICK_S) -> None:
    while True:  # noqa: ASYNC110
        await asyncio.sleep(interval_s)
        observer.tick()
