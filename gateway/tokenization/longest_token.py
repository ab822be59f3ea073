"""Lower bound of a text's tokens by its bytes alone, from the longest text that one token stands for.

    tokens  ≥  bytes of the text ÷ (bytes of the longest token × factor by which the normalizer may shrink)

A bound exists only where nothing can make text disappear: a run of white space that a token eats, characters
that become one unknown token together, control characters that are cleaned away. Such tokenizers have none,
and their texts are bounded by pieces (`pieces.py`).
"""

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from gateway.core.decode_errors import UNREADABLE

SHRINKING: Mapping[str, int] = {"NFC": 4, "NFD": 4, "NFKC": 8, "NFKD": 8, "Lowercase": 3}
"""Bytes that become one byte, by normalizer, with slack: a KELVIN SIGN (3) becomes K, three jamo (9) a
syllable (3), a mathematical letter (4) a plain one."""
KEEPING = frozenset({"Prepend", "ByteLevel"})
"""Normalizers that remove nothing."""
SPLITTING = frozenset(
    {"ByteLevel", "Metaspace", "Digits", "UnicodeScripts", "Split", "Punctuation", "Sequence"}
)
"""Pre-tokenizers that keep the characters they split at, unless their behavior is `Removed`."""
NUM_BYTES = 256


class _Vocabulary(msgspec.Struct):
    type: str | None = None
    unk_token: str | None = None
    fuse_unk: bool = False
    byte_fallback: bool = False
    continuing_subword_prefix: str | None = None


class _ModelFile(msgspec.Struct):
    model: _Vocabulary
    normalizer: Any = None
    pre_tokenizer: Any = None
    added_tokens: list[dict[str, Any]] | None = None


_decode = msgspec.json.Decoder(_ModelFile).decode


def longest_token(text: str, vocabulary: Collection[str]) -> int | None:
    """Most bytes of prompt text that one token stands for, from the text of a tokenizer.json and the tokens
    of its vocabulary as written there; None where there is no bound."""
    try:
        file = _decode(text)
    except UNREADABLE:  # a form that only its own library reads
        return None
    added = [token["content"] for token in file.added_tokens or ()]
    if any(token.get("lstrip") or token.get("rstrip") for token in file.added_tokens or ()):
        return None
    factor = _shrinking(file.normalizer)
    is_byte_level = _is_byte_level(file.pre_tokenizer) or _is_byte_level(file.normalizer)
    if (
        factor is None
        or not _keeps(file.pre_tokenizer)
        or not _knows_all(file.model, is_byte_level, vocabulary)
    ):
        return None
    count = len if is_byte_level else _num_bytes
    longest = max(map(count, vocabulary), default=0)
    return factor * max(longest, *map(_num_bytes, added), 4)


def _num_bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _shrinking(normalizer: Any) -> int | None:
    if normalizer is None:
        return 1
    kind = normalizer.get("type")
    if kind == "Sequence":
        factor = 1
        for each in normalizer.get("normalizers") or ():
            own = _shrinking(each)
            if own is None:
                return None
            factor *= own
        return factor
    if kind == "Replace":
        pattern, content = normalizer.get("pattern") or {}, normalizer.get("content")
        given = pattern.get("String")
        is_kept = given and isinstance(content, str) and _num_bytes(content) >= _num_bytes(given)
        return 1 if is_kept else None
    return 1 if kind in KEEPING else SHRINKING.get(kind)


def _parts(stage: Any) -> list[Any]:
    """Stages of a pre-tokenizer or normalizer, nested sequences flattened."""
    if not stage:
        return []
    inner = stage.get("pretokenizers") or stage.get("normalizers") or ()
    return [stage, *(part for each in inner for part in _parts(each))]


def _keeps(pre_tokenizer: Any) -> bool:
    return all(
        stage.get("type") in SPLITTING and stage.get("behavior") != "Removed"
        for stage in _parts(pre_tokenizer)
    )


def _is_byte_level(stage: Any) -> bool:
    return any(each.get("type") == "ByteLevel" for each in _parts(stage))


def _knows_all(model: _Vocabulary, is_byte_level: bool, vocabulary: Collection[str]) -> bool:
    """True if every text has tokens and no run of any length becomes a single one: Unigram joins unknown
    characters, and models of whole words have one token for any unknown word."""
    if model.type not in (None, "BPE", "Unigram") or model.continuing_subword_prefix:
        return False
    if is_byte_level:
        return model.type != "Unigram" and all(letter in vocabulary for letter in byte_characters())
    if model.byte_fallback:
        return all(f"<0x{byte:02X}>" in vocabulary for byte in range(NUM_BYTES))
    return model.type != "Unigram" and model.unk_token is not None and not model.fuse_unk


def byte_characters() -> list[str]:
    """Letters by which GPT-2's alphabet writes each byte: itself where it is printable."""
    printed = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    letters, num_others = [], 0
    for byte in range(NUM_BYTES):
        letters.append(chr(byte) if byte in printed else chr(NUM_BYTES + num_others))
        num_others += byte not in printed
    return letters
