"""A gateway in the test's own process before one real engine, so that tests can read its index.

The reference is the engine's own report, `cached_tokens` of a request sent to it.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import aiohttp

from gateway.app import Gateway
from gateway.config import config_of
from gateway.core.blocks import BlockHash, hash_blocks, prompt_extra_keys, root_hash, tokens_of
from gateway.core.event_stream import StreamState
from gateway.core.fleet import Member
from tests.support.patience import until
from tests.vllm.engine import VllmWorker

BLOCK = 32

_markers = count(1)


class LateGateway:
    """A gateway started before a warm engine; `ask` goes through it, `cached` straight to the engine."""

    def __init__(self, gateway: Gateway, worker: VllmWorker, session: aiohttp.ClientSession) -> None:
        self.gateway, self.worker, self.session = gateway, worker, session
        self.id = self.member.worker.id

    @property
    def member(self) -> Member:
        """The fleet's only member, another one after a restart of the engine."""
        (member,) = self.gateway.fleet
        return member

    async def ask(self, prompt: Sequence[int], model: str = "m", **fields: Any) -> tuple[int, int]:
        """Send a request through the gateway; its predicted and its cached tokens."""
        body = {"model": model, "prompt": list(prompt), "max_tokens": 1, "temperature": 0, "ignore_eos": True}
        url = f"http://127.0.0.1:{self.gateway.port}/v1/completions"
        async with self.session.post(url, json=body | fields) as answer:
            completion = await answer.json()
            assert answer.status == 200, completion
            predicted = int(answer.headers["x-kvgate-overlap-tokens"])
            return predicted, completion["usage"]["prompt_tokens_details"]["cached_tokens"]

    def known(self, prompt: Sequence[int], adapter: str | None = None, salt: str | None = None) -> int:
        """Leading tokens that the index, without assumed blocks, credits the worker with."""
        return BLOCK * self.gateway.index.overlap(self.hashes(prompt, adapter, salt)).get(self.id, 0)

    def hashes(
        self, prompt: Sequence[int], adapter: str | None = None, salt: str | None = None
    ) -> list[BlockHash]:
        root = self.member.worker.served[0].root
        extra = prompt_extra_keys(adapter, salt, len(prompt) // BLOCK)
        return hash_blocks(tokens_of(prompt), BLOCK, root_hash(root), extra)

    async def cached(self, prompt: Sequence[int], model: str = "m", **fields: Any) -> int:
        """Leading tokens that the engine has cached, by a request with one more token."""
        answer = await asyncio.to_thread(self.worker.complete, [*prompt, 7], model=model, **fields)
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    async def caught_up(self) -> None:
        """Wait until the index has all events so far: a marker block computed now, and all before it."""
        marker = new_ids(f"marker {next(_markers)}", BLOCK)
        await warm(self.worker, marker)
        await self.until(lambda: self.known(marker) == BLOCK)

    async def until(self, is_true: Callable[[], object]) -> None:
        await until(is_true, seconds=30)


@asynccontextmanager
async def late(worker: VllmWorker, state: StreamState = StreamState.BLIND) -> AsyncIterator[LateGateway]:
    config = config_of(
        worker=[worker.url],
        port=0,
        admin_port=0,
        expose_headers=True,
        probe_interval_s=0.5,
        tokenizer=[str(worker.model)],
    )
    gateway = Gateway(config)
    await gateway.start()
    try:
        await until(lambda: [member.stream for member in gateway.fleet] == [state], seconds=30)
        async with aiohttp.ClientSession() as session:
            yield LateGateway(gateway, worker, session)
    finally:
        await gateway.stop()


def new_ids(seed: str, num: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(300, 8000) for _ in range(num)]


async def warm(worker: VllmWorker, *prompts: Sequence[int], **fields: Any) -> None:
    for prompt in prompts:
        await asyncio.to_thread(worker.complete, list(prompt), **fields)


async def index_is_true(gateway: LateGateway, prompts: Sequence[list[int]]) -> list[int]:
    """Assert that the index knows exactly the cached tokens of each prompt; return them, last prompt first.

    A request for an evicted prompt evicts others, so each prompt is compared on its own, the latest first:
    the last ones are in the result in whole or in part, the first ones perhaps not at all.
    """
    found: list[int] = []
    for prompt in reversed(prompts):
        await gateway.caught_up()
        found.append(gateway.known(prompt))
        assert await gateway.cached(prompt) == found[-1]
    return found
