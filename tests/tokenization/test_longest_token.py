"""The longest token bounds the tokens of a text from below: tried on the families of tokenizers."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.app import bundled_tokenizer
from gateway.tokenization.chat_template import TooLong
from gateway.tokenization.longest_token import byte_characters, longest_token
from gateway.tokenization.tokenizer import Tokenizer
from loadtest.hostile_texts import WORST, tokenizer_of

BYTES = {letter: number for number, letter in enumerate(byte_characters())}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def longest(vocabulary: dict[str, int], **changes: Any) -> int | None:
    file = {
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
        "normalizer": None,
        "pre_tokenizer": BYTE_LEVEL,
        "added_tokens": [],
        **changes,
    }
    return longest_token(json.dumps(file), vocabulary)


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    made = {}
    for family in WORST:
        folder = tokenizer_of(family, tmp_path_factory.mktemp(family))
        made[family] = Tokenizer.load(folder / "tokenizer.json")
    return {**made, "bundled": Tokenizer.load(bundled_tokenizer() / "tokenizer.json")}


texts = st.text(max_size=40) | st.builds(
    lambda unit, num: unit * num,
    st.sampled_from(("a", " ", "the ", "漢", "😀", "<|im_end|>", "\x00", "\u00ad")),
    st.integers(0, 60),
)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(text=texts)
def test_a_text_has_at_least_as_many_tokens_as_its_bytes_require(
    families: dict[str, Tokenizer], text: str
) -> None:
    for name, tokenizer in families.items():
        bound = tokenizer.pieces.longest
        assert (bound is None) == (name == "unigram"), name
        if bound is not None:
            assert len(tokenizer.encode(text, False)) * bound >= len(text.encode()), name


def test_letters_of_byte_level_tokens_are_bytes() -> None:
    assert longest({**BYTES, "abcdefg": 300}) == 7
    assert longest({**BYTES, "\u0120" * 9: 300}) == 9
    assert longest({**BYTES}, added_tokens=[{"content": "漢漢"}]) == 6


@pytest.mark.parametrize(
    ("normalizer", "factor"),
    [
        ({"type": "NFC"}, 4),
        ({"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"}]}, 24),
        ({"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}, 1),
        ({"type": "Replace", "pattern": {"String": "ab"}, "content": ""}, None),
        ({"type": "Replace", "pattern": {"Regex": " +"}, "content": " "}, None),
        ({"type": "Strip", "strip_left": True, "strip_right": True}, None),
        ({"type": "StripAccents"}, None),
        ({"type": "Precompiled", "precompiled_charsmap": ""}, None),
        ({"type": "BertNormalizer"}, None),
    ],
)
def test_a_normalizer_has_a_bound_or_none(normalizer: dict[str, Any], factor: int | None) -> None:
    assert longest({**BYTES, "abcde": 300}, normalizer=normalizer) == (factor and 5 * factor)


@pytest.mark.parametrize(
    "changes",
    [
        {"pre_tokenizer": {"type": "WhitespaceSplit"}},
        {"pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "Removed"}},
        {"pre_tokenizer": None},
        {"added_tokens": [{"content": "<mask>", "lstrip": True}]},
        {"model": {"type": "WordPiece", "unk_token": "[UNK]"}},
        {"model": {"type": "Unigram"}},
    ],
)
def test_without_a_bound_text_may_disappear(changes: dict[str, Any]) -> None:
    assert longest(dict(BYTES), **changes) is None


def test_a_missing_byte_leaves_no_bound() -> None:
    del (few := dict(BYTES))["a"]
    assert longest(few) is None


def test_an_overlong_text_has_its_least_number_of_tokens() -> None:
    assert TooLong(7).num_tokens == 7
