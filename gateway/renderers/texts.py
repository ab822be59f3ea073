"""What a completion asks to be continued, for renderers that tokenize plain text and nothing else."""

from collections.abc import Mapping
from typing import Any

from gateway.core.prompt import PromptError

_NOT_PLAIN = ("prompt_embeds", "suffix", "truncate_prompt_tokens")


def plain_texts(body: Mapping[str, Any]) -> list[str]:
    """One or several. Raises PromptError for ids, and for what would change the text."""
    given = body.get("prompt")
    texts = [given] if isinstance(given, str) else given
    is_plain = all(body.get(name) is None for name in _NOT_PLAIN)
    if not is_plain or not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise PromptError("a completion that is not plain text")
    return texts
