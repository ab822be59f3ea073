"""Long texts to tokens in bounded pieces, with an early end at a model's limit.

    text = piece · piece · … · rest       cut between a letter and a separator with a letter behind it

An encoder takes some 70 bytes of memory for each byte of a word that has no end, and its time grows faster
than the text, so it never gets a long text whole. Pieces give the same tokens: that a tokenizer splits at a
separator, independent of the text around, is tested for each tokenizer (`separators_of`). A long text without
such a place is not tokenized.
"""

import re
from collections.abc import Callable, Sequence
from itertools import product
from threading import local
from typing import Final

from gateway.core.blocks import Tokens, tokens_of
from gateway.tokenization.chat_template import PromptError, TooLong

MIN_CHARS: Final = 128 << 10
MAX_CHARS: Final = 256 << 10
"""Characters of a piece. A word of so many takes 20 MB and a tenth of a second, a usual text 7 ms."""
MAX_CHAR_BYTES: Final = 4
MAX_TOKENS: Final = 4 << 20
"""Tokens of a prompt at most where no worker reports its model's limit."""
SEPARATORS: Final[tuple[str, ...]] = (" ", "\n", ",", ".", "\uff0c", "\u3002", "\u3001")

_LETTERS: Final[tuple[str, ...]] = ("a", "Z", "é", "я", "漢", "あ", "word")
_BEFORE: Final = ("", "x ", "\n\n", "1", "'", "  ", "#", "don'", "-", "漢", "\u0301", "😀", "_")
_WORDS: Final = ("LL", "漢字", "s'll ", "a b, c. d\n")
_BEHIND: Final = ("", " y", "'s", "1", "\n", ".", "  ", "é", "\u0301", "\t", *_WORDS)


def separators_of(encode: Callable[[str], Tokens], added: Sequence[str], eaters: Sequence[str]) -> str:
    """Separators before which a text can be cut without changing a token. `added` are the texts of added
    tokens, `eaters` of those that take neighbouring white space or ask for a word's end."""
    if any(text[:1].isalpha() or text[-1:].isalpha() for text in eaters):
        return ""
    kept = ""
    for separator in SEPARATORS:
        border = border_of(separator)
        is_in_one = any(border.search(text) or text[:1] == separator for text in added)
        if not is_in_one and all(
            encode(one + other) == encode(one) + encode(other) for one, other in _pairs(separator)
        ):
            kept += separator
    return kept


def _pairs(separator: str) -> list[tuple[str, str]]:
    """Pairs of texts around a separator: all letters on both sides, each time among others."""
    letters = [*product(_LETTERS, _LETTERS)] * 4
    return [
        (_BEFORE[n % len(_BEFORE)] + one, separator + other + _BEHIND[n % len(_BEHIND)])
        for n, (one, other) in enumerate(letters)
    ]


def border_of(separators: str) -> "re.Pattern[str]":
    return re.compile(rf"[^\W\d_](?=[{re.escape(separators)}][^\W\d_])")


class Pieces:
    """Encoder of long texts. `encode` makes tokens of one piece, `longest` is the tokenizer's
    `longest_token`, and `find_separators` runs at the first text that must be cut."""

    def __init__(
        self, encode: Callable[[str], Tokens], find_separators: Callable[[], str], longest: int | None = None
    ) -> None:
        self._encode = encode
        self._find_separators = find_separators
        self._borders: list[re.Pattern[str]] | None = None
        self.longest = longest
        self._expected = local()  # each thread has one prompt at a time

    def __repr__(self) -> str:
        return f"Pieces(longest={self.longest}, max_tokens={self.max_tokens})"

    @property
    def max_tokens(self) -> int:
        """Token limit of the prompt that this thread works on; 0 where it is unknown."""
        found: int = getattr(self._expected, "max_tokens", 0)
        return found

    def expect(self, max_tokens: int) -> int:
        """Set the token limit of this thread's next prompts (0: unknown). Returns the bytes of text that are
        too many in any case; 0 where there is no such bound."""
        self._expected.max_tokens = max_tokens
        return (self.longest or 0) * max_tokens

    def may_be_too_long(self, num_bytes: int) -> bool:
        """True if so many bytes of JSON may be a text that `check` rejects."""
        longest = self.longest
        if longest is None or num_bytes < MIN_CHARS:
            return False
        return 0 < self.max_tokens * longest < num_bytes

    def check(self, num_bytes: int) -> None:
        """Check a text of `num_bytes` against the limit of tokens. Raises TooLong where no tokenization
        fits."""
        if self.longest and self.may_be_too_long(num_bytes):
            raise TooLong(-(-num_bytes // self.longest))  # rounded up

    def check_text(self, text: str) -> None:
        """Check a text against the limit of tokens by its bytes. Raises TooLong where no tokenization
        fits."""
        self.check(len(text))  # of as many bytes at least
        if text.isascii() or not self.may_be_too_long(MAX_CHAR_BYTES * len(text)):
            return
        num_bytes = 0
        for start in range(0, len(text), MAX_CHARS):
            num_bytes += len(text[start : start + MAX_CHARS].encode("utf-8", "surrogatepass"))
            self.check(num_bytes)

    def encode(self, text: str) -> Tokens:
        """Tokens of the text. Raises TooLong, and PromptError for a text that cannot be cut."""
        self.check_text(text)
        tokens, start, most = tokens_of(()), 0, self.max_tokens or MAX_TOKENS
        while start < len(text):
            end = self._end(text, start)
            tokens.extend(self._encode(text[start:end]))
            if len(tokens) > most:
                raise TooLong(len(tokens))
            start = end
        return tokens

    def _end(self, text: str, start: int) -> int:
        left = len(text) - start
        if left <= MAX_CHARS:
            return len(text)
        if self._borders is None:
            separators = self._find_separators()
            self._borders = [border_of(separators)] if separators else []
        for border in self._borders:
            if found := border.search(text, start + MIN_CHARS, start + MAX_CHARS):
                return found.end()
        if left <= 2 * MAX_CHARS:
            return len(text)
        raise PromptError(f"a text of more than {2 * MAX_CHARS} characters that cannot be cut")
