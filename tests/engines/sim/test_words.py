"""Text of answers: deterministic, readable, ended as asked, and the same tokens when they come back as
text.
"""

from array import array

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from engines.sim import TextModel
from engines.sim.config import BUNDLED_TOKENIZER
from engines.sim.words import GeneratedText, Sampling, Vocabulary, VocabularyError, garbled

PROMPT = array("I", range(100))
TEXTS = TextModel.load(BUNDLED_TOKENIZER)
VOCABULARY = TEXTS.vocabulary


def test_an_answer_depends_on_prompt_and_key_only() -> None:
    sampling = Sampling(50, ignore_eos=True)
    first = VOCABULARY.answer(PROMPT, sampling, 1, 64)
    assert first == VOCABULARY.answer(PROMPT, sampling, 1, 64)
    assert first != VOCABULARY.answer(PROMPT, sampling, 2, 64)
    assert first != VOCABULARY.answer(PROMPT[1:], sampling, 1, 64)


@given(st.integers(1, 100), st.integers(0, 2**32))
def test_an_answer_is_tokenized_to_its_own_tokens(length: int, key: int) -> None:
    answer = VOCABULARY.answer(PROMPT, Sampling(length, ignore_eos=True), key, 64)
    text = "".join(answer.pieces)
    assert text == VOCABULARY.decode(answer.tokens)
    head, tail = "<|im_start|>assistant\n", "<|im_end|>\n"
    framed = TEXTS.prompts.encode(head + text + tail, False)
    assert framed == TEXTS.prompts.encode(head, False) + answer.tokens + TEXTS.prompts.encode(tail, False)


@given(st.integers(1, 30), st.integers(0, 30), st.booleans(), st.integers(1, 20), st.integers(0, 2**16))
def test_answers_have_the_requested_length(
    most: int, least: int, ignore_eos: bool, mean: int, key: int
) -> None:
    least = min(least, most)
    answer = VOCABULARY.answer(PROMPT, Sampling(most, least, ignore_eos), key, mean)
    assert len(answer.tokens) == len(answer.pieces)
    assert min(least + 1, most) <= len(answer.tokens) <= most
    if ignore_eos:
        assert (answer.finish, len(answer.tokens)) == ("length", most)
    ends_itself = answer.tokens[-1] == VOCABULARY.eos
    assert (answer.finish == "stop") == ends_itself
    assert list(answer.tokens).count(VOCABULARY.eos or 0) == ends_itself


@pytest.mark.parametrize("min_tokens", [0, 5])
def test_a_stop_string_may_span_tokens(min_tokens: int) -> None:
    whole = VOCABULARY.answer(PROMPT, Sampling(20, ignore_eos=True), 1, 64)
    text = "".join(whole.pieces)
    at = len("".join(whole.pieces[:9])) - 1  # the last letter of word 8 and the space of word 9
    stop = text[at : at + 2]
    sampling = Sampling(20, min_tokens, True, ("never there", stop))
    answer = VOCABULARY.answer(PROMPT, sampling, 1, 64)
    start = len("".join(whole.pieces[:min_tokens]))
    assert (answer.finish, answer.stop_reason) == ("stop", stop)
    assert "".join(answer.pieces) == text[: text.index(stop, start)]
    assert answer.tokens == whole.tokens[: len(answer.tokens)]


def test_tokens_have_names_and_texts() -> None:
    assert VOCABULARY.names([0, 1]) == ["<|endoftext|>", "<|im_start|>"]
    assert VOCABULARY.decode([1, 2], skip_special=True) == ""


def test_a_tokenizer_without_words_is_rejected() -> None:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    with pytest.raises(VocabularyError):
        Vocabulary(tokenizer, None)


def test_a_garbled_answer_has_the_same_length_and_end() -> None:
    answer = GeneratedText(array("I", [5, 6, 7, 0]), [" a", " b", " c", ""], "stop")
    wrong = garbled(answer)
    assert (list(wrong.tokens), wrong.pieces) == ([7, 6, 5, 0], [" c", " b", " a", ""])
    assert wrong.finish == "stop"
