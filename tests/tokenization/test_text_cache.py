"""Growing texts have the tokens of the whole, and only their new part is encoded."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.app import bundled_tokenizer
from gateway.core.blocks import Tokens, tokens_of
from gateway.core.token_runs import TokenRunCache
from gateway.tokenization.prompt_encoder import PromptEncoder
from gateway.tokenization.text_cache import STRIDE, TextCache, are_apart, cuts

PROMPTS = PromptEncoder.load(bundled_tokenizer())


def encode(text: str) -> Tokens:
    return PROMPTS.encode(text, False)


def document(seed: int, num_lines: int) -> str:
    rng = random.Random(seed)
    words = [
        "def",
        "return 42",
        "naïve",
        "漢字",
        "it's",
        "e\u0301",
        "  x",
        "\t",
        "end.",
        "A",
        "<|im_end|>",
        "\r",
        "1,234",
    ]
    return "\n".join(" ".join(rng.choices(words, k=rng.randrange(12))) for _ in range(num_lines))


def test_the_bundled_tokenizer_can_be_split() -> None:
    assert are_apart(encode)


@pytest.mark.parametrize(
    "joining",
    [
        lambda text: tokens_of([len(text)]),  # depends on the whole
        lambda text: tokens_of([0, *map(ord, text)]),  # treats the start differently
        lambda text: tokens_of(map(ord, text.replace("a\n", "b"))),  # joins across the cut
    ],
)
def test_a_tokenizer_that_joins_across_a_cut_cannot_be_split(joining: object) -> None:
    assert not are_apart(joining)  # type: ignore[arg-type]


@given(st.integers(0, 1 << 32), st.integers(0, 400), st.integers(0, 100))
@settings(max_examples=30)
def test_cuts_depend_on_earlier_text_only(seed: int, num_lines: int, num_more: int) -> None:
    text = document(seed, num_lines)
    before, after = list(cuts(text)), list(cuts(text + document(seed + 1, num_more)))
    assert after[: len(before)] == before
    assert all(b - a >= STRIDE for a, b in zip([0, *before], before, strict=False))


@given(st.integers(0, 1 << 32), st.lists(st.integers(1, 60), min_size=1, max_size=8))
@settings(max_examples=40)
def test_a_growing_text_has_the_tokens_of_the_whole(seed: int, steps: list[int]) -> None:
    runs, text = TokenRunCache(), document(seed, 300)
    texts = TextCache(runs, encode, b"t")
    for i, num_lines in enumerate(steps):
        text += document(seed + i, num_lines) if i % 3 else document(seed, num_lines)
        found = texts.tokens(text)
        assert found.tokens == encode(text)
        assert found.run is None or found.tokens[: len(found.run.all_tokens())] == found.run.all_tokens()


def test_only_the_new_part_is_encoded() -> None:
    encoded: list[str] = []

    def counting(text: str) -> Tokens:
        encoded.append(text)
        return encode(text)

    texts, text = TextCache(TokenRunCache(), counting, b"t"), document(3, 1000)
    texts.tokens(text)
    encoded.clear()
    texts.tokens(text + "one more line\n")
    assert len(encoded) == 1
    assert len(encoded[0]) < 2 * STRIDE


def test_tokenizers_do_not_share() -> None:
    runs, text = TokenRunCache(), document(5, 500)
    first, second = (
        TextCache(runs, encode, b"one"),
        TextCache(runs, lambda text: tokens_of(map(ord, text)), b"other"),
    )
    assert first.tokens(text).tokens == encode(text)
    assert second.tokens(text).tokens == tokens_of(map(ord, text))
    assert first.tokens(text).tokens == encode(text)


def test_text_cached_under_one_salt_is_not_used_under_another() -> None:
    encoded: list[str] = []

    def noting(text: str) -> Tokens:
        encoded.append(text)
        return encode(text)

    texts, text = TextCache(TokenRunCache(), noting, b"t"), document(1, 400)
    known = texts.tokens(text, "a")
    num = len(encoded)
    assert texts.tokens(text, "a").tokens == known.tokens and len(encoded) == num + 1  # the rest of the text
    assert texts.tokens(text, "b").tokens == known.tokens and len(encoded) == 2 * num + 1
