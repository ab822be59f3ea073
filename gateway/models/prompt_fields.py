"""Fields of a request's prompt: token ids that it is given as, and what may be said of it. Pure."""

from collections.abc import Mapping
from typing import Any

from gateway.tokenization.chat_template import PromptError


def id_lists(fields: Mapping[str, Any]) -> list[list[int]]:
    """Prompts of a completion given as token ids; empty where it is text."""
    prompt = fields.get("prompt")
    if not isinstance(prompt, list) or not prompt:
        return []
    lists = prompt if isinstance(prompt[0], list) else [prompt]
    return lists if all(ids and isinstance(ids[0], int) for ids in lists) else []


def loggable(exc: PromptError) -> str:
    """Error text without the prompt: other code's messages (a chat template's above all) may quote it."""
    return f"{exc.foreign} in the template or tokenizer" if exc.foreign else str(exc)
