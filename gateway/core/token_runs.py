"""The tree of known prompts: each run has its own tokens and its parent.

A run is named by everything that its tokens depend on, so equal names mean equal tokens; copies of
whole prompts would grow quadratically with a conversation's turns. Bounded in bytes, the least used
leaf goes first, safe across threads.
"""

from collections import OrderedDict
from threading import Lock
from typing import Any, NamedTuple

import msgspec

from gateway.core.blocks import SMALL_BLOCK, BlockHash, HashSpace, Tokens, tokens_of

MAX_BYTES = 64 << 20
"""About 4,000 conversations of 4k tokens, those that share a beginning counted once."""

RUN_BYTES = 500
"""About what a run takes beside its tokens: itself, its name, its places in the dict."""

TOKEN_BYTES = 4 + 4
"""A token, and its share of the block hashes that a run remembers."""

MAX_SPACES = 2
"""Spaces of each run: a conversation is one tenant's, and goes on with one adapter."""


class TokenRun(msgspec.Struct, frozen=True, eq=False):
    """Tokens behind those of `parent`. `proof` is what makes them right: it must be the one in force."""

    name: bytes
    parent: "TokenRun | None"
    tokens: Tokens
    proof: object
    cut: Any
    features: int
    hashes: dict[HashSpace, list[BlockHash]] = msgspec.field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        return RUN_BYTES + TOKEN_BYTES * len(self.tokens)

    def all_tokens(self) -> Tokens:
        chain, run = [self.tokens], self.parent
        while run is not None:
            chain.append(run.tokens)
            run = run.parent
        tokens = tokens_of(())
        for part in reversed(chain):
            tokens.extend(part)
        return tokens


class ContinuedTokens(NamedTuple):
    """Tokens that begin with all those of `run`."""

    tokens: Tokens
    run: TokenRun | None = None


def hash_continued(tokens: Tokens, run: TokenRun | None, space: HashSpace) -> list[BlockHash]:
    """The hashes of the full blocks of `tokens`, which begin with those of `run`; a run's are made once."""
    size = space.block_size
    chain: list[TokenRun] = []
    while run is not None and size >= SMALL_BLOCK:
        chain.append(run)
        run = run.parent
    hashes: list[BlockHash] = []
    end = 0
    for run in reversed(chain):
        end += len(run.tokens)
        own = run.hashes.get(space)
        if own is None:
            own = space.hash_blocks(tokens[len(hashes) * size : end], hashes)
            if len(run.hashes) >= MAX_SPACES:
                run.hashes.clear()
            run.hashes[space] = own
        hashes += own
    hashes += space.hash_blocks(tokens[len(hashes) * size :], hashes)
    return hashes


class TokenRunCache:
    """Tokens of texts that were tokenized lately, in at most `max_bytes`."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._runs: OrderedDict[bytes, TokenRun] = OrderedDict()
        self._lock = Lock()
        self.num_bytes = 0

    def __repr__(self) -> str:
        return f"TokenRunCache({len(self._runs)} runs, {self.num_bytes} of {self._max_bytes} bytes)"

    def __len__(self) -> int:
        return len(self._runs)

    def __contains__(self, name: object) -> bool:
        return name in self._runs

    def describe(self) -> dict[str, int]:
        return {"entries": len(self._runs), "bytes": self.num_bytes, "max_bytes": self._max_bytes}

    def get(self, name: bytes) -> TokenRun | None:
        return self._runs.get(name)

    def use(self, run: TokenRun) -> None:
        """Make it the youngest, and its parents younger: so the oldest has no children."""
        with self._lock:
            node: TokenRun | None = run
            while node is not None:
                if self._runs.get(node.name) is node:
                    self._runs.move_to_end(node.name)
                else:  # new, in another's place, or dropped meanwhile
                    self._put(node)
                node = node.parent
            while self.num_bytes > self._max_bytes:
                self.num_bytes -= self._runs.popitem(last=False)[1].num_bytes

    def _put(self, run: TokenRun) -> None:
        if (former := self._runs.pop(run.name, None)) is not None:
            self.num_bytes -= former.num_bytes
        self._runs[run.name] = run
        self.num_bytes += run.num_bytes
