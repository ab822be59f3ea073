"""Observer of cache losses: counts recomputed tokens by cause, from decisions and reported usage.

    decided   ─► queue ─► attribution (explainer.py) ─► kept until the answer
    answered  ─► queue ─► settled: causes and new text counted, cached blocks recorded
    finished  ─► queue ─► forgotten, where no usage was reported

The data path only appends to the queue; `step` does the work between requests, a portion at a time
(`keep_explained`). A request that finds the queue full when it is decided is counted as unexplained when it
is answered.
"""

import asyncio
import time
from array import array
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

from gateway.core.blocks import BlockHash
from gateway.core.decision import Decided, Decision
from gateway.core.multimodal import BEFORE_MEDIA
from gateway.core.outcome import Outcome
from gateway.core.usage import Usage
from gateway.core.worker import WorkerId
from gateway.observability.cache_loss.attribution import LossCause, settle
from gateway.observability.cache_loss.block_history import BlockState
from gateway.observability.cache_loss.break_location import PrefixBreak
from gateway.observability.cache_loss.explainer import Attribution, DecidedPrompt, Decode, Explainer, avoided
from gateway.observability.cache_loss.top_losses import TopLosses

PORTION_S: Final = 0.001
PAUSE_S: Final = 0.05
"""Pause between portions: a fiftieth of a core at most, enough for 800 requests/s; beyond that, some requests
are not explained."""
MAX_QUEUED: Final = 1_000
"""Limit on queued items, a second's work: queued requests stay in memory."""
MAX_QUEUED_TOKENS: Final = 1 << 20
"""Limit on queued tokens, of 4 bytes each and their text."""
MAX_QUEUED_BYTES: Final = 8 << 20
"""Limit on queued bodies: a chat's body stays in memory whole, with its images."""
MAX_OPEN: Final = 1 << 14
"""Limit on requests in flight, some 700 bytes each."""
MAX_NOTED_BLOCKS: Final = 1 << 20
"""Limit on queued lost blocks, 8 bytes each: a fleet's whole cache, or a minute's evictions."""
BLOCKS_AT_ONCE: Final = 2_000


class _Answered:
    def __init__(self, decision: Decision, blocks: Sequence[BlockHash], usage: Usage) -> None:
        self.decision = decision
        self.blocks = blocks
        self.usage = usage


class _Unreported(NamedTuple):
    """A request that has ended without reported usage."""

    id: str


class _Gone(NamedTuple):
    """Blocks that a worker has lost."""

    state: BlockState
    blocks: "array[int]"


class _Ended(NamedTuple):
    """A worker that has lost its whole cache."""

    worker: WorkerId


class CacheLoss:
    """Observer of decisions and of an index's lost blocks (its `Losses`), in the order of arrival."""

    def __init__(
        self,
        decode: Decode,
        *,
        shows_text: bool = False,
        seen: Callable[[Decision, Sequence[Sequence[BlockHash]]], None] | None = None,
    ) -> None:
        """Start without observations; `seen` gets each decided request's blocks, between requests."""
        self._seen = seen
        self._queue: deque[DecidedPrompt | _Answered | _Unreported | _Gone | _Ended] = deque()
        self._num_noted_blocks = 0
        self.num_missed_blocks = 0
        self._num_queued_tokens = self._num_queued_bytes = 0
        self._under_way: Iterator[None] = iter(())
        self._is_under_way = False
        self._open: OrderedDict[str, Attribution | None] = OrderedDict()  # None: not looked at yet
        self._offenders = TopLosses()
        self._explainer = Explainer(decode, self._known_break, shows_text=shows_text)
        self.recomputed: Counter[LossCause] = Counter()
        self.unexplained: Counter[str] = Counter()
        self.num_new_tokens = 0
        self.num_computed_tokens = 0
        self.num_avoided_tokens = 0

    def __repr__(self) -> str:
        return f"CacheLoss({len(self._queue)} queued, {len(self._open)} open, {self._explainer.earlier!r})"

    @property
    def is_busy(self) -> bool:
        """True while queued work is left."""
        return bool(self._queue) or self._is_under_way

    # the data path -----------------------------------------------------------------------------

    def decided(self, decided: Decided) -> None:
        decision, prompt, blocks, request = decided.decision, decided.prompt, decided.blocks, decided.request
        if not blocks or len(self._queue) >= MAX_QUEUED or self._has_much_queued():
            return  # counted when it is answered
        num_bytes = len(request.body)
        self._num_queued_tokens += decision.num_tokens
        self._num_queued_bytes += num_bytes
        self._open[decision.id] = None
        if len(self._open) > MAX_OPEN:
            self._open.popitem(last=False)
        salt, reads_cache = request.cache_salt, request.reads_cache
        self._queue.append(
            DecidedPrompt(decision, prompt, blocks, request.messages, salt, reads_cache, num_bytes)
        )

    def _has_much_queued(self) -> bool:
        return self._num_queued_tokens > MAX_QUEUED_TOKENS or self._num_queued_bytes > MAX_QUEUED_BYTES

    def answered(self, decision: Decision, blocks: Sequence[BlockHash], usage: Usage) -> None:
        if usage.cached_tokens is None:
            return
        if decision.id in self._open:
            self._queue.append(_Answered(decision, blocks, usage))
        else:
            self._unexplain(usage, "dropped" if blocks else "unknown_prompt")

    def finished(self, decision: Decision, outcome: Outcome) -> None:
        """Forget a request that no usage settles, such as an aborted stream, once its prompt is explained."""
        if outcome.reported_cached_tokens is None and decision.id in self._open:
            self._queue.append(_Unreported(decision.id))

    # lost blocks of an index -------------------------------------------------------------------

    def evict(self, block: BlockHash) -> None:
        self._note(BlockState.EVICTED, 1).append(block)

    def forget(self, blocks: bytes) -> None:
        self._note(BlockState.RESET, len(blocks) // 8).frombytes(blocks)

    def end(self, worker: WorkerId) -> None:
        """Note that a worker holds nothing any more: once, however often it says so in a row."""
        last = self._queue[-1] if self._queue else None
        if not isinstance(last, _Ended) or last.worker != worker:
            self._queue.append(_Ended(worker))

    def _note(self, state: BlockState, num: int) -> "array[int]":
        """The array to add lost blocks to: the newest queued one, if its blocks are in the same state."""
        queue = self._queue
        if self._num_noted_blocks > MAX_NOTED_BLOCKS:
            self.num_missed_blocks += num
            return array("Q")
        self._num_noted_blocks += num
        last = queue[-1] if queue else None
        if isinstance(last, _Gone) and last.state is state and len(last.blocks) < BLOCKS_AT_ONCE:
            return last.blocks
        queue.append(gone := _Gone(state, array("Q")))
        return gone.blocks

    # state for other components ----------------------------------------------------------------

    def set_drifting(self, worker: WorkerId, is_drifting: bool) -> None:
        """Set whether the worker's engine makes other prompt tokens than kvgate; then lookups of cached
        prefixes for it fail, which explains its recomputed tokens."""
        if is_drifting:
            self._explainer.drifting.add(worker)
        else:
            self._explainer.drifting.discard(worker)

    def describe(self) -> dict[str, Any]:
        """The answer of `/admin/cache-loss`. The numbers of several processes are added up
        (`processes/json_merge.py`)."""
        causes = [{"id": cause.value, "recomputed_tokens": n} for cause, n in self.recomputed.most_common()]
        return {
            "computed_tokens": self.num_computed_tokens,
            "new_tokens": self.num_new_tokens,
            "unattributed_tokens": self.unexplained.total(),
            "avoided_queue_tokens": self.num_avoided_tokens,
            "causes": causes,
            "missed_blocks": self.num_missed_blocks,
            "largest": self._offenders.worst(),
            "memory": self._explainer.earlier.describe(),
        }

    # between requests --------------------------------------------------------------------------

    def step(self) -> bool:
        """Do a portion of what is queued; False if nothing is left."""
        for _ in self._under_way:
            return True
        self._is_under_way = False
        if not self._queue:
            return False
        match self._queue.popleft():
            case DecidedPrompt() as item:
                self._num_queued_tokens -= item.decision.num_tokens
                self._num_queued_bytes -= item.num_bytes
                if self._seen:
                    self._seen(item.decision, item.blocks)
                if item.decision.id in self._open:
                    self._open[item.decision.id] = attribution = Attribution()
                    self._under_way, self._is_under_way = self._explainer.look(item, attribution), True
            case _Answered() as item:
                self._under_way, self._is_under_way = self._settle(item), True
            case _Unreported(id):
                self._open.pop(id, None)
            case _Gone(state, blocks):
                self._num_noted_blocks -= len(blocks)
                self._explainer.history.lose(blocks, state)
            case _Ended(worker):
                self._explainer.lives.end(worker)
        return True

    def _settle(self, item: _Answered) -> Iterator[None]:
        """Count the answered request's losses at once, then record its cached blocks in portions."""
        decision, usage, explainer = item.decision, item.usage, self._explainer
        attribution = self._open.pop(decision.id, None)
        life = explainer.lives.of(decision.worker.id)
        if attribution is None:
            self._unexplain(usage, "dropped")
            return explainer.history.hold(item.blocks, life)
        held = chain.from_iterable(
            explainer.history.hold(b, life) for b in (*attribution.others, item.blocks)
        )
        if attribution.unexplained:
            self._unexplain(usage, attribution.unexplained)
            return held
        cached, evicted_end = usage.cached_tokens or 0, attribution.evicted_end
        if cached < decision.overlap_tokens:
            evicted_end = explainer.evicted_since(decision, item.blocks, attribution)
        num_prompt, num_known = usage.prompt_tokens, max(decision.num_tokens, cached)
        if decision.prompt_from == BEFORE_MEDIA and num_prompt > num_known:
            self.unexplained["behind_media"] += (
                num_prompt - num_known
            )  # which tokens an image has is not known
            num_prompt = num_known
        account = settle(attribution.parts, cached, num_prompt, evicted_end)
        self.num_computed_tokens += max(usage.prompt_tokens - cached, 0)
        self.num_new_tokens += account.num_new
        for cause, num in account.lost.items():
            self._count(cause, num, decision, attribution)
        return held

    def _unexplain(self, usage: Usage, reason: str) -> None:
        num = max(usage.prompt_tokens - (usage.cached_tokens or 0), 0)
        self.num_computed_tokens += num
        self.unexplained[reason] += num

    def _count(self, cause: LossCause, num: int, decision: Decision, attribution: Attribution) -> None:
        self.recomputed[cause] += num
        model, worker, id = decision.model, decision.worker.id, decision.id
        match cause:
            case LossCause.ROUTED_AWAY if attribution.holder:
                holder, bought = attribution.holder.id, avoided(decision, attribution.holder)
                self.num_avoided_tokens += max(bought, 0)
                offender = self._offenders.add(
                    cause, model, num, id, holder, worker, worker=worker, holder=holder
                )
                offender.avoided_queue_tokens += bought
            case LossCause.EVICTED | LossCause.WORKER_RESTARTED:
                by = attribution.lost_by or (worker if attribution.evicted_end else None)
                self._offenders.add(cause, model, num, id, by, holder=by)
            case LossCause.BROKEN_PREFIX:
                self._offenders.add(
                    cause, model, num, id, attribution.family, prefix_break=attribution.prefix_break
                )
            case _:
                self._offenders.add(cause, model, num, id, worker, worker=worker)

    def _known_break(self, model: str, family: int) -> PrefixBreak | None:
        offender = self._offenders.find(LossCause.BROKEN_PREFIX, model, family)
        return offender.prefix_break if offender else None


async def keep_explained(losses: CacheLoss) -> None:
    """Work through the queue in portions with pauses between them, so that requests have priority."""
    while True:
        await asyncio.sleep(PAUSE_S)
        end = time.perf_counter() + PORTION_S
        while losses.step() and time.perf_counter() < end:
            pass
