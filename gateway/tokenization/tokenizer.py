"""Text to token ids by Hugging Face's tokenizer.json, with a cache of text segments.

Two encoders of the same file: `fastokens`, tried first and kept only if it agrees with `tokenizers` on
telling texts, else `tokenizers`. Both release the GIL here (`tokenizers.encode` would not, its `encode_batch`
does), so a long cold prompt can be encoded in a thread.

Text between special tokens is encoded independently, so a conversation's next turn costs its new segments
only. fastokens caches segments itself; for `tokenizers` `SegmentCache` does.
"""

import os
import re
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import fastokens
import msgspec
import tokenizers

from gateway.core.blocks import Tokens
from gateway.core.decode_errors import UNREADABLE
from gateway.tokenization.longest_token import longest_token
from gateway.tokenization.pieces import MAX_CHARS, Pieces, separators_of

# 64 MiB of text and ids are some 250 conversations of 64k tokens.
CACHE_BYTES = 64 << 20
#  Bytes that a dict entry, a str and a bytes object take beside their content.
ENTRY_BYTES = 200
# Models list thousands of tokens that no prompt has; those that templates print come first.
MAX_CUTS = 256
FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")

# Texts on which tokenizers have disagreed: runs of white space, digits, scripts without spaces, composed and
# decomposed letters, emoji sequences, letters that fold, byte fallback, code, long words.
SAMPLES = (
    "",
    " ",
    "Hello, world! It's 3 o'clock; they'll've gone.",
    "  two  spaces   three\t\ttabs \n\n\n newlines \r\n crlf  ",
    "0 12 345 6789 1234567890 3.14159 1e-9 0xdeadbeef",
    "def f(x: int) -> str:\n    return f'{x!r}' if x >= 0 else \"\\n\"\n\n\nclass A:\n\tpass\n",
    '{"a": [1, 2, {"b": null}], "c": "\\u00e9"}<html>&amp;</html>',
    "naïve café — “quotes” … ½ € ‰ ﬁ Å A\u030a e\u0301 İ ß ſ",
    "今天天气很好。日本語のテキスト、カタカナ。한국어 문장입니다. ไทยไม่มีช่องว่าง",
    "Привет, мир! Γειά σου. שלום עולם مرحبا بالعالم हिन्दी में",
    "😀👍🏽👩‍👩‍👧‍👦🏳️‍🌈 \u200b\u200d\ufeff\u00a0\u3000 \x00\x01\x7f",
    "b  \u180e\n\u180e1 \u180e\u180ea \u180e\u200b",  # a blank for one library for regular expressions only
    "a" * 300 + " " * 70 + "." * 70 + "\n" * 40 + "é" * 200 + "漢" * 200,
    "The quick brown fox jumps over the lazy dog, 42 times a day. " * 40,
)
# Texts on both sides of a special token: letters, spaces, marks that combine, words that could join.
NEIGHBOURS = ("a", " a ", "\n", "\u0301x", ".", "1", "\u3042", " \t\n b", "#", "'s")


class TokenizerError(ValueError):
    """The tokenizer's files cannot be used, or a text is not valid Unicode (lone surrogates)."""


class _File(msgspec.Struct):
    """Fields of a tokenizer.json that are read here."""

    added_tokens: list[dict[str, Any]] | None = None


_decode_file = msgspec.json.Decoder(_File).decode


Rebuild = Callable[[str], str]
"""Text of a tokenizer.json as another class makes it. Raises one of UNREADABLE, or KeyError."""


class Encoder(Protocol):
    def encode(self, texts: Sequence[str]) -> list[bytes]:
        """Token ids without those that frame a prompt, as u32 LE bytes; one item per text."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, including special tokens; incomplete characters are replaced."""


class CachingEncoder(Encoder, Protocol):
    def cache(self) -> dict[str, int]:
        """Size of the cache: `entries`, `bytes`, `max_bytes`."""


class Tokenizer:
    """Tokenizer of a model. `kind` is the encoder in use, `why` the reason for it."""

    def __init__(
        self,
        encoder: CachingEncoder,
        kind: str,
        why: str,
        frame: tuple[bytes, bytes],
        cuts: tuple[str, ...] = (),
        longest: int | None = None,
        added: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Wrap an encoder. `cuts`: see `cut_tokens`; `longest`: see `longest_token`."""
        self._encoder = encoder
        self.kind = kind
        self.why = why
        self.cuts = cuts
        self._prefix, self._suffix = frame
        contents = [token["content"] for token in added]
        eaters = [token["content"] for token in added if any(_flags(token)[:3])]
        self.pieces = Pieces(self._whole, lambda: separators_of(self._whole, contents, eaters), longest)

    @classmethod
    def load(
        cls,
        path: Path,
        added: Sequence[Mapping[str, Any]] = (),
        specials: Sequence[Mapping[str, Any]] = (),
        cache_bytes: int = CACHE_BYTES,
        rebuild: Rebuild | None = None,
    ) -> "Tokenizer":
        """Load tokenizer.json at `path`, changed as the model's configuration says.

        `added` tokens are added or given other flags, `specials` are added only where they are missing;
        `rebuild` makes the text of another class's tokenizer of that of the file.
        """
        text, own = _read(path, added, specials, rebuild)
        #  First, so that long-lived memory lies below the reference's, which can then be given back.
        fast, why = _load_fast(text, cache_bytes)
        reference = _reference(text, path)
        reference.no_truncation()
        reference.no_padding()
        plain = ReferenceEncoder(reference)
        frame = _frame(reference, plain, path)
        longest = longest_token(text, reference.get_vocab(with_added_tokens=False))
        if fast is not None:
            fast, why = _agreed(fast, plain, own)
        if fast is not None:
            return cls(fast, "fastokens", why, frame, cut_tokens(fast, own), longest, own)
        cuts = cut_tokens(plain, own)
        segments = SegmentCache(plain, cuts, cache_bytes)
        return cls(segments, "tokenizers", f"{why}; {segments.why}", frame, cuts, longest, own)

    def __repr__(self) -> str:
        return f"Tokenizer({self.kind}: {self.why})"

    def cache(self) -> dict[str, int]:
        """Size of the segment cache: `entries`, `bytes`, `max_bytes`."""
        return self._encoder.cache()

    @property
    def num_frame_tokens(self) -> int:
        """Number of ids that `add_special_tokens` adds."""
        return (len(self._prefix) + len(self._suffix)) // 4

    def encode(self, text: str, add_special_tokens: bool) -> Tokens:
        """Token ids of `text`; with `add_special_tokens` between those that open and close a prompt. Raises
        PromptError for a long text that has too many tokens, or no place to cut it."""
        tokens = self._whole(text) if len(text) <= MAX_CHARS else self.pieces.encode(text)
        return self.frame(tokens) if add_special_tokens else tokens

    def _whole(self, text: str) -> Tokens:
        try:
            (ids,) = self._encoder.encode((text,))
        except (UnicodeEncodeError, TypeError) as exc:
            raise TokenizerError(f"not Unicode text: {exc}") from exc
        return array("I", ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of `tokens`, for display: invalid bytes and unknown ids are replaced."""
        try:
            return self._encoder.decode(tokens)
        except Exception:  # noqa: BLE001 - their errors have no class of their own
            return "\ufffd"

    def frame(self, tokens: Tokens) -> Tokens:
        if not self._prefix and not self._suffix:
            return tokens
        return array("I", self._prefix) + tokens + array("I", self._suffix)


def _read(
    path: Path,
    added: Sequence[Mapping[str, Any]],
    specials: Sequence[Mapping[str, Any]],
    rebuild: Rebuild | None,
) -> tuple[str, list[dict[str, Any]]]:
    """Text of tokenizer.json with `added` and `specials` worked in, as Hugging Face does when it loads a
    model, and its added tokens."""
    try:
        text = path.read_text(encoding="utf-8")
        text = rebuild(text) if rebuild else text
        present = _added_tokens(text)
        known = {token["content"]: _flags(token) for token in present}
    except (OSError, AttributeError, KeyError, *UNREADABLE) as exc:
        raise TokenizerError(f"{path}: {exc!r}") from exc
    changes = [token for token in added if known.get(token["content"]) != _flags(token)]
    known |= {token["content"]: _flags(token) for token in added}
    changes += [{**token, "special": True} for token in specials if token["content"] not in known]
    if not changes:
        return text, present
    changed = _reference(text, path)
    for token in changes:
        flags = dict(zip(FLAGS, _flags(token), strict=True))
        changed.add_tokens([tokenizers.AddedToken(token["content"], **flags)])
    text = str(changed.to_str())
    return text, _added_tokens(text)


def _added_tokens(text: str) -> list[dict[str, Any]]:
    """Added tokens, without making objects of the vocabulary, which would take more memory than the
    tokenizer."""
    return _decode_file(text).added_tokens or []


def _reference(text: str, path: Path) -> Any:
    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as exc:  # noqa: BLE001 - its errors have no class of their own
        raise TokenizerError(f"{path}: {exc}") from exc


def _flags(token: Mapping[str, Any]) -> tuple[bool, ...]:
    special = bool(token.get("special"))
    defaults = (False, False, False, not special, special)
    return tuple(bool(token.get(flag, default)) for flag, default in zip(FLAGS, defaults, strict=True))


def _frame(reference: Any, plain: "ReferenceEncoder", path: Path) -> tuple[bytes, bytes]:
    """Ids that the post-processor puts before and after a text's ids, proved on several texts."""
    framed = [array("I", reference.encode(text).ids).tobytes() for text in SAMPLES]
    bare = plain.encode(SAMPLES)
    at = len(SAMPLES) - 1
    start = framed[at].find(bare[at])
    prefix, suffix = framed[at][:start], framed[at][start + len(bare[at]) :]
    if start < 0 or any(prefix + ids + suffix != both for ids, both in zip(bare, framed, strict=True)):
        raise TokenizerError(f"{path}: its post-processor does more than open and close a prompt")
    return prefix, suffix


def _around(contents: Sequence[str]) -> list[str]:
    """Texts in which special tokens touch all sorts of neighbours, and each other."""
    some = [*contents[:12], *contents[-4:]]  # models have hundreds, made alike
    chain = [f"{left}{token}{right}" for token in some for left in NEIGHBOURS for right in NEIGHBOURS]
    return [*("".join(chain[i : i + 10]) for i in range(0, len(chain), 10)), *chain[:100], "".join(some)]


def _first_difference(texts: Sequence[str], one: list[bytes], other: list[bytes]) -> str | None:
    return next((text for text, a, b in zip(texts, one, other, strict=True) if a != b), None)


def _load_fast(text: str, cache_bytes: int) -> tuple["FastEncoder | None", str]:
    """fastokens, or the reason against it."""
    try:
        return FastEncoder(text, cache_bytes), ""
    except Exception as exc:  # noqa: BLE001 - whatever it cannot do, the reference can
        return None, f"fastokens does not load it: {exc}"


def _agreed(
    fast: "FastEncoder", plain: "ReferenceEncoder", added: Sequence[Mapping[str, Any]]
) -> tuple["FastEncoder | None", str]:
    """fastokens if it agrees with `plain`, and the reason for or against it."""
    samples = [*SAMPLES, *_around([token["content"] for token in added])]
    try:
        differs = _first_difference(samples, plain.encode(samples), fast.encode(samples))
    except Exception as exc:  # noqa: BLE001 - whatever it cannot do, the reference can
        return None, f"fastokens fails on it: {exc}"
    if differs is not None:
        return None, f"fastokens differs from tokenizers on {differs[:60]!r}"
    return fast, f"agrees with tokenizers on {len(samples)} texts"


class FastEncoder:
    """Encoder by fastokens, with its own cache of segments (LRU by bytes, measured at half the time of
    `SegmentCache`)."""

    def __init__(self, text: str, cache_bytes: int) -> None:
        #  Its own threads spin for work beside the event loop, and keep 40 MB of caches; 256 KB of text take
        #  7 ms
        # with one, 20 to 60 ms with two on two cores. Read at the first text; an operator may override it.
        os.environ.setdefault("FASTOKENS_BPE_THREADS", "1")
        self._tokenizer = fastokens.Tokenizer.from_json_str(text)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.enable_segment_cache(cache_bytes)

    def encode(self, texts: Sequence[str]) -> list[bytes]:
        """Encode one by one: a batch would start threads too."""
        return [self._tokenizer.encode_batch_flat([text], add_special_tokens=False)[0] for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text

    def cache(self) -> dict[str, int]:
        stats = self._tokenizer.segment_cache_stats()
        return {name: stats[name] for name in ("entries", "bytes", "max_bytes")}


class ReferenceEncoder:
    """Encoder by Hugging Face's tokenizers: the reference."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, texts: Sequence[str]) -> list[bytes]:
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [array("I", encoding.ids).tobytes() for encoding in encodings]

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text


def cut_tokens(encoder: Encoder, added: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Added tokens at which text can be cut without changing any id; none where that is not proved.

    Candidates are special tokens that match as they stand: no flag that eats white space or asks for a word's
    end, not normalized, and sharing no text with another added token, so that where they match does not
    depend on the rest. That the segments then are independent (a pre-tokenizer may treat the start of a
    prompt apart) is tested on texts around each.
    """
    raw = [token for token in added if not _flags(token)[FLAGS.index("normalized")]]
    flagged = [token for token in raw if any(_flags(token)[:3])]
    plainly = [token["content"] for token in raw if token.get("special") and token not in flagged]
    if flagged:  # their white space and word ends must not reach into a cut
        plainly = [text for text in plainly if not re.search(r"^[\w\s]|[\w\s]$", text)]
    cuts = _apart(plainly[:MAX_CUTS], [token["content"] for token in raw])
    if not cuts:
        return ()
    samples = _around(cuts)
    pieces = SegmentCache(encoder, cuts, 0)
    return cuts if _first_difference(samples, encoder.encode(samples), pieces.encode(samples)) is None else ()


def _apart(texts: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    """Texts that can never match where one of `others` matches in part."""
    starts = {other[:n] for other in others for n in range(1, len(other))}
    ends = {other[n:] for other in others for n in range(1, len(other))}

    def is_apart(text: str) -> bool:
        splits = range(1, len(text))
        return not (
            any(text[:n] in ends or text[n:] in starts for n in splits)
            or any(text in other or other in text for other in others if other != text)
        )

    return tuple(filter(is_apart, texts))


class SegmentCache:
    """Encoder that cuts text at `cuts` and caches each segment's ids: an LRU bounded in bytes, safe across
    threads."""

    def __init__(self, encoder: Encoder, cuts: Sequence[str], max_bytes: int) -> None:
        self._encoder = encoder
        self._max_bytes = max_bytes
        self._known: dict[str, bytes] = {}  # oldest first
        self._lock = Lock()
        self.num_bytes = 0
        longest_first = sorted(cuts, key=len, reverse=True)
        self._split = re.compile(f"({'|'.join(map(re.escape, longest_first))})").split if cuts else None
        self.why = f"cut at {len(cuts)} special tokens" if cuts else "not cut: segments are not independent"

    def __repr__(self) -> str:
        return f"SegmentCache({len(self._known)} segments, {self.num_bytes} of {self._max_bytes} bytes)"

    def encode(self, texts: Sequence[str]) -> list[bytes]:
        return [self._encode(text) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        return self._encoder.decode(ids)

    def cache(self) -> dict[str, int]:
        return {"entries": len(self._known), "bytes": self.num_bytes, "max_bytes": self._max_bytes}

    def _encode(self, text: str) -> bytes:
        pieces = self._split(text) if self._split else [text]
        with self._lock:
            found = [self._get(piece) for piece in pieces]
        missing = list({piece: None for piece, ids in zip(pieces, found, strict=True) if ids is None})
        if not missing:
            return b"".join(found)  # type: ignore[arg-type] # none is None
        new = dict(zip(missing, self._encoder.encode(missing), strict=True))
        with self._lock:
            for piece, ids in new.items():
                self._put(piece, ids)
        return b"".join(new[piece] if ids is None else ids for piece, ids in zip(pieces, found, strict=True))

    def _get(self, piece: str) -> bytes | None:
        if not piece:
            return b""
        ids = self._known.pop(piece, None)
        if ids is not None:
            self._known[piece] = ids  # to the young end
        return ids

    def _put(self, piece: str, ids: bytes) -> None:
        size = _size(piece, ids)
        if size > self._max_bytes or piece in self._known:  # in: another thread was faster
            return
        self._known[piece] = ids
        self.num_bytes += size
        while self.num_bytes > self._max_bytes:
            oldest = next(iter(self._known))
            self.num_bytes -= _size(oldest, self._known.pop(oldest))


def _size(piece: str, ids: bytes) -> int:
    return sys.getsizeof(piece) + len(ids) + ENTRY_BYTES
