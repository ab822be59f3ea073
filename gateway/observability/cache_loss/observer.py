"""Sees each decision and what the engine told of it, and counts why tokens were computed again.

    decided   ─► queue ─► outlook (explainer.py) ─► kept until the answer
    answered  ─► queue ─► settled: causes and new text counted, what was cached is remembered

On the data path things are only put into the queue; `step` does the rest, a portion at a time, when
nothing else waits (`keep_explained`). A request that the queue has no room for when it is decided is counted
as unexplained when it is answered, and costs nothing more.
"""

import asyncio
import time
from array import array
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

from gateway.core.blocks import BlockHash
from gateway.core.decision import Decided, Decision
from gateway.core.multimodal import BEFORE_MEDIA
from gateway.core.usage import Usage
from gateway.core.worker import WorkerId
from gateway.observability.cache_loss.attribution import Cause, settle
from gateway.observability.cache_loss.block_history import Way
from gateway.observability.cache_loss.break_location import Break
from gateway.observability.cache_loss.explainer import DecidedPrompt, Decode, Explainer, Outlook, avoided
from gateway.observability.cache_loss.top_losses import Offenders

PORTION_S = 0.001
PAUSE_S = 0.05
"""A fiftieth of a core at most, enough for 800 requests/s: of what comes faster a part is dropped."""
MAX_QUEUED = 1_000
"""A second's work. What waits is kept from being freed, which makes requests dearer."""
MAX_QUEUED_TOKENS = 1 << 20
"""4 bytes each, and the text that they were made of."""
MAX_QUEUED_BYTES = 8 << 20
"""Bodies of chats that wait are kept whole, and one with an image is all image."""
MAX_OPEN = 1 << 14
"""Requests on their way, some 500 bytes each; those whose answers tell no usage stay until others come."""
MAX_NOTED_BLOCKS = 1 << 20
"""8 bytes each: a fleet's whole cache, or what it evicts in a minute."""
BLOCKS_AT_ONCE = 2_000


class _Answered(NamedTuple):
    decision: Decision
    blocks: Sequence[BlockHash]
    usage: Usage


class _Gone(NamedTuple):
    """Blocks that some worker no longer holds."""

    way: Way
    blocks: "array[int]"


class _Ended(NamedTuple):
    """A worker that holds nothing of what it held."""

    worker: WorkerId


class CacheLoss:
    """Observer of decisions and of an index's lost blocks (its `Losses`), in the order of arrival."""

    def __init__(self, decode: Decode, *, shows_text: bool = False) -> None:
        self._queue: deque[DecidedPrompt | _Answered | _Gone | _Ended] = deque()
        self._num_noted_blocks = 0
        self.num_missed_blocks = 0
        self._num_queued_tokens = self._num_queued_bytes = 0
        self._under_way: Iterator[None] = iter(())
        self._is_under_way = False
        self._open: OrderedDict[str, Outlook | None] = OrderedDict()  # None: not looked at yet
        self._offenders = Offenders()
        self._explainer = Explainer(decode, self._known_break, shows_text=shows_text)
        self.recomputed: Counter[Cause] = Counter()
        self.unexplained: Counter[str] = Counter()
        self.num_new_tokens = 0
        self.num_computed_tokens = 0
        self.num_avoided_tokens = 0

    def __repr__(self) -> str:
        return f"CacheLoss({len(self._queue)} queued, {len(self._open)} open, {self._explainer.alike!r})"

    @property
    def is_busy(self) -> bool:
        """Whether there is something left to explain."""
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

    # what an index notes -----------------------------------------------------------------------

    def evict(self, block: BlockHash) -> None:
        self._note(Way.EVICTED, 1).append(block)

    def forget(self, blocks: bytes) -> None:
        self._note(Way.RESET, len(blocks) // 8).frombytes(blocks)

    def end(self, worker: WorkerId) -> None:
        self._queue.append(_Ended(worker))

    def _note(self, way: Way, num: int) -> "array[int]":
        """Where to write them: beside the latest, if these were lost in the same way."""
        queue = self._queue
        if self._num_noted_blocks > MAX_NOTED_BLOCKS:
            self.num_missed_blocks += num
            return array("Q")
        self._num_noted_blocks += num
        last = queue[-1] if queue else None
        if isinstance(last, _Gone) and last.way is way and len(last.blocks) < BLOCKS_AT_ONCE:
            return last.blocks
        queue.append(gone := _Gone(way, array("Q")))
        return gone.blocks

    # what others know --------------------------------------------------------------------------

    def set_drifting(self, worker: WorkerId, is_drifting: bool) -> None:
        """Whether our tokens of its prompts are not those that the engine makes: then what it computes again
        could not have been found."""
        if is_drifting:
            self._explainer.drifting.add(worker)
        else:
            self._explainer.drifting.discard(worker)

    def describe(self) -> dict[str, Any]:
        """For `/admin/cache-loss`. The numbers of several processes are added up
        (`processes/json_merge.py`)."""
        causes = [{"id": cause.value, "recomputed_tokens": n} for cause, n in self.recomputed.most_common()]
        return {
            "computed_tokens": self.num_computed_tokens,
            "new_tokens": self.num_new_tokens,
            "unexplained_tokens": self.unexplained.total(),
            "avoided_tokens": self.num_avoided_tokens,
            "causes": causes,
            "missed_blocks": self.num_missed_blocks,
            "worst": self._offenders.worst(),
            "memory": self._explainer.alike.describe(),
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
                if item.decision.id in self._open:
                    self._open[item.decision.id] = outlook = Outlook()
                    self._under_way, self._is_under_way = self._explainer.look(item, outlook), True
            case _Answered() as item:
                self._under_way, self._is_under_way = self._settle(item), True
            case _Gone(way, blocks):
                self._num_noted_blocks -= len(blocks)
                self._explainer.past.lose(blocks, way)
            case _Ended(worker):
                self._explainer.lives.end(worker)
        return True

    def _settle(self, item: _Answered) -> Iterator[None]:
        """Counts at once, and then remembers what is cached now."""
        decision, usage, explainer = item.decision, item.usage, self._explainer
        outlook = self._open.pop(decision.id, None)
        life = explainer.lives.of(decision.worker.id)
        if outlook is None:
            self._unexplain(usage, "dropped")
            return explainer.past.hold(item.blocks, life)
        held = chain.from_iterable(explainer.past.hold(b, life) for b in (*outlook.others, item.blocks))
        if outlook.unexplained:
            self._unexplain(usage, outlook.unexplained)
            return held
        cached, evicted_end = usage.cached_tokens or 0, outlook.evicted_end
        if cached < decision.overlap_tokens:
            evicted_end = explainer.evicted_since(decision, item.blocks, outlook)
        num_prompt, num_known = usage.prompt_tokens, max(decision.num_tokens, cached)
        if decision.prompt_from == BEFORE_MEDIA and num_prompt > num_known:
            self.unexplained["behind_media"] += (
                num_prompt - num_known
            )  # which tokens an image has is not known
            num_prompt = num_known
        account = settle(outlook.parts, cached, num_prompt, evicted_end)
        self.num_computed_tokens += max(usage.prompt_tokens - cached, 0)
        self.num_new_tokens += account.num_new
        for cause, num in account.lost.items():
            self._count(cause, num, decision, outlook)
        return held

    def _unexplain(self, usage: Usage, reason: str) -> None:
        num = max(usage.prompt_tokens - (usage.cached_tokens or 0), 0)
        self.num_computed_tokens += num
        self.unexplained[reason] += num

    def _count(self, cause: Cause, num: int, decision: Decision, outlook: Outlook) -> None:
        self.recomputed[cause] += num
        model, worker, id = decision.model, decision.worker.id, decision.id
        match cause:
            case Cause.ROUTED_AWAY if outlook.holder:
                holder, bought = outlook.holder.id, avoided(decision, outlook.holder)
                self.num_avoided_tokens += max(bought, 0)
                offender = self._offenders.add(
                    cause, model, num, id, holder, worker, worker=worker, holder=holder
                )
                offender.avoided_tokens += bought
            case Cause.EVICTED | Cause.WORKER_RESTARTED:
                by = outlook.lost_by or (worker if outlook.evicted_end else None)
                self._offenders.add(cause, model, num, id, by, holder=by)
            case Cause.BROKEN_PREFIX:
                self._offenders.add(cause, model, num, id, outlook.family, broken=outlook.broken)
            case _:
                self._offenders.add(cause, model, num, id, worker, worker=worker)

    def _known_break(self, model: str, family: int) -> Break | None:
        offender = self._offenders.find(Cause.BROKEN_PREFIX, model, family)
        return offender.broken if offender else None


async def keep_explained(losses: CacheLoss) -> None:
    """A portion, a pause: whatever comes, requests come first."""
    while True:
        await asyncio.sleep(PAUSE_S)
        end = time.perf_counter() + PORTION_S
        while losses.step() and time.perf_counter() < end:
            pass
