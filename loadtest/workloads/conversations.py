"""Conversations over real text: sources and prose of the standard library, cut into turns.

Deterministic for a seed; nothing is downloaded and nothing leaves the machine.
"""

import random
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any


@cache
def corpus() -> str:
    """A few MB of code and prose, the same on every machine with the same Python."""
    library = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(library.glob("*.py"))[:120]
    return "\n".join(path.read_text(errors="replace") for path in files)


class Conversations:
    """Endless conversations of a model, cut from `text`; each turn is the body that a client would send."""

    def __init__(self, model: str, seed: int = 0, *, turn_chars: int = 1200, text: str = "") -> None:
        self._model = model
        self._rng = random.Random(seed)
        self._text = text or corpus()
        self._turn_chars = turn_chars

    def piece(self, num_chars: int | None = None) -> str:
        size = num_chars or self._turn_chars
        start = self._rng.randrange(len(self._text) - size)
        return self._text[start : start + size]

    def messages(self, num_chars: int) -> list[dict[str, str]]:
        """A conversation of about so many characters, ending with a user's turn."""
        messages = [{"role": "system", "content": self.piece(800)}]
        roles = ("user", "assistant")
        while sum(len(message["content"]) for message in messages) < num_chars or len(messages) % 2:
            messages.append({"role": roles[(len(messages) - 1) % 2], "content": self.piece()})
        return messages

    def turns(self, num_turns: int) -> Iterator[dict[str, Any]]:
        """The bodies of one conversation, each the one before with an answer and a new question."""
        messages = [{"role": "system", "content": self.piece(800)}]
        for _ in range(num_turns):
            messages = [*messages, {"role": "user", "content": self.piece(300)}]
            yield {"model": self._model, "messages": messages, "max_tokens": 16}
            messages = [*messages, {"role": "assistant", "content": self.piece(200)}]
