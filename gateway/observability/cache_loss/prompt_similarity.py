"""Prompt similarity: finds text of earlier prompts at any position of a new prompt.

Prompts are marked at positions chosen by their content (SPARSE of 256 pairs of tokens), so that equal text
has equal marks whatever precedes it. A mark is the hash of the GRAM tokens that begin there. The prompt with
the most common marks is compared token by token: the length of the common prefix, and the shared text after
it.

Prompts are kept in memory, bounded in bytes, least recently used first out; they are never shown.
"""

import re
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from xxhash import xxh3_64_intdigest

from gateway.core.blocks import Tokens
from gateway.observability.cache_loss.attribution import TokenSpan

GRAM: Final = 16
"""Tokens in a mark: enough that equal marks are no coincidence."""
SPARSE: Final = 16
"""Marked positions of 256, one in 16: text of a few dozen tokens is found."""
MIN_TOKENS: Final = 64
"""Minimum of new text to examine: less is a question, not a broken prefix."""
MIN_SPAN: Final = 32
"""Minimum of equal text: less is a template's end with a short question, not worth caching."""
MAX_TOKENS: Final = 1 << 16
"""Limit on the tokens of a prompt that are examined and kept, from the first unknown one on."""
PORTION: Final = 4096
"""Tokens marked at once, in a millisecond."""
MAX_SOURCES: Final = 3
"""Earlier prompts to compare: a prompt may contain text of several."""
MAX_RUNS: Final = 64
"""Limit on equal runs per earlier prompt: more fragmented text was not cached as such."""
MAX_BYTES: Final = 16 << 20
"""Limit on memory for earlier prompts: some 1.5 million tokens."""
MARK_BYTES: Final = 130
PROMPT_BYTES: Final = 500


@dataclass(frozen=True, slots=True)
class CacheNamespace:
    """Cache namespace of an engine: a block of one space is never reused in another. `salt` is hashed."""

    root: int
    adapter: str | None
    salt: int


@dataclass(slots=True, eq=False)
class EarlierPrompt:
    """An earlier prompt, and the marks by which it is found."""

    number: int
    space: CacheNamespace
    tokens: Tokens
    last_block: int
    marks: list[int] = field(default_factory=list)

    @property
    def num_bytes(self) -> int:
        return PROMPT_BYTES + 4 * len(self.tokens) + MARK_BYTES * len(self.marks)


@dataclass(frozen=True, slots=True)
class Similarity:
    """Similarity of a prompt to an earlier one: the first `num_common` tokens are equal, and after
    `num_differing` others the tokens in `spans` of the new prompt."""

    space: CacheNamespace
    num_common: int
    num_differing: int
    spans: Sequence[TokenSpan]


class EarlierPrompts:
    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._earlier: OrderedDict[int, EarlierPrompt] = OrderedDict()
        self._by_mark: dict[int, int] = {}
        self._by_block: dict[int, int] = {}
        self._next = 0
        self.num_bytes = 0

    def __repr__(self) -> str:
        return f"EarlierPrompts({len(self._earlier)} prompts, {self.num_bytes} of {self._max_bytes} bytes)"

    def describe(self) -> dict[str, int]:
        return {"entries": len(self._earlier), "bytes": self.num_bytes, "max_bytes": self._max_bytes}

    def find(self, tokens: Tokens, known: int, marks: Mapping[int, int]) -> Similarity | None:
        """The earlier prompt most similar to `tokens`, of which the first `known` were once cached."""
        votes = Counter(map(self._by_mark.get, marks))
        votes.pop(None, None)
        found = [number for number, _ in votes.most_common(MAX_SOURCES) if number is not None]
        if not found:
            return None
        for number in found:
            self._earlier.move_to_end(number)
        first = self._earlier[found[0]]
        common = max(common_prefix(tokens, first.tokens), known)
        spans = [span for number in found for span in self._shared(tokens, common, marks, number)]
        spans.sort(key=lambda span: span.start)
        differing = spans[0].start - common if spans else 0
        return Similarity(first.space, common, differing, spans)

    def add(
        self,
        space: CacheNamespace,
        tokens: Tokens,
        known: int,
        blocks: Sequence[int],
        marks: Mapping[int, int],
        found: Similarity | None,
    ) -> None:
        """Add a prompt that is sent. It replaces the prompt that it continues; known text is not added."""
        covered = found.spans if found else ()
        num_covered = sum(span.end - span.start for span in covered)
        if len(tokens) - known - num_covered < MIN_TOKENS:
            return
        new = [mark for mark, at in marks.items() if not any(span.start <= at < span.end for span in covered)]
        new = [mark for mark in new if mark not in self._by_mark]
        if not new:
            return
        former = next((self._by_block[b] for b in reversed(blocks) if b in self._by_block), None)
        entry = self._earlier.get(former) if former is not None else None
        if entry is None or entry.space != space:
            entry = EarlierPrompt(self._next, space, tokens, blocks[-1])
            self._next += 1
        else:
            self._forget(entry)
            entry.tokens, entry.last_block = tokens, blocks[-1]
        entry.marks += new
        self._keep(entry)
        while self.num_bytes > self._max_bytes:
            self._forget(next(iter(self._earlier.values())))

    def _keep(self, entry: EarlierPrompt) -> None:
        self._earlier[entry.number] = entry
        self._by_mark |= dict.fromkeys(entry.marks, entry.number)
        self._by_block[entry.last_block] = entry.number
        self.num_bytes += entry.num_bytes

    def _forget(self, entry: EarlierPrompt) -> None:
        del self._earlier[entry.number]
        self.num_bytes -= entry.num_bytes
        for mark in entry.marks:
            if self._by_mark.get(mark) == entry.number:
                del self._by_mark[mark]
        if self._by_block.get(entry.last_block) == entry.number:
            del self._by_block[entry.last_block]

    def _shared(
        self, tokens: Tokens, first: int, marks: Mapping[int, int], number: int
    ) -> Iterator[TokenSpan]:
        """Disjoint runs of `tokens` after `first` that an earlier prompt contains too."""
        earlier, done, left = self._earlier[number].tokens, first, MAX_RUNS
        data = earlier.tobytes()
        for mark, at in marks.items():
            if at < done or self._by_mark.get(mark) != number:
                continue
            if not (left := left - 1):
                break
            there = _find(data, tokens[at : at + GRAM].tobytes())
            if there < 0:
                continue
            back = 0
            while (
                at - back > done and there - back > 0 and tokens[at - back - 1] == earlier[there - back - 1]
            ):
                back += 1
            end = at + common_prefix(tokens[at:], earlier[there:])
            if end - (at - back) >= MIN_SPAN:
                yield TokenSpan(at - back, end)
                done = end


def mark(tokens: Tokens, first: int, root: int, marks: dict[int, int]) -> Iterator[None]:
    """Add the marks of the tokens from `first` on, with their positions, to `marks`; in portions."""
    end = min(len(tokens), first + MAX_TOKENS)
    digest = xxh3_64_intdigest
    for start in range(first, end, PORTION):
        data = tokens[start : start + PORTION + GRAM].tobytes()
        last = len(data) // 4 - GRAM
        for place in _CHOSEN.finditer(_pairs(data), 0, max(min(last + 1, PORTION), 0)):
            at = place.start()
            marks.setdefault(digest(data[at * 4 : (at + GRAM) * 4], root), start + at)
        yield


_CHOSEN: Final = re.compile(
    b"[%b]" % re.escape(bytes(value for value in range(1, 256) if value * 167 % 256 < SPARSE))
)


def _pairs(data: bytes) -> bytes:
    """A byte per pair of neighbouring tokens, uniform over 256 values (0: equal tokens); without a loop."""
    low = data[::4]
    one, other = int.from_bytes(low, "little"), int.from_bytes(low[1:], "little")
    return (one ^ other).to_bytes(len(low), "little")


def common_prefix(one: Tokens, other: Tokens) -> int:
    """The number of equal leading tokens."""
    low, high = 0, min(len(one), len(other))
    a, b = memoryview(one), memoryview(other)
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle].tobytes() == b[low:middle].tobytes():
            low = middle
        else:
            high = middle - 1
    return low


def _find(data: bytes, part: bytes) -> int:
    """Position of `part` in `data`, in tokens; -1 if it is absent."""
    at = data.find(part)
    while at >= 0 and at % 4:
        at = data.find(part, at + 1)
    return at // 4 if at >= 0 else -1
