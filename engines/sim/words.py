"""Generated text of the simulated model: words of its vocabulary, drawn from the seed and the prompt.

Each word is one token with a text of a space and letters, so that a response sent back as part of the next
prompt has the very tokens that were generated, and their blocks are found again.
"""

import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Literal

import msgspec
import tokenizers
from xxhash import xxh3_64_intdigest

from engines.sim.forms import AnswerForm
from gateway.core.blocks import Tokens

SPACES = ("Ġ", "▁")  # byte-level BPE and SentencePiece
MIN_WORDS = 16


class VocabularyError(ValueError):
    """The tokenizer has no words to answer with."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Limits of a response: `max_tokens`, stop strings, or an end by itself."""

    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCall:
    """Call of a tool; its arguments are the tokens from `start` to before `end`."""

    id: str
    name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class GeneratedText:
    """Whole response: one piece of text per token. The end token, if any, has an empty piece."""

    tokens: Tokens
    pieces: Sequence[str]
    finish: Literal["stop", "length"]
    stop_reason: str | None = None
    calls: tuple[ToolCall, ...] = ()

    def call_at(self, number: int) -> tuple[int, ToolCall] | None:
        """Tool call that a token is part of, with its index; None for other tokens."""
        found = enumerate(self.calls)
        return next(((at, call) for at, call in found if call.start <= number < call.end), None)

    def arguments(self, call: ToolCall) -> str:
        return "".join(self.pieces[call.start : call.end])


def garbled(answer: GeneratedText) -> GeneratedText:
    """Response as long, and wrong: that of a model that read the keys and values of another prompt."""
    num_words = sum(bool(piece) for piece in answer.pieces)
    turned = array("I", [*reversed(answer.tokens[:num_words]), *answer.tokens[num_words:]])
    pieces = [*reversed(answer.pieces[:num_words]), *answer.pieces[num_words:]]
    return replace(answer, tokens=turned, pieces=pieces)


class Vocabulary:
    """Words of a tokenizer, its end token, and the text of ids."""

    def __init__(self, tokenizer: Any, eos: int | None) -> None:
        self._tokenizer = tokenizer
        self.eos = eos
        self.size = int(tokenizer.get_vocab_size())
        self._words = _words(tokenizer)

    @classmethod
    def load(cls, directory: Path) -> "Vocabulary":
        tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
        config = msgspec.json.decode((directory / "tokenizer_config.json").read_bytes())
        eos = config.get("eos_token")
        content = eos.get("content") if isinstance(eos, dict) else eos
        return cls(tokenizer, tokenizer.token_to_id(content) if content else None)

    def decode(self, tokens: Sequence[int], skip_special: bool = False) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=skip_special))

    def names(self, tokens: Sequence[int]) -> list[str]:
        return [str(self._tokenizer.id_to_token(token)) for token in tokens]

    def answer(
        self,
        prompt: Tokens,
        sampling: Sampling,
        key: int,
        mean_tokens: int,
        form: AnswerForm | None = None,
    ) -> GeneratedText:
        """Response decided by `key` (seed and choice), the prompt and the form alone."""
        rng = random.Random(xxh3_64_intdigest(prompt.tobytes(), key & (2**64 - 1)))
        if form is not None:
            return self._formed(form, sampling, rng)
        own_length = max(rng.randint(1, 2 * mean_tokens - 1), sampling.min_tokens + 1)
        ends_itself = self.eos is not None and not sampling.ignore_eos and own_length <= sampling.max_tokens
        num_words = own_length - 1 if ends_itself else sampling.max_tokens
        words = rng.choices(self._words, k=num_words)
        pieces = [text for _, text in words]
        tokens = array("I", [token for token, _ in words])
        if found := _first_stop(pieces, sampling):
            return _cut(tokens, pieces, *found)
        if ends_itself and self.eos is not None:
            tokens.append(self.eos)
            return GeneratedText(tokens, [*pieces, ""], "stop")
        return GeneratedText(tokens, pieces, "length")

    def _formed(self, form: AnswerForm, sampling: Sampling, rng: random.Random) -> GeneratedText:
        """Response in a form, cut at `max_tokens` as the engine cuts it."""
        tokens, pieces, calls = array("I"), list[str](), list[ToolCall]()
        for name, text in form.texts(rng):
            encoding = self._tokenizer.encode(text, add_special_tokens=False)
            start, ends = len(tokens), [0, *accumulate((end for _, end in encoding.offsets), max)]
            ends[-1] = len(text)
            tokens.extend(encoding.ids)
            pieces += [text[begin:end] for begin, end in pairwise(ends)]
            if name is not None:
                calls.append(ToolCall(f"call_{rng.getrandbits(96):024x}", name, start, len(tokens)))
        if not calls and (found := _first_stop(pieces, sampling)):
            return _cut(tokens, pieces, *found)
        most = sampling.max_tokens
        if len(tokens) >= most:
            shown = tuple(call for call in calls if call.start < most)
            return GeneratedText(tokens[:most], pieces[:most], "length", calls=shown)
        if self.eos is not None:
            tokens.append(self.eos)
            pieces.append("")
        return GeneratedText(tokens, pieces, "stop", calls=tuple(calls))


def _first_stop(pieces: Sequence[str], sampling: Sampling) -> tuple[int, str] | None:
    """Position in the text of the first stop string, and the string; min_tokens are left alone."""
    text = "".join(pieces)
    start = sum(map(len, pieces[: sampling.min_tokens]))
    found = [(at, stop) for stop in sampling.stop if stop and (at := text.find(stop, start)) >= 0]
    return min(found, default=None)


def _cut(tokens: Tokens, pieces: Sequence[str], at: int, stop: str) -> GeneratedText:
    """Cut a response at a stop string: the token that completes it is the last one; the text ends before
    it."""
    ends = list(accumulate(map(len, pieces)))
    last = next(i for i, end in enumerate(ends) if end >= at + len(stop))
    kept = [piece[: max(0, at - end + len(piece))] for piece, end in zip(pieces, ends, strict=True)]
    return GeneratedText(tokens[: last + 1], kept[: last + 1], "stop", stop)


def _words(tokenizer: Any) -> list[tuple[int, str]]:
    """Tokens that are a word by themselves and are encoded back to themselves in a text of words."""
    vocabulary = sorted((token, name) for name, token in tokenizer.get_vocab(with_added_tokens=False).items())
    named = [(token, f" {name[1:]}") for token, name in vocabulary if name.startswith(SPACES)]
    likely = [
        (token, text) for token, text in named if len(text) > 2 and text[1:].isascii() and text[1:].isalpha()
    ]
    encodings = tokenizer.encode_batch([f"a{text} a" for _, text in likely], add_special_tokens=False)
    words = [word for word, encoding in zip(likely, encodings, strict=True) if word[0] == encoding.ids[1]]
    if len(words) < MIN_WORDS:
        raise VocabularyError(
            f"the tokenizer has {len(words)} words that are one token, {MIN_WORDS} are needed"
        )
    return words
