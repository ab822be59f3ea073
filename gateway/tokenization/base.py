"""What makes a model's prompts: jinja templates (`tokenization/prompt_encoder.py`), or what a family has
instead."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from gateway.core.blocks import Tokens
from gateway.core.requests.request import InferenceRequest
from gateway.core.token_runs import Continued, Runs


class Renderer(Protocol):
    """One model's requests to the tokens that its engine computes, exactly or not at all: PromptError.

    What it is asked comes from threads too, one at a time or several.
    """

    @property
    def kind(self) -> str:
        """By whom prompts are tokenized, as metrics and decision records name it."""

    @property
    def why(self) -> str:
        """Why by it."""

    @property
    def sources(self) -> Sequence[str]:
        """The texts of its chat templates, where it has some; an empty one where its engine has none."""

    @property
    def tells_chats(self) -> bool:
        """Whether a worker's `/tokenize` makes chats as its engine does, so that they can be compared."""

    def describe(self) -> dict[str, Any]:
        """What is in use and why, in plain values; `templates` have a `name`, `rendering` and `why`."""

    def expect(self, max_tokens: int) -> int:
        """The prompt that this thread makes tokens of next is for a model that takes so many, 0 where that is
        unknown; one that has more raises TooLong, early. How many bytes of text are too many, whatever they
        are; 0 where there is no such bound."""

    def tokens(self, request: InferenceRequest, now: datetime) -> Continued:
        """Of a chat. Raises MediaError where it has images or other media."""

    def growing(self, body: Mapping[str, Any]) -> Continued | None:
        """Of a completion of one long text at the cost of what is new in it; None for others."""

    def completion(self, body: Mapping[str, Any]) -> list[Tokens]:
        """Of a completion: one for each of its prompts."""

    def before_media(self, body: Mapping[str, Any], now: datetime) -> Tokens:
        """Of a chat, up to its first medium."""

    def decode(self, tokens: Sequence[int]) -> str | None: ...

    def remember(self, runs: Runs, now: datetime, mismatch: Callable[[str], None]) -> None:
        """From now on what is known may be made use of; `mismatch` hears of a proof that did not hold."""
