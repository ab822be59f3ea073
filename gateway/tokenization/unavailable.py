"""Stand-in for a renderer where there is none: requests are routed by load, counted, with the reason."""

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from typing import Any, NoReturn

from gateway.core.blocks import Tokens
from gateway.core.rendering import VLLM, Rendering
from gateway.core.request import InferenceRequest
from gateway.core.token_runs import ContinuedTokens, TokenRunCache
from gateway.tokenization.prompt_encoder import PromptError


class Unavailable:
    """Renderer that raises PromptError for each prompt; `why` is the reason that is logged and shown."""

    kind = "none"
    sources: Sequence[str] = ()
    renders_chats_as_engine = True
    prints_day = False

    def __init__(self, why: str, rendering: Rendering = VLLM) -> None:
        self.why, self.rendering = why, rendering

    def __repr__(self) -> str:
        return f"Unavailable({self.why!r})"

    def shows_day(self, body: Mapping[str, Any], tokens: Sequence[int], day: date) -> bool:
        """False: no prompt has the day."""
        return False

    def describe(self) -> dict[str, Any]:
        return {"encoder": None, "encoder_reason": self.why, "templates": []}

    def expect(self, max_tokens: int) -> int:
        """No bound: there are no tokens."""
        return 0

    def tokens(self, request: InferenceRequest, now: datetime) -> ContinuedTokens:
        self._refuse()

    def growing(self, body: Mapping[str, Any]) -> ContinuedTokens | None:
        self._refuse()

    def completion(self, body: Mapping[str, Any]) -> list[Tokens]:
        self._refuse()

    def before_media(self, body: Mapping[str, Any], now: datetime) -> Tokens:
        self._refuse()

    def decode(self, tokens: Sequence[int]) -> str | None:
        return None

    def remember(
        self,
        runs: TokenRunCache,
        now: datetime,
        mismatch: Callable[[str], None],
        run: Callable[[bytes], bytes] | None = None,
    ) -> None:
        """Do nothing: there is nothing to cache."""

    def _refuse(self) -> NoReturn:
        raise PromptError(self.why)
