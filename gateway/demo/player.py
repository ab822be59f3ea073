"""Player of the demo's traffic: each request goes to both sides at the same time."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from gateway.core.decode_errors import UNREADABLE
from gateway.core.usage import Usage
from gateway.core.usage_reading import read_usage
from gateway.demo.score import Score
from gateway.demo.traffic import DemoRequest

ANSWER_TIMEOUT_S = 60.0
MAX_IN_FLIGHT = 128
"""Requests of one side in flight. Beyond, requests are not sent there, and count as failed."""


@dataclass(frozen=True, slots=True)
class Side:
    """A gateway with its fleet: base URL, and what it has answered."""

    url: str
    score: Score


class Player:
    """Sends requests at their times. `clock` is monotonic seconds."""

    def __init__(self, sides: tuple[Side, ...], clock: Callable[[], float]) -> None:
        self._sides = sides
        self._clock = clock
        self._in_flight: dict[str, set[asyncio.Task[None]]] = {side.url: set() for side in sides}

    async def play(self, requests: Iterator[DemoRequest]) -> None:
        """Play until cancelled, or to the end."""
        begun = self._clock()
        timeout = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            try:
                for request in requests:
                    await asyncio.sleep(max(begun + request.at_s - self._clock(), 0.0))
                    for side in self._sides:
                        self._send(session, side, request)
                while waiting := [task for tasks in self._in_flight.values() for task in tasks]:
                    await asyncio.wait(waiting)
            finally:
                left = [task for tasks in self._in_flight.values() for task in tasks]
                for task in left:
                    task.cancel()
                await asyncio.gather(*left, return_exceptions=True)

    def _send(self, session: aiohttp.ClientSession, side: Side, request: DemoRequest) -> None:
        tasks = self._in_flight[side.url]
        if len(tasks) >= MAX_IN_FLIGHT:
            side.score.failed(request.at_s)
            return
        task = asyncio.get_running_loop().create_task(self._ask(session, side, request))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _ask(self, session: aiohttp.ClientSession, side: Side, request: DemoRequest) -> None:
        sent, ttft_s, usage = self._clock(), None, None
        try:
            async with session.post(f"{side.url}/v1/chat/completions", json=request.body) as answer:
                async for line in answer.content:
                    if answer.status != 200 or not line.startswith(b"data: {"):
                        continue
                    if ttft_s is None and _has_token(line[6:]):
                        ttft_s = self._clock() - sent
                    if isinstance(found := read_usage(line[6:]), Usage) and found.prompt_tokens:
                        usage = found
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            usage = None
        if usage is None or ttft_s is None:
            side.score.failed(request.at_s)
        else:
            side.score.answered(request.at_s, ttft_s, usage.prompt_tokens, usage.cached_tokens or 0)


class _StreamChoice(msgspec.Struct):
    delta: dict[str, Any] = {}
    finish_reason: str | None = None


class _StreamChunk(msgspec.Struct):
    choices: list[_StreamChoice] = []


def _has_token(data: bytes) -> bool:
    """True for a chunk with a part of an answer, of whatever kind: text, a thought, a tool call; or with the
    end of an empty one. A role alone is no part."""
    try:
        chunk = msgspec.json.decode(data, type=_StreamChunk)
    except UNREADABLE:
        return False
    return any(
        choice.finish_reason or any(value for name, value in choice.delta.items() if name != "role")
        for choice in chunk.choices
    )
