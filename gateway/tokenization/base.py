"""Renderer interface: a model's requests to prompts, by jinja templates (`tokenization/prompt_encoder.py`) or
by the code of a model family."""

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from typing import Any, Protocol

from gateway.core.blocks import Tokens
from gateway.core.rendering import Rendering
from gateway.core.request import InferenceRequest
from gateway.core.token_runs import ContinuedTokens, TokenRunCache


class Renderer(Protocol):
    """Renders one model's requests to the tokens that its engine computes, exactly, or raises PromptError.

    Calls come from several threads, also at the same time.
    """

    @property
    def kind(self) -> str:
        """Name of the encoder, as metrics and decision records show it."""

    @property
    def why(self) -> str:
        """Reason for the choice of encoder."""

    @property
    def rendering(self) -> Rendering:
        """The rules of an engine by which it renders."""

    @property
    def sources(self) -> Sequence[str]:
        """Source texts of the chat templates; an empty text if the engine has none."""

    @property
    def renders_chats_as_engine(self) -> bool:
        """True if a worker's `/tokenize` renders chats as its engine does, so that they can be compared."""

    @property
    def prints_day(self) -> bool:
        """True if prompts may have the day, by the clock of the worker."""

    def shows_day(self, body: Mapping[str, Any], tokens: Sequence[int], day: date) -> bool:
        """True if a worker's `/tokenize` made these tokens of a chat on that day, so far as they show it."""

    def describe(self) -> dict[str, Any]:
        """Status view: what is in use and why, in plain values; `templates` have a `name`, `rendering` and
        `why`."""

    def expect(self, max_tokens: int) -> int:
        """Set the prompt limit of this thread's next prompts, in tokens (0: unknown); longer ones raise
        TooLong early. Returns the bytes of text that are too many in any case; 0 where there is no such
        bound."""

    def tokens(self, request: InferenceRequest, now: datetime) -> ContinuedTokens:
        """Tokens of a chat request. Raises MediaError where it has images or other media."""

    def growing(self, body: Mapping[str, Any]) -> ContinuedTokens | None:
        """Tokens of a completion of one long text, at the cost of its new part; None for others."""

    def completion(self, body: Mapping[str, Any]) -> list[Tokens]:
        """Tokens of each prompt of a completion."""

    def before_media(self, body: Mapping[str, Any], now: datetime) -> Tokens:
        """Tokens of a chat up to its first medium."""

    def decode(self, tokens: Sequence[int]) -> str | None: ...

    def remember(
        self,
        runs: TokenRunCache,
        now: datetime,
        mismatch: Callable[[str], None],
        run: Callable[[bytes], bytes] | None = None,
    ) -> None:
        """Start to reuse the tokens of earlier prompts; `mismatch` is called when a proof turns out wrong.
        `run` makes proofs elsewhere (`proof_task.Run`); None: here."""
