"""Hot prefixes: a tree of the prompts' blocks, with the requests of the last minutes that had them.

    system prompt ──┬── tool list ──┬── ·      what one request alone had: hashes, no tokens
    (tokens kept)   │ (tokens kept) └── ·
                    └── ·

A branch begins where requests diverge, at a block boundary. The token ids of a branch are taken from the
second request that has it, so the text of a single request is never kept: its blocks are known by their
hashes. Memory and time are bounded: what was used least recently is forgotten first, tails before heads.

Prompts of different salts, adapters or models have no branch in common.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from gateway.core.blocks import BlockHash, Tokens

HALF_LIFE_S: Final = 120.0
"""Time in which a request's weight in the rate of its prefixes halves."""
MAX_TOKENS: Final = 32_768
"""Leading tokens of a prompt that are looked at."""
MAX_BRANCHES: Final = 64
"""Branches of one prompt; what lies behind them is not looked at."""
MAX_SEEN: Final = 4096
"""Branches, the most recently used ones, among which the hot ones are found."""
MAX_HOT: Final = 256
BRANCH_BYTES: Final = 700
"""Memory of a branch beside its hashes and tokens."""
_PER_MINUTE: Final = 0.6931 / HALF_LIFE_S * 60.0


class PrefixSpace(NamedTuple):
    """Everything but its tokens that a cached prefix depends on."""

    root: str
    adapter: str | None
    cache_salt: str | None
    block_size: int

    def __repr__(self) -> str:
        return f"PrefixSpace({self.root!r}, {self.adapter!r}, block_size={self.block_size})"


class Branch:
    """A run of blocks between two points where requests diverge. `tokens` is None until a second request has
    it. `weight` is the number of its requests at `used_s`, old ones counted for less."""

    __slots__ = ("space", "parent", "hashes", "tokens", "children", "weight", "used_s")

    def __init__(
        self,
        space: PrefixSpace,
        parent: "Branch | None",
        hashes: "array[int]",
        tokens: "Tokens | None",
        weight: float,
        used_s: float,
    ) -> None:
        self.space, self.parent, self.hashes, self.tokens = space, parent, hashes, tokens
        self.children: dict[int, Branch] = {}
        self.weight, self.used_s = weight, used_s

    def __repr__(self) -> str:
        return f"Branch({len(self.hashes)} blocks, {self.weight:.1f} requests)"

    @property
    def num_bytes(self) -> int:
        return BRANCH_BYTES + 8 * len(self.hashes) + (4 * len(self.tokens) if self.tokens else 0)

    def per_minute(self, now: float) -> float:
        """Return the rate of its requests."""
        return _decayed(self.weight, now - self.used_s) * _PER_MINUTE

    def path(self) -> "list[Branch]":
        """Return the branches from the beginning of the prompt to this one."""
        path, branch = [self], self.parent
        while branch is not None:
            path.append(branch)
            branch = branch.parent
        return path[::-1]

    @property
    def num_blocks(self) -> int:
        """Blocks from the beginning of the prompt to its end."""
        return sum(len(branch.hashes) for branch in self.path())

    def prefix_hashes(self) -> list[BlockHash]:
        return [BlockHash(each) for branch in self.path() for each in branch.hashes]

    def prefix_tokens(self) -> list[int]:
        """Return the token ids from the beginning of the prompt to its end; all of them were shared."""
        return [token for branch in self.path() for token in branch.tokens or ()]


class HotPrefixes:
    """Prefixes of the last `keep_s` seconds in at most `max_bytes`. Times are the caller's."""

    def __init__(self, max_bytes: int, keep_s: float) -> None:
        self.max_bytes, self.keep_s = max_bytes, keep_s
        self.num_bytes = 0
        self._spaces: dict[PrefixSpace, dict[int, Branch]] = {}
        self._branches: OrderedDict[Branch, None] = OrderedDict()
        """Least recently used first; a branch always before its parent."""

    def __len__(self) -> int:
        return len(self._branches)

    def __repr__(self) -> str:
        return f"HotPrefixes({len(self)} branches, {self.num_bytes} bytes)"

    def note(self, space: PrefixSpace, blocks: Sequence[BlockHash], tokens: Tokens, now: float) -> None:
        """Note the prompt of a request: the hashes of its full blocks, and its tokens."""
        size = space.block_size
        hashes = array("Q", blocks[: MAX_TOKENS // size])
        self.forget(now)
        path, at, children = list[Branch](), 0, self._spaces.get(space, {})
        while at < len(hashes) and len(path) < MAX_BRANCHES:
            if (branch := children.get(hashes[at])) is None:
                break
            if (num := _num_common(branch.hashes, hashes, at)) < len(branch.hashes):
                branch = self._split(branch, num)
            branch.weight = _decayed(branch.weight, now - branch.used_s) + 1.0
            branch.used_s = now
            if branch.tokens is None:
                branch.tokens = tokens[at * size : (at + num) * size]
                self.num_bytes += 4 * len(branch.tokens)
            path.append(branch)
            at, children = at + num, branch.children
        if at < len(hashes) and len(path) < MAX_BRANCHES:
            self._add(Branch(space, path[-1] if path else None, hashes[at:], None, 1.0, now))
        for branch in reversed(path):
            self._branches.move_to_end(branch)
        while self.num_bytes > self.max_bytes:
            self._drop_oldest()

    def forget(self, now: float) -> None:
        """Forget what no request had within `keep_s`."""
        while self._branches and next(iter(self._branches)).used_s < now - self.keep_s:
            self._drop_oldest()

    def clear(self) -> None:
        self._branches.clear()
        self._spaces.clear()
        self.num_bytes = 0

    def hot(self, is_wanted: Callable[[PrefixSpace], bool], now: float) -> list[Branch]:
        """Return the shared branches of the wanted spaces with the highest rates, parents before their
        children."""
        found = [branch for branch in self._recent() if is_wanted(branch.space)]
        hottest = sorted(found, key=lambda branch: -branch.per_minute(now))[:MAX_HOT]
        return list(dict.fromkeys(one for branch in hottest for one in branch.path()))

    def _recent(self) -> Iterator[Branch]:
        for branch in islice(reversed(self._branches), MAX_SEEN):
            if branch.tokens is not None:
                yield branch

    def _siblings(self, branch: Branch) -> dict[int, Branch]:
        if branch.parent is not None:
            return branch.parent.children
        return self._spaces.setdefault(branch.space, {})

    def _add(self, branch: Branch) -> None:
        self._siblings(branch)[branch.hashes[0]] = branch
        self._branches[branch] = None
        self.num_bytes += branch.num_bytes

    def _split(self, lower: Branch, num: int) -> Branch:
        """Cut a branch behind `num` blocks and return the part before, a branch of its own with the same
        requests."""
        self.num_bytes -= lower.num_bytes
        size, tokens = lower.space.block_size, lower.tokens
        head = tokens[: num * size] if tokens is not None else None
        upper = Branch(lower.space, lower.parent, lower.hashes[:num], head, lower.weight, lower.used_s)
        self._add(upper)
        lower.parent, lower.hashes = upper, lower.hashes[num:]
        lower.tokens = tokens[num * size :] if tokens is not None else None
        upper.children[lower.hashes[0]] = lower
        self.num_bytes += lower.num_bytes
        return upper

    def _drop_oldest(self) -> None:
        branch, _ = self._branches.popitem(last=False)
        self.num_bytes -= branch.num_bytes
        siblings = self._siblings(branch)
        del siblings[branch.hashes[0]]
        if branch.parent is None and not siblings:
            del self._spaces[branch.space]


def _decayed(weight: float, seconds: float) -> float:
    return float(weight * 0.5 ** (seconds / HALF_LIFE_S))


def _num_common(hashes: "array[int]", others: "array[int]", at: int) -> int:
    """Count the leading hashes that equal those of `others` from `at` on, at least one. Hashes are chained:
    where two are equal, all before them are."""
    low, high = 1, min(len(hashes), len(others) - at)
    while low < high:
        middle = (low + high + 1) // 2
        if hashes[middle - 1] == others[at + middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
