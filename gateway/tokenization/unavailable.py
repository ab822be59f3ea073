"""In place of a renderer where there is none: requests are routed on load, counted, with the reason."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from gateway.core.blocks import Tokens
from gateway.core.requests.request import InferenceRequest
from gateway.core.token_runs import Continued, Runs
from gateway.tokenization.prompt_encoder import PromptError


class Nobody:
    """`why` is what is logged, and told."""

    kind = "nobody"
    sources: Sequence[str] = ()
    tells_chats = True

    def __init__(self, why: str) -> None:
        self.why = why

    def __repr__(self) -> str:
        return f"Nobody({self.why!r})"

    def describe(self) -> dict[str, Any]:
        return {"encoder": None, "why": self.why, "templates": []}

    def expect(self, max_tokens: int) -> int:
        """There are no tokens to be bounded."""
        return 0

    def tokens(self, request: InferenceRequest, now: datetime) -> Continued:
        self._refuse()

    def growing(self, body: Mapping[str, Any]) -> Continued | None:
        self._refuse()

    def completion(self, body: Mapping[str, Any]) -> list[Tokens]:
        self._refuse()

    def before_media(self, body: Mapping[str, Any], now: datetime) -> Tokens:
        self._refuse()

    def decode(self, tokens: Sequence[int]) -> str | None:
        return None

    def remember(self, runs: Runs, now: datetime, mismatch: Callable[[str], None]) -> None:
        """There is nothing to remember."""

    def _refuse(self) -> NoReturn:
        raise PromptError(self.why)
