"""A scripted fleet: cached prefixes per worker when a request is sent, and the usage the engine reports."""

from collections.abc import Sequence
from itertools import count
from typing import Any

import msgspec

from gateway.core.blocks import BlockHash, hash_blocks, prompt_extra_keys, root_hash, tokens_of
from gateway.core.decision import Candidate, Decided, Decision, Prompt
from gateway.core.request import InferenceRequest
from gateway.core.usage import Usage
from gateway.core.worker import ServedModel
from gateway.observability.cache_loss.observer import CacheLoss
from gateway.requests.parsing import parse_request
from tests.support.fakes import worker

SIZE = 16
SERVED = (ServedModel("m", "root"), ServedModel("tuned", "root", "tuned"))


class CacheLossWorld:
    """Workers a, b and so on; the first that is named is chosen."""

    def __init__(self, losses: CacheLoss | None = None) -> None:
        self.losses = losses or CacheLoss(lambda model, tokens: None)
        self._ids = count()

    def send(
        self,
        *prompts: Sequence[int],
        model: str = "m",
        salt: str | None = None,
        size: int | None = SIZE,
        booked: int = 0,
        messages: object = None,
        prompt_logprobs: int | None = None,
        source: str = "ids",
        **overlaps: int,
    ) -> Decision:
        """`overlaps`: tokens by worker; `booked` tokens at the others."""
        overlaps = overlaps or {"a": 0}
        num = sum(map(len, prompts))
        candidates = tuple(
            Candidate(worker(name, *SERVED, block_size=size), held, num - held, booked if i else 0, 0)
            for i, (name, held) in enumerate(overlaps.items())
        )
        chosen = candidates[0]
        decision = Decision(
            f"d{next(self._ids)}",
            model,
            "p",
            chosen.worker,
            num,
            chosen.overlap_tokens,
            "because",
            candidates,
            prompt_from=source,
        )
        tokens = tuple(map(tokens_of, prompts))
        blocks = [self.blocks(prompt, model, salt) for prompt in prompts] if size else []
        request = self._request(model, salt, messages, prompt_logprobs)
        self.losses.decided(Decided(decision, Prompt(tokens, source), blocks, request))
        return decision

    def answer(
        self,
        decision: Decision,
        prompt: Sequence[int],
        cached: int | None,
        *,
        num: int | None = None,
        salt: str | None = None,
    ) -> None:
        """`prompt` is the request's last; the engine says that there are `num` tokens in all."""
        usage = Usage(decision.num_tokens if num is None else num, None, cached)
        blocks = self.blocks(prompt, decision.model, salt)
        self.losses.answered(decision, blocks, usage)
        self.work()

    def ask(self, prompt: Sequence[int], cached: int = 0, salt: str | None = None, **more: Any) -> None:
        """Sent and answered."""
        self.answer(self.send(prompt, salt=salt, **more), prompt, cached, salt=salt)

    def work(self) -> None:
        while self.losses.step():
            pass

    def causes(self) -> dict[str, int]:
        return {cause.value: num for cause, num in self.losses.recomputed.items() if num}

    def evict(self, prompt: Sequence[int], first: int = 0) -> None:
        """Evict the prompt's blocks from token `first` on, the tail first."""
        for block in reversed(self.blocks(prompt)[first // SIZE :]):
            self.losses.evict(block)

    @staticmethod
    def blocks(prompt: Sequence[int], model: str = "m", salt: str | None = None) -> list[BlockHash]:
        extra = prompt_extra_keys("tuned" if model == "tuned" else None, salt, len(prompt) // SIZE)
        return hash_blocks(tokens_of(prompt), SIZE, root_hash("root"), extra)

    @staticmethod
    def _request(
        model: str, salt: str | None, messages: object, prompt_logprobs: int | None
    ) -> InferenceRequest:
        messages = messages or [{"role": "user", "content": "x"}]
        body = {"model": model, "messages": messages, "prompt_logprobs": prompt_logprobs}
        more = {"cache_salt": salt} if salt else {}
        return parse_request("/v1/chat/completions", msgspec.json.encode(body | more))
