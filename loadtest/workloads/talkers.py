"""Users in conversations with a model: they come at random, read each response, and ask on."""

import asyncio
import json
import random
from typing import Any

import aiohttp

from loadtest.workloads.conversations import Conversations


class Talkers:
    """Conversations of users: `rate` begin per second, for `seconds`. Groups of them share a system prompt. A
    turn continues from the response that came, after some `pause_s`."""

    def __init__(
        self,
        url: str,
        *,
        seconds: float,
        rate: float,
        seed: int = 1,
        num_groups: int = 4,
        system_chars: int = 3000,
        turn_chars: int = 1500,
        max_turns: int = 5,
        max_tokens: int = 60,
        pause_s: float = 1.0,
    ) -> None:
        self.failures: list[str] = []
        self._url, self._seconds, self._rate = url, seconds, rate
        self._rng = random.Random(seed)
        self._words, self._turn_chars = Conversations("m", seed), turn_chars
        self._systems = [self._words.piece(system_chars) for _ in range(num_groups)]
        self._max_turns, self._max_tokens, self._pause_s = max_turns, max_tokens, pause_s

    async def talk(self) -> None:
        timeout = aiohttp.ClientTimeout(total=300)
        async with aiohttp.ClientSession(timeout=timeout) as session, asyncio.TaskGroup() as group:
            number, left_s = 0, self._seconds
            while (pause_s := self._rng.expovariate(self._rate)) < left_s:
                left_s -= pause_s
                await asyncio.sleep(pause_s)
                group.create_task(self._converse(session, number), name=f"talker {number}")
                number += 1

    async def _converse(self, session: aiohttp.ClientSession, number: int) -> None:
        rng = self._rng
        messages: list[dict[str, str]] = [{"role": "system", "content": rng.choice(self._systems)}]
        for _ in range(rng.randint(1, self._max_turns)):
            num_chars = rng.randint(self._turn_chars // 8, self._turn_chars)
            messages.append({"role": "user", "content": self._words.piece(num_chars)})
            body = {
                "model": "m",
                "messages": messages,
                "user": f"talker-{number}",
                "stream": True,
                "max_tokens": rng.randint(self._max_tokens // 4, self._max_tokens),
                "ignore_eos": True,
            }
            answer = await self._ask(session, body)
            if answer is None:
                return
            messages.append({"role": "assistant", "content": answer})
            await asyncio.sleep(rng.expovariate(1 / self._pause_s))

    async def _ask(self, session: aiohttp.ClientSession, body: dict[str, Any]) -> str | None:
        words: list[str] = []
        async with session.post(f"{self._url}/v1/chat/completions", json=body) as answer:
            if answer.status != 200:
                self.failures.append(f"{answer.status} {await answer.text()}")
                return None
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    for choice in json.loads(line[6:])["choices"]:
                        words.append(choice["delta"].get("content") or "")
        return "".join(words)
