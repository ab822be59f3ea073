"""Earlier prompts by what is in them: finds text that is known, wherever in a prompt it stands.

A prompt is marked at places that its content chooses (SPARSE of 256 pairs of tokens), so that equal text
is marked alike whatever stands before it. A mark is the hash of the GRAM tokens that begin there. The prompt
that shares the most marks is compared token by token: how far both begin alike, and what of the rest is
its text too.

Prompts are kept in memory, bounded in bytes, the least used go first; they are shown to nobody.
"""

import re
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from xxhash import xxh3_64_intdigest

from gateway.core.blocks import Tokens
from gateway.observability.cache_loss.attribution import Span

GRAM = 16
"""Tokens in a mark: equal ones are no chance."""
SPARSE = 16
"""So many of 256 places are marked, one in 16: text of a few dozen tokens is found."""
MIN_TOKENS = 64
"""Less new text than this is not looked at: a question, not a beginning that broke."""
MIN_SPAN = 32
"""Shorter text that is equal is a template's end and the same short question, which nobody wants cached."""
MAX_TOKENS = 1 << 16
"""Of a prompt, from its first unknown token on; as much is looked at and kept."""
PORTION = 4096
"""Tokens marked at once, in a millisecond."""
MAX_SOURCES = 3
"""Earlier prompts that are compared: one prompt may be made of several."""
MAX_RUNS = 64
"""Of one earlier prompt: text that is cut smaller is no text that was cached."""
MAX_BYTES = 16 << 20
"""Some 1.5 million tokens."""
MARK_BYTES = 130
PROMPT_BYTES = 500


@dataclass(frozen=True, slots=True)
class Space:
    """What engines keep apart: text of one space is no use in another. `salt` is a hash of it."""

    root: int
    adapter: str | None
    salt: int


@dataclass(slots=True, eq=False)
class Earlier:
    """A prompt that was sent, and the marks by which it is found."""

    number: int
    space: Space
    tokens: Tokens
    last_block: int
    marks: list[int] = field(default_factory=list)

    @property
    def num_bytes(self) -> int:
        return PROMPT_BYTES + 4 * len(self.tokens) + MARK_BYTES * len(self.marks)


@dataclass(frozen=True, slots=True)
class Likeness:
    """An earlier prompt that is like another: their first `num_common` tokens are equal, then what is
    in `spans` of the other. `num_differing`: how many tokens further they are alike again."""

    space: Space
    num_common: int
    num_differing: int
    spans: Sequence[Span]


class Alike:
    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._earlier: OrderedDict[int, Earlier] = OrderedDict()
        self._by_mark: dict[int, int] = {}
        self._by_block: dict[int, int] = {}
        self._next = 0
        self.num_bytes = 0

    def __repr__(self) -> str:
        return f"Alike({len(self._earlier)} prompts, {self.num_bytes} of {self._max_bytes} bytes)"

    def describe(self) -> dict[str, int]:
        return {"entries": len(self._earlier), "bytes": self.num_bytes, "max_bytes": self._max_bytes}

    def find(self, tokens: Tokens, known: int, marks: Mapping[int, int]) -> Likeness | None:
        """The earlier prompt most like `tokens`, whose first `known` were cached as they stand."""
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
        return Likeness(first.space, common, differing, spans)

    def add(
        self,
        space: Space,
        tokens: Tokens,
        known: int,
        blocks: Sequence[int],
        marks: Mapping[int, int],
        found: Likeness | None,
    ) -> None:
        """A prompt is sent. It takes the place of one that it goes on from; known text adds nothing."""
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
            entry = Earlier(self._next, space, tokens, blocks[-1])
            self._next += 1
        else:
            self._forget(entry)
            entry.tokens, entry.last_block = tokens, blocks[-1]
        entry.marks += new
        self._keep(entry)
        while self.num_bytes > self._max_bytes:
            self._forget(next(iter(self._earlier.values())))

    def _keep(self, entry: Earlier) -> None:
        self._earlier[entry.number] = entry
        self._by_mark |= dict.fromkeys(entry.marks, entry.number)
        self._by_block[entry.last_block] = entry.number
        self.num_bytes += entry.num_bytes

    def _forget(self, entry: Earlier) -> None:
        del self._earlier[entry.number]
        self.num_bytes -= entry.num_bytes
        for mark in entry.marks:
            if self._by_mark.get(mark) == entry.number:
                del self._by_mark[mark]
        if self._by_block.get(entry.last_block) == entry.number:
            del self._by_block[entry.last_block]

    def _shared(self, tokens: Tokens, first: int, marks: Mapping[int, int], number: int) -> Iterator[Span]:
        """Runs of `tokens` behind `first` that are in an earlier prompt too, and none of them twice."""
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
                yield Span(at - back, end)
                done = end


def mark(tokens: Tokens, first: int, root: int, marks: dict[int, int]) -> Iterator[None]:
    """Put the marks of the tokens from `first` on into `marks`, and where each stands; in portions."""
    end = min(len(tokens), first + MAX_TOKENS)
    digest = xxh3_64_intdigest
    for start in range(first, end, PORTION):
        data = tokens[start : start + PORTION + GRAM].tobytes()
        last = len(data) // 4 - GRAM
        for place in _CHOSEN.finditer(_pairs(data), 0, max(min(last + 1, PORTION), 0)):
            at = place.start()
            marks.setdefault(digest(data[at * 4 : (at + GRAM) * 4], root), start + at)
        yield


_CHOSEN = re.compile(
    b"[%b]" % re.escape(bytes(value for value in range(1, 256) if value * 167 % 256 < SPARSE))
)


def _pairs(data: bytes) -> bytes:
    """A byte for each token and the next, of 256 values equally often (0: they are equal); without a loop."""
    low = data[::4]
    one, other = int.from_bytes(low, "little"), int.from_bytes(low[1:], "little")
    return (one ^ other).to_bytes(len(low), "little")


def common_prefix(one: Tokens, other: Tokens) -> int:
    """How many leading tokens are equal."""
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
    """In tokens; -1 where it is not."""
    at = data.find(part)
    while at >= 0 and at % 4:
        at = data.find(part, at + 1)
    return at // 4 if at >= 0 else -1
