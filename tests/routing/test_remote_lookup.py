"""Prompts are looked up in a remote index before their decisions."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from gateway import request as make_request
from gateway.core.blocks import BlockHash, root_hash, tokens_of
from gateway.core.decision import Prompt
from gateway.core.errors import UnknownModel
from gateway.core.request import InferenceRequest
from gateway.core.worker import ServedModel, Worker, WorkerId
from gateway.index.redis_tree.index import RadixIndex
from gateway.index.redis_tree.tree import RadixTree
from gateway.routing.remote_lookup import RemoteLookup
from tests.support.worlds.exchanges import ExchangeWorld
from tests.support.worlds.router import RouterWorld, worker


class Remote:
    """World with an index that finds three quarters of each fetched prompt at worker b."""

    def __init__(self, *workers: Worker) -> None:
        self.calls: list[tuple[BlockHash, int]] = []
        self.index = RadixIndex(lambda root: cast(RadixTree, object()))
        self.world = RouterWorld(*workers, index=self.index)
        self.router = self.world.router

    async def look_up(self, root: BlockHash, hashes: Sequence[BlockHash]) -> None:
        self.calls.append((root, len(hashes)))
        self.index.remember(hashes, self.found(hashes))

    def found(self, hashes: Sequence[BlockHash]) -> Mapping[WorkerId, int]:
        return {WorkerId("b"): len(hashes) * 3 // 4}

    async def fetched(self, request: InferenceRequest) -> Prompt:
        prompt = self.router.tokenize(request)
        await RemoteLookup(self.router, self.look_up).fetch(request, prompt)
        return prompt


def completion(prompt: object, **fields: Any) -> InferenceRequest:
    return make_request("/v1/completions", {"model": "m", "prompt": prompt, **fields})


async def test_a_prompt_is_fetched_once_and_decided_with_it() -> None:
    remote = Remote(worker("a"), worker("b"))
    request = completion(list(range(256)))
    decision = remote.router.decide(request, prompt=await remote.fetched(request))
    assert (decision.worker.id, decision.overlap_tokens, decision.confirmed_tokens) == ("b", 192, 192)
    assert remote.calls == [(root_hash("root"), 16)]
    again = remote.router.decide(request, prompt=await remote.fetched(request))
    assert again.overlap_tokens == 240  # blocks sent there are assumed behind the found ones


async def test_events_of_the_worker_count_before_fetched_blocks() -> None:
    remote = Remote(worker("a"), worker("b"))
    remote.world.store("a", range(256))
    remote.world.store("b", range(32))
    request = completion(list(range(256)))
    decision = remote.router.decide(request, prompt=await remote.fetched(request))
    assert {c.id: c.overlap_tokens for c in decision.candidates} == {"a": 240, "b": 32}


async def test_an_empty_lookup_replaces_an_earlier_one() -> None:
    remote = Remote(worker("a"), worker("b"))
    request = completion(list(range(256)))
    await remote.fetched(request)
    remote.found = lambda hashes: {}  # type: ignore[method-assign]
    assert remote.router.preview(request, await remote.fetched(request)).overlap_tokens == 0


async def test_each_prompt_of_a_batch_and_each_group_of_workers_is_fetched() -> None:
    remote = Remote(worker("a"), worker("b"), worker("c", ServedModel("m", "other"), size=32))
    request = completion([list(range(64)), list(range(500, 628)), [1, 2]])
    prompt = await remote.fetched(request)
    assert sorted(num for _, num in remote.calls) == [2, 4, 4, 8]
    assert remote.router.decide(request, prompt=prompt).overlap_tokens == 48 + 96


async def test_a_prompt_without_tokens_or_cache_is_not_fetched() -> None:
    remote = Remote(worker("a"))
    await remote.fetched(completion(list(range(256)), prompt_logprobs=1))
    await remote.fetched(completion([1, 2]))
    await RemoteLookup(remote.router, remote.look_up).fetch(completion("text"), Prompt())
    assert remote.calls == []


async def test_an_unknown_model_raises() -> None:
    remote = Remote(worker("a"))
    request = make_request("/v1/completions", {"model": "none", "prompt": [1] * 32})
    with pytest.raises(UnknownModel):
        await RemoteLookup(remote.router, remote.look_up).fetch(request, Prompt((tokens_of([1] * 32),)))


def test_a_request_waits_for_its_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    world, remote = ExchangeWorld(monkeypatch, "w:1"), Remote()
    world.context.prompts._remote_lookup = RemoteLookup(world.router, remote.look_up)
    _, answered = world.ask(b'{"model":"m","prompt":[%s]}' % b",".join([b"7"] * 64))
    assert len(remote.calls) == 1
    world.transport().feed(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
    assert answered.events == [200, b"{}", "end"]
    assert world.is_clean()
