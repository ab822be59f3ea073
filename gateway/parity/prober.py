"""Prober: asks workers for their tokens of the probes, and has them compared.

catalog (a worker joins), `kvgate check` ─ compare ─► 20 probes ─► ParityComparison ─► ParityResult
worker_days (a midnight somewhere)       ─ day_of ─►  2 probes ─► the worker's day
pairs (prefill and decode workers)       ─ made_by ─►  2 probes ─► Made
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import date
from functools import partial
from typing import Any

import msgspec

from gateway.core.decode_errors import UNREADABLE
from gateway.core.rendering import VLLM, Rendering
from gateway.parity.comparison import Made, ParityComparison, ParityResult
from gateway.parity.probes import DAY_PROBES, MUST_ANSWER, PAIR_PROBES, PROBES, ProbePrompt
from gateway.tokenization.worker_tokens import read_tokens, tokenize_bodies

Ask = Callable[[str, object], Awaitable[bytes | None]]
"""Posts a body to a path of the worker; returns None unless the status is 200."""
Post = Callable[[str, str, object], Awaitable[bytes | None]]
"""Posts a body to a path of an endpoint; returns None unless the status is 200."""
ShowsDay = Callable[[Mapping[str, Any], Sequence[int], date], bool]
"""True if the tokens of a chat are those of that day (`Renderer.shows_day`)."""

MAX_AT_ONCE = 8
"""Workers that are asked at the same time: hundreds may join at once."""


class Prober:
    """Asks the workers of a fleet, a few at a time; `post` reaches them. `on_answered` gets the URL, the
    seconds and the bytes of each body that a worker tokenized."""

    def __init__(
        self,
        post: Post,
        on_answered: Callable[[str, float, int], None] = lambda url, took_s, num_bytes: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._post, self._on_answered, self._clock = post, on_answered, clock
        self._turn = asyncio.Semaphore(MAX_AT_ONCE)

    async def compare(self, url: str, comparison: ParityComparison) -> ParityResult:
        async with self._turn:
            return await compare(partial(self._ask, url), comparison)

    async def day_of(
        self, url: str, model: str, shows: ShowsDay, days: Iterable[date], rendering: Rendering = VLLM
    ) -> date | None:
        async with self._turn:
            return await day_of(model, partial(self._post, url), shows, days, rendering)

    async def made_by(self, url: str, model: str) -> Made:
        async with self._turn:
            return await made_by(model, partial(self._ask, url))

    async def _ask(self, url: str, path: str, body: object) -> bytes | None:
        began = self._clock()
        answer = await self._post(url, path, body)
        if answer is not None:
            self._on_answered(url, self._clock() - began, len(msgspec.json.encode(body)))
        return answer


async def compare(ask: Ask, comparison: ParityComparison) -> ParityResult:
    """Compare a worker's tokens of all probes. A worker that answers neither a text nor a chat gets no more
    of them."""
    async for probe, tokens in _answered(comparison.model, ask, PROBES, comparison.rendering):
        comparison.add(probe, tokens)
    return comparison.result()


async def made_by(model: str, ask: Ask) -> Made:
    """Worker's tokens of a text and of a chat; without those that it does not answer."""
    return {probe.name: tokens async for probe, tokens in _answered(model, ask, PAIR_PROBES)}


async def day_of(
    model: str, ask: Ask, shows: ShowsDay, days: Iterable[date], rendering: Rendering = VLLM
) -> date | None:
    """Day of `days` that a worker's prompts have; None where no answer shows it."""
    async for probe, tokens in _answered(model, ask, DAY_PROBES, rendering):
        fields = probe.request(model).fields
        found = [day for day in days if shows(fields, tokens, day)]
        if len(found) == 1:
            return found[0]
    return None


async def _answered(
    model: str, ask: Ask, probes: Sequence[ProbePrompt], rendering: Rendering = VLLM
) -> AsyncIterator[tuple[ProbePrompt, Sequence[int]]]:
    has_answered = False
    for number, probe in enumerate(probes):
        if number == MUST_ANSWER and not has_answered:
            return
        (body,) = tokenize_bodies(probe.request(model), rendering=rendering)
        if tokens := _read(await ask("/tokenize", body)):
            has_answered = True
            yield probe, tokens


def _read(answer: bytes | None) -> list[int]:
    try:
        return list(read_tokens(answer or b""))
    except UNREADABLE:
        return []
