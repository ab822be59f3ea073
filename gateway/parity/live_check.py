"""Live token parity of one worker: compares our prompt tokens with the engine's, from two sources. Pure.

    count     `usage.prompt_tokens` of each answer, compared with the number of our tokens
    events    blocks that the engine stored for a sampled prompt: ours or others. If the event stream is
              EXACT, nothing was evicted and the answer ended some time ago, then a missing block of ours was
              never computed from our tokens; the runs that were stored meanwhile show the engine's tokens.
              If our event loop may have stalled, the sample is checked twice, because events that arrived
              long ago are read after the first check

A worker with occasional differences is reported like one with constant differences: see RAISED.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from typing import Final, NamedTuple

from gateway.core.blocks import BlockHash, Tokens, hash_blocks, root_hash
from gateway.core.kv_events import BlocksStored, KvEvent
from gateway.core.worker import Worker, WorkerId
from gateway.index.base import Index, is_prefix_group

MEMORY: Final = 100
"""Checks that the running sum covers, approximately."""
RAISED: Final = 2.5
CLEARED: Final = 0.5
"""Differences in the running sum: three close together raise the alarm, some 150 equal checks clear it."""
FORGOTTEN: Final = 0.01
"""Remainder of a difference some 500 checks later, below which the sum becomes 0."""
NEW_CHECKS: Final = 16
"""Checks of a worker's events until only a sample of its prompts is checked."""
MAX_SAMPLES: Final = 4
MAX_TOKENS: Final = 8192
MAX_RUNS: Final = 32
MAX_RUN_TOKENS: Final = 4096
"""Limits on a sampled prompt and on runs stored while it is open: a megabyte per worker at most."""
MAX_SAMPLE_DECISIONS: Final = 512
"""Decisions after which a sample without an answer is discarded: the answer reported no usage."""
SETTLE_S: Final = 0.25
"""Time for events to arrive, which takes milliseconds; a prompt's events precede those of the next prompt."""
AGAIN_S: Final = 0.05
"""An interval between checks after which the event loop may have stalled, and the delay of the second check:
several iterations of the running loop, each of which reads events."""
NUM_BEFORE: Final = 3
NUM_BEHIND: Final = 5
"""Tokens shown around a difference: enough to find the place, too few to reveal the prompt."""


class StoredRun(NamedTuple):
    """Leading tokens of a run that the engine stored; `is_first`: the run begins a prompt."""

    is_first: bool
    tokens: Tokens


class TokenDifference(NamedTuple):
    """Our tokens and the engine's for the prompt of one decision. `position` is the first difference, None
    if only the counts are known; `ours` and `engines` are the tokens from `start` on."""

    decision: str
    model: str
    num_ours: int
    num_engines: int | None
    position: int | None = None
    start: int = 0
    ours: tuple[int, ...] = ()
    engines: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class TokenSample:
    """A sampled prompt that the engine is to store; `ended_s` is the end of its answer, `num_decided` its
    number among the worker's decisions."""

    decision: str
    model: str
    tokens: Tokens
    blocks: Sequence[BlockHash]
    block_size: int
    root: BlockHash
    num_removed: int
    num_ours: int
    ended_s: float | None = None
    num_engines: int | None = None
    num_decided: int = 0
    runs: deque[StoredRun] = field(default_factory=lambda: deque(maxlen=MAX_RUNS))
    suspected: "TokenDifference | None" = None

    @property
    def is_plain(self) -> bool:
        """True if the prompt's hashes depend on its tokens alone: no adapter, no salt."""
        return hash_blocks(self.tokens[: self.block_size], self.block_size, self.root) == [self.blocks[0]]


class CheckResults:
    """Recent results of one source of checks."""

    __slots__ = ("num", "num_differing", "recent", "is_raised")

    def __init__(self) -> None:
        self.num = self.num_differing = 0
        self.recent = 0.0
        self.is_raised = False

    def __repr__(self) -> str:
        return f"CheckResults({self.num}, differing={self.num_differing}, raised={self.is_raised})"

    def add(self, *, differs: bool) -> None:
        self.num += 1
        self.num_differing += differs
        recent = self.recent * (1 - 1 / MEMORY) + differs
        self.recent = recent if recent > FORGOTTEN else 0.0
        self.is_raised = self.recent >= (CLEARED if self.is_raised else RAISED)


class TokenCheck:
    """Live token parity of one worker. `samples` are open ones, by decision; none is due before `due_s`."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.root = root_hash(worker.served[0].root)
        self.num_decided = 0
        self.counts, self.stored = CheckResults(), CheckResults()
        self.difference: TokenDifference | None = None
        self.samples: dict[str, TokenSample] = {}
        self.due_s = inf
        self._looked_s = -inf

    def __repr__(self) -> str:
        return f"TokenCheck(counts={self.counts}, stored={self.stored})"

    @property
    def is_raised(self) -> bool:
        return self.counts.is_raised or self.stored.is_raised

    @property
    def differed_lately(self) -> bool:
        return self.counts.recent >= CLEARED or self.stored.recent >= CLEARED

    @property
    def wants_samples(self) -> bool:
        """True if every prompt may be sampled: the worker is new, or differed lately."""
        return self.stored.num < NEW_CHECKS or self.differed_lately

    def has_room(self, num_decided: int) -> bool:
        """True if another prompt may be sampled; discards the oldest sample if its answer will not arrive."""
        samples = self.samples
        if len(samples) < MAX_SAMPLES:
            return True
        oldest = next(iter(samples.values()))
        if oldest.ended_s is not None or num_decided - oldest.num_decided < MAX_SAMPLE_DECISIONS:
            return False
        del samples[oldest.decision]
        return True

    def differed(self, difference: TokenDifference) -> None:
        """Keep the latest difference; a difference with a position is not replaced by one of counts."""
        if difference.position is not None or self.difference is None or self.difference.position is None:
            self.difference = difference

    def heard(self, event: KvEvent) -> None:
        """Add a run of a prefix that was stored while samples are open."""
        if type(event) is not BlocksStored or not is_prefix_group(event.group_idx, event.spec_kind):
            return
        if not event.tokens:
            return
        run = StoredRun(event.parent is None, event.tokens[:MAX_RUN_TOKENS])
        for sample in self.samples.values():
            sample.runs.append(run)

    def ended(self, decision: str, num_engines: int, now: float) -> None:
        sample = self.samples.get(decision)
        if sample is not None:
            sample.ended_s, sample.num_engines = now, num_engines
            self.due_s = min(self.due_s, now + SETTLE_S)

    def looks(self, now: float) -> bool:
        """Record the time of a check; true if the event loop may have stalled before it."""
        before, self._looked_s = self._looked_s, now
        return now - before > AGAIN_S

    def due(self, now: float) -> list[TokenSample]:
        """Remove and return the samples with all events received by now."""
        ended = {s.decision: s.ended_s + SETTLE_S for s in self.samples.values() if s.ended_s is not None}
        due = [self.samples.pop(decision) for decision, due_s in ended.items() if due_s <= now]
        self.due_s = min((due_s for due_s in ended.values() if due_s > now), default=inf)
        return due

    def confirmed(
        self, sample: TokenSample, difference: TokenDifference, now: float
    ) -> TokenDifference | None:
        """The difference that both checks of a sample found; None after the first check."""
        first = sample.suspected
        if first is not None:  # the runs that showed the position may be discarded by now
            return first if difference.position is None else difference
        sample.suspected, sample.ended_s = difference, now + AGAIN_S - SETTLE_S
        self.samples[sample.decision] = sample
        self.due_s = min(self.due_s, now + AGAIN_S)
        return None


def compare(sample: TokenSample, worker: WorkerId, index: Index) -> tuple[bool, TokenDifference | None]:
    """Compare a sample with the index: whether the result is conclusive, and the difference if any."""
    depth = _depth(sample.blocks, worker, index)
    if depth == len(sample.blocks):
        return True, None
    if index.applied(worker).num_removed != sample.num_removed or not sample.is_plain or not sample.runs:
        return False, None
    begins = [_begin(sample, depth, run, worker, index) for run in sample.runs]
    found = [(_common(sample.tokens, run, at), run, at) for run, at in filter(None, begins)]
    if not found:
        return True, _difference(sample)
    # Among runs with equally long common prefixes, the one closest in length.
    position, run, at = max(found, key=lambda one: (one[0], -abs(one[2] + len(one[1]) - len(sample.tokens))))
    if position >= (depth + 1) * sample.block_size:
        return False, None  # equal tokens under another hash: the tokens do not differ
    return True, _difference(sample, position, run, at)


def _depth(blocks: Sequence[BlockHash], worker: WorkerId, index: Index) -> int:
    """Number of leading blocks that were stored; an engine with several groups of layers may store fewer at
    first (`Index.overlap`)."""
    return bisect_left(range(1, len(blocks) + 1), True, key=lambda n: not index.holds(worker, blocks[:n]))


def _begin(
    sample: TokenSample, depth: int, run: StoredRun, worker: WorkerId, index: Index
) -> "tuple[Tokens, int] | None":
    """A run's tokens and their position in the prompt, if the run reaches the first missing block."""
    size, tokens = sample.block_size, run.tokens
    if run.is_first:
        begins = [0]
    else:
        behind = range(size, depth * size, size)
        begins = [at for at in behind if sample.tokens[at] == tokens[0] and _follows(sample, at, tokens)]
        if depth and _is_child(sample.blocks[:depth], tokens[:size], worker, index):
            begins.append(depth * size)
    for at in begins:
        if at + len(tokens) > depth * size and _common(sample.tokens, tokens, at) >= depth * size:
            return tokens, at
    return None


def _follows(sample: TokenSample, at: int, tokens: Tokens) -> bool:
    """True if the first block of a run equals the prompt's tokens at that position."""
    return sample.tokens[at : at + sample.block_size] == tokens[: sample.block_size]


def _is_child(before: Sequence[BlockHash], first: Tokens, worker: WorkerId, index: Index) -> bool:
    """True if the worker holds a block of these tokens after the blocks `before`."""
    return index.holds(worker, [*before, *hash_blocks(first, len(first), before[-1])])


def _common(ours: Tokens, run: Tokens, at: int) -> int:
    """The first position in our tokens at which a run that begins at `at` differs."""
    pairs = zip(islice(ours, at, None), run, strict=False)
    num = next((i for i, (one, other) in enumerate(pairs) if one != other), None)
    return at + (min(len(ours) - at, len(run)) if num is None else num)


def _difference(
    sample: TokenSample, position: int | None = None, run: "Tokens | None" = None, at: int = 0
) -> TokenDifference:
    known = (sample.decision, sample.model, sample.num_ours, sample.num_engines)
    if position is None or run is None:
        return TokenDifference(*known)
    start = max(position - NUM_BEFORE, at)
    end = position + NUM_BEHIND
    return TokenDifference(
        *known, position, start, tuple(sample.tokens[start:end]), tuple(run[start - at : end - at])
    )
