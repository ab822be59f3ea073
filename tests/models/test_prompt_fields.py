"""Fields of a request's prompt."""

import pytest

from gateway.models.prompt_fields import id_lists, loggable
from gateway.tokenization.chat_template import PromptError


@pytest.mark.parametrize(
    ("prompt", "lists"),
    [
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        ("text", []),
        (["a"], []),
        ([], []),
        ([[1], []], []),
        (None, []),
    ],
)
def test_prompts_of_ids_are_lists_of_them(prompt: object, lists: list[list[int]]) -> None:
    assert id_lists({"prompt": prompt}) == lists


def test_words_of_other_code_are_not_for_a_log() -> None:
    assert loggable(PromptError("a field is wrong")) == "a field is wrong"
    assert (
        loggable(PromptError("cannot print 'secret'", "TypeError"))
        == "TypeError in the template or tokenizer"
    )
