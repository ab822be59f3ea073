"""Tokenizer that names its calls."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from gateway.core.blocks import Tokens, tokens_of
from gateway.core.rendering import VLLM
from gateway.core.request import InferenceRequest
from gateway.core.token_runs import ContinuedTokens, TokenRunCache
from gateway.tokenization.prompt_encoder import PromptError


class FakePrompts:
    """A tokenizer that names its calls; `error` is raised instead."""

    kind = "fake"
    rendering = VLLM

    def __init__(self, *ids: int, error: str | None = None) -> None:
        self.ids, self.error = ids, error
        self.calls: list[tuple[str, Any]] = []

    def remember(
        self, runs: TokenRunCache, now: datetime, mismatch: Callable[[str], None], run: Any = None
    ) -> None:
        self.runs, self.mismatch = runs, mismatch

    def describe(self) -> dict[str, Any]:
        return {"encoder": self.kind}

    def decode(self, tokens: Tokens) -> str:
        return f"text of {len(tokens)}"

    def tokens(self, request: InferenceRequest, now: datetime) -> ContinuedTokens:
        self.calls.append(("chat", now))
        return ContinuedTokens(self._tokens())

    def expect(self, max_tokens: int) -> int:
        return 0

    def growing(self, body: Mapping[str, Any]) -> None:
        return None

    def completion(self, body: Mapping[str, Any]) -> list[Tokens]:
        self.calls.append(("completion", body["prompt"]))
        return [self._tokens(), self._tokens()]

    def _tokens(self) -> Tokens:
        if self.error:
            raise PromptError(self.error)
        return tokens_of(self.ids)
