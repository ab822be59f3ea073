"""Tokens of single texts that grow (agents' transcripts, documents with one more question behind them).

    text = piece · piece · … · rest         cut behind a letter, before a line break, about every STRIDE

The cuts depend only on the text before them, so a text that has grown has the same pieces and a few more;
each is encoded once, and its tokens are kept among the runs of conversations. Tokenizers split there,
independent of the text around: `are_apart` tests it for every tokenizer, and those that do not (they look at
the whole text, or treat its start apart) have their texts encoded whole.
"""

import re
from collections.abc import Callable, Iterator
from itertools import product
from typing import Final

from xxhash import xxh3_128

from gateway.core.blocks import Tokens
from gateway.core.token_runs import ContinuedTokens, TokenRun, TokenRunCache
from gateway.tokenization.pieces import MAX_CHARS

STRIDE: Final = 2048
"""Characters between two cuts, and up to a line more: the part that a text that grew by a word encodes
again."""

_BORDER: Final = re.compile(r"[A-Za-z](?=\n)")

#  Both sides of a cut: words, marks, digits and scripts before the letter; behind the line break all that
# could join it or be joined.
_BEFORE: Final[tuple[str, ...]] = (
    "a",
    "Hello world",
    "don't",
    "x1y",
    "42 km",
    "École a",
    "漢字abc",
    "  indented",
    "\n\nEnd",
    "(b",
    "#c",
    "_d",
)
_BEHIND: Final[tuple[str, ...]] = (
    "\n",
    "\nword",
    "\n\nTwo",
    "\n  x",
    "\n\t\ty",
    "\n\r\nz",
    "\n.",
    "\n's",
    "\n1234",
    "\n漢",
    "\n\u0301",
    "\n# T",
)
#  Characters on both sides of other cuts, two by two.
_NOISE: Final = ("Z", "é", "漢", "1", " ", "\n", "\t", "\r", ".", "'", "-_", "<|", "\u0301", "😀")


def cuts(text: str) -> Iterator[int]:
    at = STRIDE
    while border := _BORDER.search(text, at, at + MAX_CHARS):
        yield border.end()
        at = border.end() + STRIDE


def are_apart(encode: Callable[[str], Tokens]) -> bool:
    """True if text on both sides of a cut is encoded independently: tried on words and on noise."""
    pairs = [*product(_BEFORE, _BEHIND)]
    pairs += [(one + other + "a", "\n" + other + one) for one, other in product(_NOISE, repeat=2)]
    return all(encode(before + behind) == encode(before) + encode(behind) for before, behind in pairs)


class TextCache:
    """Cache of one tokenizer's texts among the `runs`; `name` distinguishes it from other tokenizers."""

    def __init__(self, runs: TokenRunCache, encode: Callable[[str], Tokens], name: bytes) -> None:
        self._runs = runs
        self._encode = encode
        self._name = name

    def tokens(self, text: str, salt: str | None = None) -> ContinuedTokens:
        """Tokens of a text, equal to encoding it whole. Texts cached under one `salt` speed up nothing under
        another."""
        chain, run, start = xxh3_128(self._name), None, 0
        if salt:
            chain.update(salt.encode("utf-8", "surrogatepass"))
        for end in cuts(text):
            piece = text[start:end]
            chain.update(piece.encode("utf-8", "surrogatepass"))
            name = chain.digest()
            known = self._runs.get(name)
            if known is None or known.parent is not run or known.proof is not self:
                known = TokenRun(name, run, self._encode(piece), self, None, 0)
            run, start = known, end
        rest = self._encode(text[start:])
        if run is None:
            return ContinuedTokens(rest)
        self._runs.use(run)
        tokens = run.all_tokens()
        tokens.extend(rest)
        return ContinuedTokens(tokens, run)
