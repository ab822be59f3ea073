"""Plain-text prompts of completions, for renderers that support nothing else."""

import re
from collections.abc import Mapping
from typing import Any

from gateway.tokenization.pieces import MAX_CHARS
from gateway.tokenization.prompt_encoder import PromptError

MAX_RUN = 4096
"""Characters of one word, or one run of signs or white space, at most: OpenAI's library takes a tenth of a
second for 16,000 of them, and sixteen times that for 64,000."""
MAX_TEXT_CHARS = 2 * MAX_CHARS
"""Characters of a text that cannot be cut, so that memory is bounded."""

_RUN = re.compile(
    rf"[^\s\d!-/:-@\[-`{{-~\u3000-\u303f\uff00-\uff0f]{{{MAX_RUN}}}|[^\w\s]{{{MAX_RUN}}}|\s{{{MAX_RUN}}}"
)


def check_length(text: str) -> None:
    """Raise PromptError for a text that takes too much to tokenize at once."""
    if len(text) > MAX_TEXT_CHARS:
        raise PromptError(f"a text of more than {MAX_TEXT_CHARS} characters")


def check_runs(text: str) -> None:
    """Raise PromptError as `check_length` does, and for long words: time grows with the square of the
    longest."""
    check_length(text)
    if len(text) >= MAX_RUN and _RUN.search(text):
        raise PromptError(f"a word or a run of more than {MAX_RUN} characters")


_NOT_PLAIN = ("prompt_embeds", "suffix", "truncate_prompt_tokens")


def plain_texts(body: Mapping[str, Any]) -> list[str]:
    """Prompts of a completion as texts. Raises PromptError for token ids, and for fields that change the
    text."""
    given = body.get("prompt")
    texts = [given] if isinstance(given, str) else given
    is_plain = all(body.get(name) is None for name in _NOT_PLAIN)
    if not is_plain or not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise PromptError("prompt is not plain text")
    return texts
