"""The worker under test: requests to one endpoint past the gateway, and what it answers."""

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from gateway.core.usage import Usage
from gateway.core.usage_reading import read_usage
from gateway.core.worker import Worker
from gateway.discovery.probe import Probe
from gateway.discovery.probed import Facts, workers_of
from gateway.discovery.salt_proof import FIRST_ID, LAST_ID
from gateway.upstream.control_client import ControlSession, failure, read_all

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """Whole answer to a request; status 0 with the failure in `body` where none came."""

    status: int
    body: bytes

    @property
    def usage(self) -> Usage | None:
        """The usage of a complete answer, if it has a plausible one."""
        found = read_usage(self.body) if self.status == 200 else None
        return found if isinstance(found, Usage) else None

    @property
    def cached_tokens(self) -> int | None:
        return self.usage.cached_tokens if self.usage else None

    def describe(self) -> str:
        """The status, with the first words of a failure."""
        words = self.body[:120].decode("utf-8", "replace").strip()
        return f"no answer ({words})" if not self.status else f"{self.status} {words}"


@dataclass(slots=True)
class Subject:
    """Endpoint under test. `rng` makes prompts that it has never seen."""

    url: str
    facts: Facts
    probe: Probe
    session: ControlSession
    rng: random.Random = field(default_factory=random.Random)

    @property
    def workers(self) -> tuple[Worker, ...]:
        return workers_of(self.facts)

    @property
    def worker(self) -> Worker:
        return self.workers[0]

    @property
    def model(self) -> str:
        """Name of the base model; the first name where every one is an adapter's."""
        base = (served.name for served in self.worker.served if not served.adapter)
        return next(base, self.worker.served[0].name)

    @property
    def block_size(self) -> int:
        """Tokens per block; 16 where the worker reports none."""
        return self.worker.block_size or 16

    def fresh_prompt(self, num_tokens: int) -> list[int]:
        """Token ids that every vocabulary has, in an order that was never cached."""
        return [self.rng.randrange(FIRST_ID, LAST_ID) for _ in range(num_tokens)]

    async def complete(self, prompt: object, *, dp_rank: int | None = None, **fields: object) -> EngineAnswer:
        """Send a completion of one token."""
        body = {"model": self.model, "prompt": prompt, "max_tokens": 1, "temperature": 0, **fields}
        rank = {"x-data-parallel-rank": str(dp_rank)} if dp_rank is not None else {}
        return await self.post(COMPLETIONS, body, rank)

    async def chat(self, messages: Sequence[Mapping[str, Any]], **fields: object) -> EngineAnswer:
        body = {"model": self.model, "messages": messages, "max_tokens": 1, "temperature": 0, **fields}
        return await self.post(CHAT, body)

    async def post(self, path: str, body: object, headers: Mapping[str, str] | None = None) -> EngineAnswer:
        """Send a JSON body."""
        return await self.send(path, msgspec.json.encode(body), headers)

    async def send(self, path: str, data: bytes, headers: Mapping[str, str] | None = None) -> EngineAnswer:
        headers = {"content-type": "application/json", **(headers or {})}
        try:
            async with self.session.call("POST", self.url, path, data=data, headers=headers) as answer:
                return EngineAnswer(answer.status, await read_all(answer))
        except TimeoutError:
            return EngineAnswer(0, b"it did not answer in time")
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            return EngineAnswer(0, failure(exc).encode())

    async def leave_a_stream(self, num_tokens: int) -> bool:
        """Begin a stream of so many tokens, and leave after its first bytes. Returns False if none came."""
        body = {"model": self.model, "prompt": self.fresh_prompt(8), "max_tokens": num_tokens}
        data = msgspec.json.encode(body | {"stream": True, "ignore_eos": True})
        headers = {"content-type": "application/json"}
        try:
            async with self.session.call("POST", self.url, COMPLETIONS, data=data, headers=headers) as answer:
                begun = answer.status == 200 and bool(await answer.content.readany())
                if answer.connection and answer.connection.transport:
                    answer.connection.transport.abort()  # uvloop keeps a paused connection that is closed
                return begun
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            return False

    async def num_running(self) -> int | None:
        """Requests that run or wait by its own metrics; None where they do not say."""
        metrics = (await self.probe.metrics()).values()
        if not metrics or any(each.num_requests_running is None for each in metrics):
            return None
        return sum((each.num_requests_running or 0) + (each.num_requests_waiting or 0) for each in metrics)

    async def is_idle_within(self, seconds: float) -> bool | None:
        """True if nothing runs within so many seconds; None where its metrics do not say."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while (num := await self.num_running()) and loop.time() < end:  # noqa: ASYNC110  another process
            await asyncio.sleep(0.1)
        return None if num is None else not num
