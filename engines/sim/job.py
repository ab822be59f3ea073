"""HTTP request while it is answered: its choices, their progress, and their usage."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from secrets import token_hex

from engines.sim.cache import CachedSequence
from engines.sim.params import RequestParams
from engines.sim.pd.leg import KvLoad, Leg
from engines.sim.pd.storage import aligned, place
from engines.sim.rank import SimRank
from engines.sim.scheduler import Sequence as EngineSequence
from engines.sim.words import GeneratedText, ToolCall, garbled
from gateway.core.blocks import Tokens

VERSION = "0.32.0"
OLD_VERSION = "0.23.0"
FINGERPRINT = f"vllm-{VERSION}-sim"


@dataclass(slots=True)
class JobChoice:
    """Choice: one answer to one prompt. `num_sent` of the tokens produced so far have been passed on."""

    index: int
    prompt: Tokens
    answer: GeneratedText
    num_sent: int = 0
    num_produced: int = 0

    @property
    def is_done(self) -> bool:
        return self.num_sent == len(self.answer.tokens)

    @property
    def finish_reason(self) -> str | None:
        return self.answer.finish if self.is_done else None

    @property
    def chat_finish(self) -> str:
        """Reason of the end in a chat: the engine's own, or that tools are called."""
        return "tool_calls" if self.answer.calls and self.answer.finish == "stop" else self.answer.finish

    @property
    def last_call(self) -> tuple[int, ToolCall] | None:
        """Tool call that the token just produced is part of, with its index."""
        return self.answer.call_at(self.num_sent - 1)

    @property
    def last_piece(self) -> str:
        return self.answer.pieces[self.num_sent - 1]

    @property
    def text(self) -> str:
        return "".join(self.answer.pieces)


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Token counts so far; `cached` is None where the engine does not report it."""

    prompt: int
    completion: int
    cached: int | None

    @property
    def total(self) -> int:
        return self.prompt + self.completion


class LoadFailed(Exception):
    """KV from another worker did not arrive, and this worker must not compute it."""


class HttpJob:
    """Choices of one request, in vLLM's order: n for the first prompt, n for the second, …

    `leg`: its part where prefill and decode are on different workers. `extra_tokens` are counted as the
    prompt's, as if another template had been used.
    """

    def __init__(
        self,
        asked: RequestParams,
        prompts: Sequence[Tokens],
        answers: Sequence[GeneratedText],
        request_id: str | None,
        leg: Leg | None = None,
        extra_tokens: int = 0,
    ) -> None:
        self.asked = asked
        self.request_id = request_id or token_hex(8)
        self.created = int(time.time())
        self.prompts = prompts
        self.choices = [
            JobChoice(index, prompts[index // asked.num_choices], answer)
            for index, answer in enumerate(answers)
        ]
        self._sequences: list[tuple[SimRank, EngineSequence]] = []
        self._progress: asyncio.Queue[JobChoice | None] = asyncio.Queue()
        self._is_streaming = True
        self._leg = leg
        self._extra_tokens = extra_tokens

    @property
    def sequences(self) -> list[EngineSequence]:
        return [sequence for _, sequence in self._sequences]

    def submit(self, choose: Callable[[], SimRank]) -> None:
        """Submit each choice to the rank that `choose` returns. Then `wait` for tokens, or `finish` for all
        of them."""
        for choice in self.choices:
            cached = CachedSequence(
                choice.prompt[:],
                self.asked.adapter,
                self.asked.cache_salt,
                self.asked.reads_cache,
                self.asked.reports_hit,
            )
            sequence = EngineSequence(cached, choice.answer.tokens, choice.answer.finish, len(choice.prompt))
            if self._leg is not None:
                self._take_part(self._leg, sequence, choice)
            rank = choose()
            if self._leg is not None and self._leg.store is not None:
                _look(self._leg.store, sequence, choice.prompt, rank.scheduler.cache.block_size)
            self._sequences.append((rank, sequence))
            rank.submit(sequence, partial(self._on_token, choice), partial(self._progress.put_nowait, None))

    def _take_part(self, leg: Leg, sequence: EngineSequence, choice: JobChoice) -> None:
        if leg.pins:
            sequence.pins = leg.key or f"{self.request_id}-{choice.index}-{token_hex(4)}"
        if leg.fetches:
            garble = partial(_garble, sequence, choice)
            sequence.load = KvLoad(len(choice.prompt), leg.source, on_mismatch=garble)

    def abort(self) -> None:
        """Abort the sequences that are not finished; harmless when all are."""
        for rank, sequence in self._sequences:
            rank.abort(sequence)

    async def finish(self) -> None:
        """Wait for all tokens, without waking up for each."""
        self._is_streaming = False
        while not self.is_done:
            await self.wait()

    def _on_token(self, choice: JobChoice) -> None:
        choice.num_produced += 1
        if self._is_streaming or choice.num_produced == len(choice.answer.tokens):
            self._progress.put_nowait(choice)

    async def wait(self) -> JobChoice:
        """Wait for the next token. Returns its choice, with the token counted. Raises LoadFailed before the
        first."""
        choice = await self._progress.get()
        if choice is None:
            raise LoadFailed
        choice.num_sent = choice.num_sent + 1 if self._is_streaming else choice.num_produced
        return choice

    @property
    def is_done(self) -> bool:
        return all(choice.is_done for choice in self.choices)

    def usage(self, with_details: bool) -> TokenCounts:
        """Usage as vLLM counts it: each prompt once, cached tokens of the last prompt only."""
        last = self._sequences[-self.asked.num_choices][1]
        return TokenCounts(
            prompt=sum(map(len, self.prompts)) + self._extra_tokens,
            completion=sum(choice.num_sent for choice in self.choices),
            cached=self._cached(last) if with_details else None,
        )

    def _cached(self, sequence: EngineSequence) -> int:
        leg = self._leg or Leg()
        if leg.reported_cached_tokens is not None:
            return leg.reported_cached_tokens
        return (sequence.num_cached_tokens or 0) - leg.reports_own_hit * sequence.num_external_tokens


def _look(store: Path, sequence: EngineSequence, prompt: Tokens, block_size: int) -> None:
    path, num_tokens = place(store, prompt, block_size), aligned(len(prompt), block_size)
    if path.exists():
        sequence.load = KvLoad(num_tokens, None, path)
    elif num_tokens:
        sequence.stores = path


def _garble(sequence: EngineSequence, choice: JobChoice) -> None:
    choice.answer = garbled(choice.answer)
    sequence.output = choice.answer.tokens
