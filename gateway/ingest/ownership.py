"""Evidence that the KV events read for a worker are that worker's own.

An engine that does not report its publisher is read at a configured port, where another engine of the same
host may publish, and two workers may lead to one publisher. Such a stream is BLIND until a prompt that was
sent to the worker has appeared in it: blocks that were not known before. Where NUM_UNSEEN prompts in a row
were computed and none appeared, the events are another worker's (or about other tokens): they are no longer
applied, and the worker's cache is assumed from what is sent there.

Any prompt may appear; only a plain one must, since not every engine publishes salts, adapters and images in
the form that is known here.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from gateway.core.blocks import BlockHash, hash_blocks, root_hash
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
OK: Final = 200
UNPROVEN: Final = "events come from a port that the worker does not report, and had none of its prompts yet"


class OwnedStream(Protocol):
    """Subscription with events that may be another worker's."""

    def doubt_owner(self, reason: str) -> None:
        """Go BLIND until the owner is proven."""

    def prove_owner(self) -> None:
        """Be as exact as the events are."""

    def disown(self, reason: str) -> None:
        """Forget the blocks of the events, go BLIND and apply no more."""


class _AwaitedPrompt(NamedTuple):
    """Prompt with `depth` blocks that events had reported when it was sent. `must_appear`: it is plain, and
    the worker computes it."""

    blocks: Sequence[BlockHash]
    depth: int
    must_appear: bool


@dataclass(slots=True, eq=False)
class _UnprovenStream:
    """Worker with a stream to be proven; `due` are answered prompts with the time of the look at each."""

    stream: OwnedStream
    place: str
    sent: OrderedDict[str, _AwaitedPrompt] = field(default_factory=OrderedDict)
    due: list[tuple[float, _AwaitedPrompt]] = field(default_factory=list)
    num_unseen: int = 0


class OwnershipObserver:
    """Observer of decisions and answers that proves streams; costs a look at an empty dict where all are."""

    def __init__(self, index: Index, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._index = index
        self._clock = clock
        self._watched: dict[WorkerId, _UnprovenStream] = {}
        self._proven: dict[WorkerId, OwnedStream] = {}
        self._log = RateLimitedLog(log, clock=clock)

    def __repr__(self) -> str:
        return f"OwnershipObserver({len(self._watched)} streams to be proven)"

    def watch(self, worker: WorkerId, stream: OwnedStream, place: str, reason: str = UNPROVEN) -> None:
        """Doubt the stream of a worker, which is read at `place`, until it is proven; if it is, nothing
        changes."""
        if self._proven.get(worker) is not stream:
            self._watched[worker] = _UnprovenStream(stream, place)
            stream.doubt_owner(reason)

    def drop(self, worker: WorkerId, stream: OwnedStream) -> None:
        """Forget a stream that is read no more."""
        if self._proven.get(worker) is stream:
            del self._proven[worker]
        watched = self._watched.get(worker)
        if watched is not None and watched.stream is stream:
            del self._watched[worker]

    # requests ----------------------------------------------------------------------------------

    def decided(self, decided: Decided) -> None:
        if not self._watched:
            return
        decision = decided.decision
        for worker in _workers_of(decision):
            watched = self._watched.get(worker.id)
            if watched is None or not decided.blocks:
                continue
            blocks = decided.blocks[-1]
            depth = self._index.overlap(blocks).get(worker.id, 0)
            if depth < len(blocks):
                is_computed = decision.prefill is None or worker is decision.prefill
                must_appear = is_computed and decided.request.reads_cache and is_plain(decided, worker)
                watched.sent[decision.id] = _AwaitedPrompt(blocks, depth, must_appear)
                if len(watched.sent) > MAX_SENT:
                    watched.sent.popitem(last=False)

    def finished(self, decision: Decision, outcome: Outcome) -> None:
        if not self._watched:
            return
        for worker in _workers_of(decision):
            watched = self._watched.get(worker.id)
            sent = watched.sent.pop(decision.id, None) if watched is not None else None
            if watched is not None and sent is not None and outcome.how == "ended" and outcome.status == OK:
                watched.due.append((self._clock() + SETTLE_S, sent))

    def tick(self) -> None:
        """Look for prompts that were answered some time ago."""
        now = self._clock()
        for worker, watched in list(self._watched.items()):
            while watched.due and watched.due[0][0] <= now and worker in self._watched:
                self._judge(worker, watched, watched.due.pop(0)[1])

    def _judge(self, worker: WorkerId, watched: _UnprovenStream, sent: _AwaitedPrompt) -> None:
        if self._index.holds(worker, sent.blocks[: sent.depth + 1]):
            del self._watched[worker]
            self._proven[worker] = watched.stream
            watched.stream.prove_owner()
            return
        watched.num_unseen += sent.must_appear
        if watched.num_unseen >= NUM_UNSEEN:
            del self._watched[worker]
            reason = f"none of {NUM_UNSEEN} prompts that it computed was in the KV events at {watched.place}"
            text = (
                "worker %s: %s: they are another worker's, or about other tokens, and are no longer applied; "
                'its cache is assumed from sent prompts ([workers."URL"] events_port sets its port)'
            )
            self._log.warning(text, worker, reason)
            watched.stream.disown(reason)


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
