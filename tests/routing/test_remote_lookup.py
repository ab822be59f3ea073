from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from gateway import request as make_request
from gateway.core.blocks import BlockHash, root_hash, tokens_of
from gateway.core.decision import Prompt
from gateway.core.errors import UnknownModel
from gateway.core.requests.request import InferenceRequest
from gateway.core.worker import Served, WorkerId
from gateway.routing.remote_lookup import Others
from tests.routing.test_router import World, worker
from tests.support.exchanges import World as Exchanges


class Asked:
    """Answers that worker b holds three quarters of each prompt."""

    def __init__(self) -> None:
        self.calls: list[tuple[BlockHash, int]] = []

    async def __call__(self, root: BlockHash, hashes: Sequence[BlockHash]) -> Mapping[WorkerId, int]:
        self.calls.append((root, len(hashes)))
        return {WorkerId("b"): len(hashes) * 3 // 4}


def completion(prompt: object, **fields: Any) -> InferenceRequest:
    return make_request("/v1/completions", {"model": "m", "prompt": prompt, **fields})


async def told(world: World, request: InferenceRequest, ask: Asked) -> Prompt:
    return await Others(world.router, ask).tell(request, world.router.tokenize(request))


async def test_what_others_know_is_asked_for_once_and_decides() -> None:
    world, ask = World(worker("a"), worker("b")), Asked()
    request = completion(list(range(256)))
    prompt = await told(world, request, ask)
    decision = world.router.decide(request, prompt=prompt)
    assert (decision.worker.id, decision.overlap_tokens, decision.told_tokens) == ("b", 192, 192)
    assert ask.calls == [(root_hash("root"), 16)]
    again = world.router.decide(request, prompt=await told(world, request, Asked()))
    assert again.overlap_tokens == 240  # what was sent there is assumed behind what is told


async def test_what_is_read_here_counts_for_its_workers() -> None:
    world = World(worker("a"), worker("b"))
    world.store("a", range(256))
    world.store("b", range(32))
    request = completion(list(range(256)))
    decision = world.router.decide(request, prompt=await told(world, request, Asked()))
    assert {c.id: c.overlap_tokens for c in decision.candidates} == {"a": 240, "b": 32}


async def test_each_prompt_of_a_batch_and_each_group_of_workers_is_asked_for() -> None:
    world, ask = World(worker("a"), worker("b"), worker("c", Served("m", "other"), size=32)), Asked()
    request = completion([list(range(64)), list(range(500, 628)), [1, 2]])
    prompt = await told(world, request, ask)
    assert sorted(num for _, num in ask.calls) == [2, 4, 4, 8]
    assert sorted(map(dict.__len__, map(dict, prompt.told.values()))) == [1] * 4
    assert world.router.decide(request, prompt=prompt).overlap_tokens == 48 + 96


async def test_nothing_is_asked_without_tokens_or_where_no_cache_is_read() -> None:
    world, ask = World(worker("a")), Asked()
    request = completion(list(range(256)), prompt_logprobs=1)
    assert (await told(world, request, ask)).told == {}
    assert await Others(world.router, ask).tell(completion("text"), Prompt()) == Prompt()
    assert (await told(world, completion([1, 2]), ask)).told == {}
    assert ask.calls == []


async def test_an_unknown_model_is_told_as_ever() -> None:
    with pytest.raises(UnknownModel):
        request = make_request("/v1/completions", {"model": "none", "prompt": [1] * 32})
        await Others(World(worker("a")).router, Asked()).tell(request, Prompt((tokens_of([1] * 32),)))


def test_a_request_waits_for_what_others_know(monkeypatch: pytest.MonkeyPatch) -> None:
    world, ask = Exchanges(monkeypatch, "w:1"), Asked()
    world.context.prompts._others = Others(world.router, ask)
    exchange, answered = world.ask(b'{"model":"m","prompt":[%s]}' % b",".join([b"7"] * 64))
    assert len(ask.calls) == 1 and exchange._prompt and len(exchange._prompt.told) == 1
    world.transport().feed(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
    assert answered.events == [200, b"{}", "end"]
    assert world.is_clean()
