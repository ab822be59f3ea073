from typing import Any

import pytest

from gateway.tokenization.plain_text import plain_texts
from gateway.tokenization.prompt_encoder import PromptError


def test_a_prompt_is_one_text_or_several() -> None:
    assert plain_texts({"prompt": "a", "suffix": None}) == ["a"]
    assert plain_texts({"prompt": ["a", ""]}) == ["a", ""]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"prompt": [1, 2]},
        {"prompt": ["a", 1]},
        {"prompt": "a", "suffix": "b"},
        {"prompt": "a", "prompt_embeds": "…"},
        {"prompt": "a", "truncate_prompt_tokens": 5},
    ],
)
def test_a_prompt_with_more_than_text_is_left_to_the_workers(body: dict[str, Any]) -> None:
    with pytest.raises(PromptError, match="not plain text"):
        plain_texts(body)
