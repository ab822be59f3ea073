"""Verifier: compares predictions with what engines report, finds causes, and sets each worker's confidence.

    decided ─► answered ─► exactness ─► confidence of the fleet's member ─► the next decision
                  │            └─► cause of a wrong prediction ─► alarm, where tenants may share a cache
                  └─► token parity (`parity/live.py`): the engine's count and stored blocks beside ours

The verifier observes each decision, each answer with reported usage (`observability.observers`), each event
applied to the index (`tapped_index`), and each scrape of a worker.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.core.blocks import BlockHash
from gateway.core.decision import Decided, Decision
from gateway.core.engine import EngineMetrics
from gateway.core.fleet import Fleet
from gateway.core.kv_events import KvEvent
from gateway.core.multimodal import BEFORE_MEDIA
from gateway.core.outcome import Outcome
from gateway.core.prediction import compared
from gateway.core.usage import Usage
from gateway.core.worker import Worker, WorkerId
from gateway.index.base import Index
from gateway.observability.verification.accuracy import Accuracy
from gateway.observability.verification.engine_counters import EngineCounters
from gateway.observability.verification.misprediction import ErrorCause, Evidence, cause_of
from gateway.observability.verification.salt_alarm import SaltAlarm
from gateway.parity.live import LiveParity
from gateway.parity.live_check import TokenCheck

MAX_OPEN: Final = 8192
"""Limit on requests in flight."""
MAX_WRONG: Final = 8


@dataclass(frozen=True, slots=True)
class WrongPrediction:
    """A wrong prediction, in tokens."""

    decision: str
    predicted: int
    cached: int
    cause: ErrorCause


class WorkerVerification:
    """Verification state of one worker; a restarted process at the same address is another `worker`.
    `num_answers_before` is the number of reporting answers at the previous scrape, `num_salt_alarms` that of
    answers with cached tokens of another salt. `publishes_salts`: events have named a salted prompt's blocks,
    which some versions publish as if they had no salt."""

    __slots__ = (
        "worker",
        "exactness",
        "tokens",
        "causes",
        "wrong",
        "num_answers_before",
        "num_salt_alarms",
        "publishes_salts",
    )

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.exactness, self.tokens = Accuracy(), TokenCheck(worker)
        self.causes: Counter[ErrorCause] = Counter()
        self.wrong: deque[WrongPrediction] = deque(maxlen=MAX_WRONG)
        self.num_answers_before = self.num_salt_alarms = 0
        self.publishes_salts = False


class _AwaitedAnswer:
    """A decision with an awaited answer: blocks removed at the worker before it, and whether the prompt has a
    salt by which an engine with exact events could be found to share its cache."""

    def __init__(self, num_removed: int, is_salted: bool) -> None:
        self.num_removed = num_removed
        self.is_salted = is_salted


class Verifier:
    """Observer that verifies predictions. `clock` is monotonic seconds; `on_mismatch` is called when a
    worker's prompt tokens begin or cease to differ from ours, `alarm` gets wrong predictions for salted
    prompts."""

    def __init__(
        self,
        fleet: Fleet,
        index: Index,
        clock: Callable[[], float],
        on_mismatch: Callable[[WorkerId, bool], None] = lambda worker, differ: None,
        alarm: SaltAlarm | None = None,
    ) -> None:
        self._fleet = fleet
        self._index = index
        self._parity = LiveParity(fleet, index, clock, on_mismatch)
        self._watched: dict[WorkerId, WorkerVerification] = {}
        self._counters: dict[WorkerId, EngineCounters] = {}
        self._alarm = alarm or SaltAlarm()
        self._open: dict[str, _AwaitedAnswer] = {}

    def __repr__(self) -> str:
        return f"Verifier({len(self._watched)} workers, {len(self._open)} open)"

    # the data path -----------------------------------------------------------------------------

    def decided(self, decided: Decided) -> None:
        decision, prompt = decided.decision, decided.prompt
        if len(prompt.tokens) != 1 or decision.prompt_from == BEFORE_MEDIA:
            return  # unknown tokens; several prompts, of which engines report one; or tokens known in part
        worker = decision.worker
        watched = self._watched.get(worker.id)
        if watched is None or watched.worker is not worker:
            watched = self._watch(worker)
        num_removed = self._index.applied(worker.id).num_removed
        self._open[decision.id] = _AwaitedAnswer(num_removed, _is_watched(decided))
        if len(self._open) > MAX_OPEN:
            del self._open[next(iter(self._open))]
        self._parity.decided(watched.tokens, decided, num_removed)

    def answered(self, decision: Decision, blocks: Sequence[BlockHash], usage: Usage) -> None:
        before = self._open.pop(decision.id, None)
        member, watched = self._fleet.get(decision.worker.id), self._watched.get(decision.worker.id)
        if (
            before is None
            or member is None
            or watched is None
            or not (member.worker is watched.worker is decision.worker)
        ):
            return  # not a decision that we keep, or the worker's process is gone
        self._parity.answered(watched.tokens, decision, usage.prompt_tokens)
        cached = usage.cached_tokens
        if blocks and before.is_salted and not watched.publishes_salts:
            watched.publishes_salts = self._index.holds(decision.worker.id, blocks)
        if blocks and cached is not None:
            found = compared(decision, usage)
            watched.exactness.compare(decision.overlap_tokens, cached, found)
            if found.error:
                self._explain(watched, decision, blocks, usage, cached, before)
            member.confidence = watched.exactness.confidence

    def finished(self, decision: Decision, outcome: Outcome) -> None:
        """Forget a request that ended without reported usage, as most streams do."""
        self._open.pop(decision.id, None)

    def in_doubt(self, worker: WorkerId) -> bool:
        """True if a worker's predictions or tokens were wrong lately, so that its streams are sampled."""
        watched = self._watched.get(worker)
        return watched is not None and (watched.exactness.was_wrong_lately or watched.tokens.differed_lately)

    # beside it ---------------------------------------------------------------------------------

    def heard(self, worker: WorkerId, event: KvEvent) -> None:
        """Handle an event that was applied to the index."""
        watched = self._watched.get(worker)
        if watched is not None and watched.tokens.samples:
            watched.tokens.heard(event)

    def scraped(self, worker: WorkerId, metrics: EngineMetrics | None) -> None:
        """Handle the scrape of a worker, every few seconds; `metrics` is None if the scrape failed."""
        if metrics is not None:
            self._counters.setdefault(worker, EngineCounters()).scraped(metrics)
        watched = self._watched.get(worker)
        if watched is None:
            return
        if watched.exactness.num_answers == watched.num_answers_before:
            watched.exactness.rest()
            if member := self._fleet.get(worker):
                member.confidence = watched.exactness.confidence
        watched.num_answers_before = watched.exactness.num_answers
        self._parity.settle(watched.tokens)

    def watched(self) -> Iterator[tuple[WorkerId, WorkerVerification]]:
        """The fleet's workers to which requests were sent."""
        for member in self._fleet:
            watched = self._watched.get(member.worker.id)
            if watched is not None:
                yield member.worker.id, watched

    def find(self, worker: WorkerId) -> WorkerVerification | None:
        return self._watched.get(worker)

    def counters(self) -> Iterator[tuple[WorkerId, EngineCounters]]:
        """Counters of the fleet's workers with engines that expose them."""
        for member in self._fleet:
            counters = self._counters.get(member.worker.id)
            if counters is not None and counters.prompt_tokens is not None:
                yield member.worker.id, counters

    # steps -------------------------------------------------------------------------------------

    def _watch(self, worker: Worker) -> WorkerVerification:
        """Begin to watch a new or restarted worker; workers that have left the fleet are dropped."""
        for gone in [name for name in self._watched if self._fleet.get(name) is None or name == worker.id]:
            self._parity.dropped(self._watched.pop(gone).tokens)
            if gone != worker.id:
                self._counters.pop(gone, None)
        watched = self._watched[worker.id] = WorkerVerification(worker)
        return watched

    def _explain(
        self,
        watched: WorkerVerification,
        decision: Decision,
        blocks: Sequence[BlockHash],
        usage: Usage,
        cached: int,
        before: _AwaitedAnswer,
    ) -> None:
        worker, size = decision.worker, decision.worker.block_size or 1
        seen = Evidence(
            predicted=decision.overlap_tokens,
            cached=cached,
            from_events=decision.confirmed_tokens,
            num_removed=self._index.applied(worker.id).num_removed - before.num_removed,
            is_reported_now=self._index.holds(worker.id, blocks[: -(-cached // size)]),
            tokens_differ=usage.prompt_tokens not in (0, decision.num_tokens) or watched.tokens.is_raised,
        )
        cause = cause_of(seen)
        watched.causes[cause] += 1
        if before.is_salted and watched.publishes_salts:
            watched.num_salt_alarms += self._alarm.answered(worker, seen, cause)
        watched.wrong.append(WrongPrediction(decision.id, decision.overlap_tokens, cached, cause))


def _is_watched(decided: Decided) -> bool:
    """True for a salted prompt at a worker with exact events: without them a hit that nothing predicted is no
    surprise."""
    return bool(decided.request.cache_salt) and decided.decision.is_exact
