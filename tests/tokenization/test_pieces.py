"""Long texts in pieces: the same tokens as the whole, an early end, and texts that have no place to cut."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.app import bundled_tokenizer
from gateway.core.blocks import Tokens, tokens_of
from gateway.tokenization import pieces as module
from gateway.tokenization.chat_template import PromptError, TooLong
from gateway.tokenization.pieces import MAX_CHARS, MAX_TOKENS, SEPARATORS, Pieces, border_of, separators_of
from gateway.tokenization.tokenizer import Tokenizer
from loadtest.hostile_texts import WORST, tokenizer_of

WORDS = (
    "the",
    "naïve",
    "漢字",
    "it's",
    "e\u0301",
    "  x",
    "\t",
    "end.",
    "A,b",
    "<|im_end|>",
    "\r\n",
    "1,234",
    "😀",
)


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    made = {"bundled": Tokenizer.load(bundled_tokenizer() / "tokenizer.json")}
    for family in WORST:
        folder = tokenizer_of(family, tmp_path_factory.mktemp(family))
        made[family] = Tokenizer.load(folder / "tokenizer.json")
    return made


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1 << 30), joint=st.sampled_from((" ", "\n", "", ", ")))
def test_pieces_have_the_tokens_of_the_whole(families: dict[str, Tokenizer], seed: int, joint: str) -> None:
    rng = random.Random(seed)
    text = joint.join(rng.choices(WORDS, k=300))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MIN_CHARS", 20)
        patch.setattr(module, "MAX_CHARS", 200)
        for name, tokenizer in families.items():
            whole = tokenizer.encode(text, False)
            try:
                assert tokenizer.pieces.encode(text) == whole, name
            except PromptError as exc:
                assert "cannot be cut" in str(exc), name


def test_usual_tokenizers_are_split_at_spaces(families: dict[str, Tokenizer]) -> None:
    for name in ("bundled", "gpt2", "llama3", "qwen", "tekken"):
        tokenizer = families[name]
        found = separators_of(lambda text, tokenizer=tokenizer: tokenizer.encode(text, False), (), ())
        assert set(" \n") <= set(found), name


def test_a_separator_within_an_added_token_is_not_used() -> None:
    def bytewise(text: str) -> Tokens:
        return tokens_of(list(text.encode()))

    assert separators_of(bytewise, (), ()) == "".join(SEPARATORS)
    assert " " not in separators_of(bytewise, ("<tool call>",), ())
    assert separators_of(bytewise, (), ("mask",)) == ""


def test_a_border_lies_between_letters() -> None:
    border = border_of(" ,")
    assert [found.end() for found in border.finditer("ab cd, ef 1 g,h")] == [2, 13]


class Counted:
    """Encoder that makes a token of each character, and notes the length of its texts."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def encode(self, text: str) -> Tokens:
        self.sizes.append(len(text))
        return tokens_of([1] * len(text))

    def pieces(self, longest: int | None = None, separators: str = " ") -> Pieces:
        return Pieces(self.encode, lambda: separators, longest)


def test_a_text_that_is_too_long_ends_early() -> None:
    counted = Counted()
    pieces = counted.pieces()
    pieces.expect(1000)
    with pytest.raises(TooLong) as caught:
        pieces.encode("word " * (MAX_CHARS // 2))
    assert len(counted.sizes) == 1 and caught.value.num_tokens == counted.sizes[0]
    assert max(counted.sizes) <= MAX_CHARS


def test_a_text_too_long_by_its_bytes_is_not_tokenized() -> None:
    counted = Counted()
    pieces = counted.pieces(longest=4)
    assert pieces.expect(1 << 16) == 1 << 18
    with pytest.raises(TooLong):
        pieces.encode("a" * (1 << 20))
    pieces.encode("a" * (1 << 16))
    assert counted.sizes == [1 << 16]
    assert pieces.expect(0) == 0


def test_lengths_are_in_bytes_and_not_in_characters() -> None:
    counted = Counted()
    pieces = counted.pieces(longest=4)
    pieces.expect(MAX_CHARS)
    with pytest.raises(TooLong) as caught:
        pieces.encode("😀" * MAX_CHARS + "a")
    assert (counted.sizes, caught.value.num_tokens) == ([], MAX_CHARS + 1)
    pieces.encode("😀" * MAX_CHARS)
    assert counted.sizes == [MAX_CHARS]


def test_without_a_known_length_there_is_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted()
    monkeypatch.setattr(module, "MAX_TOKENS", MAX_CHARS)
    with pytest.raises(TooLong):
        counted.pieces().encode("word " * MAX_CHARS)
    assert sum(counted.sizes) < 3 * MAX_CHARS < MAX_TOKENS


@pytest.mark.parametrize("separators", ["", " "])
def test_a_text_without_a_separator_is_not_tokenized(separators: str) -> None:
    counted = Counted()
    with pytest.raises(PromptError, match="cannot be cut"):
        counted.pieces(separators=separators).encode("a" * (2 * MAX_CHARS + 1))
    assert counted.sizes == []
    assert len(counted.pieces(separators=separators).encode("a" * 2 * MAX_CHARS)) == 2 * MAX_CHARS
