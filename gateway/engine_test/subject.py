"""The worker under test: requests to one endpoint past the gateway, and what it answers."""

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from gateway.core.decode_errors import UNREADABLE
from gateway.core.eligibility import is_from
from gateway.core.engine import Engine, TokenizeCalls
from gateway.core.request import InferenceRequest
from gateway.core.usage import Usage
from gateway.core.usage_reading import read_usage
from gateway.core.worker import Worker
from gateway.discovery.probe import Probe
from gateway.discovery.probed import Facts, workers_of
from gateway.discovery.salt_proof import FIRST_ID, LAST_ID
from gateway.tokenization.worker_tokens import read_tokens, tokenize_bodies
from gateway.upstream.control_client import ControlSession, failure, read_all

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Conventions:
    """An engine's own conventions where questions depend on them, see `core/engine.py`; the defaults are
    vLLM's. `has_salts`: this version keeps the caches of `cache_salt`s apart, by its documentation."""

    takes_lists: bool = True
    loads_by_name: bool = False
    takes_no_limit: bool = False
    has_salts: bool = True
    tokenize: TokenizeCalls | None = TokenizeCalls()

    @property
    def tokenizes_for_kvgate(self) -> bool:
        """True if kvgate asks such workers for the tokens of prompts that it has no tokenizer for."""
        return self.tokenize is not None and self.tokenize.template is None


def conventions_of(engine: Engine, version: str | None) -> Conventions:
    return Conventions(
        takes_lists=engine.takes_lists,
        loads_by_name=engine.loads_by_name,
        takes_no_limit=engine.takes_no_limit,
        has_salts=is_from(engine.salts_from, version),
        tokenize=engine.tokenize,
    )


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

    @property
    def num_choices(self) -> int:
        try:
            return len(msgspec.json.decode(self.body)["choices"])
        except (*UNREADABLE, LookupError, TypeError):
            return 0

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
    conventions: Conventions = Conventions()

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

    @property
    def publishes(self) -> bool:
        """False if it is known to publish no KV events."""
        return self.facts.sources != ()

    def fresh_prompt(self, num_tokens: int) -> list[int]:
        """Token ids that every vocabulary has, in an order that was never cached."""
        return [self.rng.randrange(FIRST_ID, LAST_ID) for _ in range(num_tokens)]

    def fresh_text(self, num_tokens: int) -> str:
        """Text of so many tokens at least, the first of which was never cached."""
        return " ".join(f"{self.rng.getrandbits(32):x}" for _ in range(num_tokens))

    def fresh(self, num_tokens: int) -> list[int] | str:
        """A new prompt, as token ids where the engine takes them."""
        if self.conventions.takes_lists:
            return self.fresh_prompt(num_tokens)
        return self.fresh_text(num_tokens)

    async def tokens_of(self, request: InferenceRequest) -> Sequence[int]:
        """The worker's own tokens of a text or a chat; empty where it has no answer."""
        calls, fields = self.conventions.tokenize, request.fields
        if calls is None:
            return ()
        (body,) = tokenize_bodies(request, rendering=self.worker.rendering)
        if calls.field != "prompt":
            text = fields.get("prompt")
            if calls.template and "messages" in fields:
                text = await self._rendered(calls.template, fields)
            body = {calls.field: text, "add_special": True, "parse_special": True}
        answer = await self.post(calls.path, body)
        try:
            return list(read_tokens(answer.body)) if answer.status == 200 else ()
        except UNREADABLE:
            return ()

    async def _rendered(self, path: str, fields: Mapping[str, Any]) -> str:
        """Text of a chat, as the engine renders it."""
        answer = await self.post(path, fields)
        try:
            return str(msgspec.json.decode(answer.body)["prompt"]) if answer.status == 200 else ""
        except (*UNREADABLE, LookupError, TypeError):
            return ""

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
        body = {"model": self.model, "prompt": self.fresh(8), "max_tokens": num_tokens}
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
