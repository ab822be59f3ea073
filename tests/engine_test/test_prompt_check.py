import pytest

from gateway.engine_test.prompt_check import PromptCheck


@pytest.mark.parametrize(
    ("check", "is_compared", "words"),
    [
        (PromptCheck("one", (), (), 3), False, None),
        (PromptCheck("one", (1,), (), None), False, None),
        (PromptCheck("one", (1, 2), (1, 2), None), True, None),
        (PromptCheck("one", (), (1, 2), 3), True, "one: 2 by its own tokenizer, 3 counted"),
        (PromptCheck("one", (1, 2), (), 3), True, "one: 2 by kvgate, 3 counted"),
        (
            PromptCheck("one", (1, 2), (1, 3), 2),
            True,
            "one: other tokens by kvgate than by its own tokenizer, from token 2 on",
        ),
        (
            PromptCheck("one", (1, 2), (1, 2, 3), None),
            True,
            "one: other tokens by kvgate than by its own tokenizer, from token 3 on",
        ),
        (
            PromptCheck("one", (1, 2, 3), (1,), None),
            True,
            "one: other tokens by kvgate than by its own tokenizer, from token 2 on",
        ),
    ],
)
def test_the_first_two_sources_that_differ_are_named(
    check: PromptCheck, is_compared: bool, words: str | None
) -> None:
    assert (check.is_compared, check.difference()) == (is_compared, words)
