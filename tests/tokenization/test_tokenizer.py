"""Both encoders, with and without their segment cache, compared with `tokenizers`."""

import json
import subprocess
import sys
import threading
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastokens
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, models, normalizers, pre_tokenizers, processors

from gateway.core.blocks import tokens_of
from gateway.tokenization.tokenizer import (
    ENTRY_BYTES,
    SAMPLES,
    FastEncoder,
    ReferenceEncoder,
    SegmentCache,
    Tokenizer,
    TokenizerError,
    cut_tokens,
)
from tests import ROOT

FILE = ROOT / "engines" / "sim" / "tokenizer" / "tokenizer.json"
SPECIALS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
PIECES = [
    *SPECIALS,
    "<|im_",
    "|>",
    "<",
    "user\n",
    " ",
    "  ",
    "\n",
    "\n\n",
    "a",
    "Hello",
    "é",
    "e\u0301",
    "漢字",
    "😀",
    "1",
]
TEXTS = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=8)), max_size=30).map("".join)


def from_file(path: Path) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(path))


def is_text(text: str) -> bool:
    return not any(0xD800 <= ord(letter) < 0xE000 for letter in text)


def small_model(path: Path, change: Callable[[tokenizers.Tokenizer], None]) -> Path:
    """Model of letters and one merge, changed by a function."""
    vocabulary = ["<unk>", *map(chr, range(32, 127)), "▁", "é", "\u0301", "ab"]
    ids = {text: i for i, text in enumerate(vocabulary)}
    tokenizer = tokenizers.Tokenizer(models.BPE(ids, [("a", "b")], unk_token="<unk>"))
    change(tokenizer)
    tokenizer.save(str(path))
    return path


def special(*contents: str, **flags: bool) -> list[AddedToken]:
    return [AddedToken(content, special=True, **flags) for content in contents]


# choice of the encoder


def test_fastokens_is_used_where_it_agrees() -> None:
    tokenizer = Tokenizer.load(FILE)
    assert tokenizer.kind == "fastokens"
    assert "agrees with tokenizers" in tokenizer.why
    assert "fastokens" in repr(tokenizer)


def test_tokenizers_is_used_where_fastokens_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(text: str) -> None:
        raise ValueError("unknown pre-tokenizer")

    monkeypatch.setattr(fastokens.Tokenizer, "from_json_str", refuse)
    tokenizer = Tokenizer.load(FILE)
    assert tokenizer.kind == "tokenizers"
    assert "unknown pre-tokenizer" in tokenizer.why and "cut at 3 special tokens" in tokenizer.why


def test_tokenizers_is_used_where_fastokens_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    encode = FastEncoder.encode

    def differ(self: FastEncoder, texts: Any) -> list[bytes]:
        return [
            ids + b"\0\0\0\0" if "漢" in text else ids
            for text, ids in zip(texts, encode(self, texts), strict=True)
        ]

    monkeypatch.setattr(FastEncoder, "encode", differ)
    tokenizer = Tokenizer.load(FILE)
    assert tokenizer.kind == "tokenizers"
    assert "fastokens differs" in tokenizer.why


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"added_tokens": [1]}', None])
def test_broken_files_are_rejected(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(TokenizerError, match="tokenizer.json"):
        Tokenizer.load(path)


# exactness


@pytest.fixture(scope="module", params=["fastokens", "tokenizers"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    """Small caches, so that segments are added and dropped."""
    if request.param == "fastokens":
        return Tokenizer.load(FILE, cache_bytes=4_000)
    plain = ReferenceEncoder(from_file(FILE))
    segments = SegmentCache(plain, SPECIALS, 4_000)
    return Tokenizer(segments, "tokenizers", "", (b"", b""))


@pytest.mark.slow
@settings(max_examples=300)
@given(texts=st.lists(TEXTS, max_size=4))
def test_ids_equal_those_of_tokenizers(tokenizer: Tokenizer, texts: list[str]) -> None:
    reference = REFERENCE
    for text in filter(is_text, [*texts, *texts]):
        assert tokenizer.encode(text, False).tolist() == reference.encode(text, add_special_tokens=False).ids


REFERENCE = from_file(FILE)


@pytest.mark.parametrize("text", ["", *SAMPLES, "<|im_start|>" * 50, "x" * 5_000 + "<|im_end|>"])
def test_special_texts_are_exact(tokenizer: Tokenizer, text: str) -> None:
    for special_tokens in (False, True):
        expected = REFERENCE.encode(text, add_special_tokens=special_tokens).ids
        assert tokenizer.encode(text, special_tokens) == array("I", expected)


def test_lone_surrogates_are_rejected(tokenizer: Tokenizer) -> None:
    with pytest.raises(TokenizerError, match="Unicode"):
        tokenizer.encode("a\ud800", False)


def test_answers_do_not_share_memory(tokenizer: Tokenizer) -> None:
    first = tokenizer.encode("user\n<|im_end|>", False)
    first[0] = 77
    assert tokenizer.encode("user\n<|im_end|>", False)[0] != 77


# cut points


def strange(name: str) -> Callable[[tokenizers.Tokenizer], None]:
    def change(tokenizer: tokenizers.Tokenizer) -> None:
        match name:
            case "metaspace first":
                tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
                tokenizer.add_special_tokens(special("<s>", "</s>"))
            case "metaspace always":
                tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
                tokenizer.add_special_tokens(special("<s>", "</s>"))
            case "prepend":
                tokenizer.normalizer = normalizers.Sequence(
                    [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
                )
                tokenizer.add_special_tokens(special("<s>", "</s>"))
            case "nfc":
                tokenizer.normalizer = normalizers.NFC()
                tokenizer.add_special_tokens(special("<s>", "</s>"))
            case "rstrip":
                tokenizer.add_special_tokens(special("<s>", rstrip=True) + special("</s>"))
            case "lstrip":
                tokenizer.add_special_tokens(special("<s>", lstrip=True) + special("</s>"))
            case "single word":
                tokenizer.add_special_tokens(special("one", single_word=True) + special("</s>", "end"))
            case "normalized":
                tokenizer.normalizer = normalizers.Lowercase()
                tokenizer.add_special_tokens(special("</s>"))
                tokenizer.add_tokens([AddedToken("Word", normalized=True)])
            case "overlapping":
                tokenizer.add_special_tokens(special("<a>", "<a>>", "><", "<b>", "[x]"))
            case "framed":
                tokenizer.add_special_tokens(special("<s>", "</s>"))
                ids = [("<s>", tokenizer.token_to_id("<s>")), ("</s>", tokenizer.token_to_id("</s>"))]
                tokenizer.post_processor = processors.TemplateProcessing("<s> $A </s>", None, ids)
            case _:
                raise AssertionError(name)

    return change


STRANGE = [
    ("metaspace first", 0),
    ("metaspace always", 2),
    ("prepend", 2),
    ("nfc", 2),
    ("rstrip", 1),
    ("lstrip", 1),
    ("single word", 1),
    ("normalized", 1),
    ("overlapping", 1),
    ("framed", 2),
]


@pytest.mark.parametrize(("name", "num_cuts"), STRANGE, ids=[name for name, _ in STRANGE])
def test_texts_are_cut_only_where_segments_are_independent(tmp_path: Path, name: str, num_cuts: int) -> None:
    path = small_model(tmp_path / "tokenizer.json", strange(name))
    added = json.loads(path.read_text("utf-8"))["added_tokens"]
    assert len(cut_tokens(ReferenceEncoder(from_file(path)), added)) == num_cuts


def test_thousands_of_added_tokens_do_not_make_loading_slow() -> None:
    """Gemma has 6,000: comparisons must not grow with their square."""
    added = [{"content": f"<unused{i}>", "special": True, "normalized": False} for i in range(6_000)]
    assert len(cut_tokens(Counting(), added)) == 256


@pytest.mark.parametrize("name", [name for name, _ in STRANGE])
def test_strange_tokenizers_stay_exact(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    path = small_model(tmp_path_factory.mktemp("strange") / "tokenizer.json", strange(name))
    reference = from_file(path)
    added = [token["content"] for token in json.loads(path.read_text("utf-8"))["added_tokens"]]
    with pytest.MonkeyPatch.context() as patch:
        loaded = [Tokenizer.load(path)]
        patch.setattr(fastokens.Tokenizer, "from_json_str", None)
        loaded.append(Tokenizer.load(path, cache_bytes=2_000))
    pieces = [*added, " ", "  ", "a", "b", "One", "Word", "word", "e\u0301", "é", "<", ">", "\n", "x", "é"]

    @settings(max_examples=100)
    @given(text=st.lists(st.sampled_from(pieces), max_size=12).map("".join), framed=st.booleans())
    def check(text: str, framed: bool) -> None:
        expected = reference.encode(text, add_special_tokens=framed).ids
        for tokenizer in loaded:
            assert tokenizer.encode(text, framed).tolist() == expected, tokenizer

    check()


def test_frame(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(small_model(tmp_path / "tokenizer.json", strange("framed")))
    inside = tokenizer.encode("xy", False)
    assert tokenizer.num_frame_tokens == 2
    assert tokenizer.encode("xy", True) == tokenizer.frame(inside)
    assert len(tokenizer.frame(inside)) == 4


def test_truncation_and_padding_of_the_file_are_off(tmp_path: Path) -> None:
    def change(tokenizer: tokenizers.Tokenizer) -> None:
        tokenizer.enable_truncation(3)
        tokenizer.enable_padding(length=8)

    tokenizer = Tokenizer.load(small_model(tmp_path / "tokenizer.json", change))
    assert len(tokenizer.encode("uvwxyz", False)) == 6


# segment cache


class Counting:
    """Encoder that records the texts that it encodes."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def encode(self, texts: Any) -> list[bytes]:
        self.asked += texts
        return [array("I", map(ord, text)).tobytes() for text in texts]


def encode(segments: SegmentCache, text: str) -> str:
    (ids,) = segments.encode((text,))
    return "".join(map(chr, array("I", ids)))


def test_a_segment_is_encoded_once() -> None:
    encoder = Counting()
    segments = SegmentCache(encoder, ("|",), 10_000)
    assert encode(segments, "a|b|a") == "a|b|a"
    assert sorted(encoder.asked) == ["a", "b", "|"]
    assert encode(segments, "b|a||new") == "b|a||new"
    assert encoder.asked[3:] == ["new"]


def test_the_least_recently_used_segment_goes_first_and_bytes_are_bounded() -> None:
    encoder = Counting()
    max_bytes = 3 * (sys.getsizeof("a") + len(array("I", [0]).tobytes()) + ENTRY_BYTES)
    segments = SegmentCache(encoder, ("|",), max_bytes)
    for text in ("a", "b", "a", "c", "d", "a"):
        encode(segments, text)
        assert segments.num_bytes <= max_bytes
    assert encoder.asked == ["a", "b", "c", "d"]
    assert encode(segments, "b") == "b"
    assert encoder.asked[-1] == "b"
    assert f"of {max_bytes} bytes" in repr(segments)


def test_a_segment_larger_than_the_cache_is_not_kept() -> None:
    encoder = Counting()
    segments = SegmentCache(encoder, ("|",), 1_000)
    for _ in range(2):
        assert encode(segments, "x" * 1_000) == "x" * 1_000
    assert len(encoder.asked) == 2 and segments.num_bytes == 0


def test_fastokens_bounds_its_memory() -> None:
    fast = FastEncoder(FILE.read_text("utf-8"), 50_000)
    for number in range(500):
        fast.encode((f"segment {number} of text<|im_end|>",))
    stats = fast._tokenizer.segment_cache_stats()
    assert 0 < stats["bytes"] <= 50_000 and stats["entries"] < 500


def test_threads_share_a_cache() -> None:
    segments = SegmentCache(Counting(), ("|",), 3_000)
    texts = [f"{i}|{i % 7}|{i % 3}" for i in range(300)]
    wrong: list[str] = []

    def work() -> None:
        wrong.extend(text for text in texts if encode(segments, text) != text)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and segments.num_bytes <= 3_000


def test_both_encoders_describe_their_cache() -> None:
    for encoder in (
        FastEncoder(FILE.read_text("utf-8"), 50_000),
        SegmentCache(ReferenceEncoder(from_file(FILE)), SPECIALS, 50_000),
    ):
        encoder.encode(["<|im_start|>user\nWhat is remembered?<|im_end|>"])
        described = encoder.cache()
        assert described["entries"] > 0
        assert 0 < described["bytes"] <= described["max_bytes"] == 50_000


def test_both_encoders_decode() -> None:
    text = "<|im_start|>user\nIt is 09:27.<|im_end|>\n"
    for encoder in (
        FastEncoder(FILE.read_text("utf-8"), 50_000),
        SegmentCache(ReferenceEncoder(from_file(FILE)), SPECIALS, 50_000),
    ):
        (ids,) = encoder.encode([text])
        assert encoder.decode(tokens_of(memoryview(ids).cast("I"))) == text


def test_fastokens_starts_no_threads_of_its_own() -> None:
    """fastokens' threads would wait busily for work beside the event loop.

    The test runs in a process that has not encoded anything yet.
    """
    program = (
        "import os, pathlib, sys\n"
        "from gateway.tokenization.tokenizer import FastEncoder\n"
        "fast = FastEncoder(pathlib.Path(sys.argv[1]).read_text('utf-8'), 1 << 20)\n"
        "fast.encode([f'word {i} ' * 50_000 for i in range(3)])\n"
        "print(os.environ['FASTOKENS_BPE_THREADS'])\n"
        "print(len(os.listdir('/proc/self/task')) if os.path.exists('/proc/self/task') else 1)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(FILE)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["1", "1"]


def test_special_tokens_are_decoded_too(tokenizer: Tokenizer) -> None:
    text = "a river<|im_end|>\n 1984"
    assert tokenizer.decode(tokenizer.encode(text, False)) == text
    assert tokenizer.decode([1 << 31]) in ("", "\ufffd")
