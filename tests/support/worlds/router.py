"""Router over workers with a cache that the test writes."""

import random
from collections.abc import Sequence

from gateway import request as make_request
from gateway.core.blocks import root_hash, tokens_of
from gateway.core.decision import Decision, Prompt
from gateway.core.fleet import Fleet
from gateway.core.kv_events import BlocksStored
from gateway.core.request import InferenceRequest
from gateway.core.worker import ServedModel, Worker, WorkerId
from gateway.index.assumed import AssumedIndex
from gateway.index.base import Index
from gateway.index.memory import MemoryIndex
from gateway.policies.prefix_overlap import PrefixOverlap
from gateway.routing.decision_log import DecisionLog
from gateway.routing.router import Router


class RouterWorld:
    """Router over workers with a cache that the test writes; tokens are given as ids."""

    def __init__(self, *workers: Worker, index: Index | None = None) -> None:
        self.now = 0.0
        self.fleet, self.assumed = Fleet(), AssumedIndex()
        self.index: Index = MemoryIndex() if index is None else index
        self.router = Router(
            fleet=self.fleet,
            index=self.index,
            assumed=self.assumed,
            policy=PrefixOverlap(),
            tokenize=lambda r: Prompt(tuple(map(tokens_of, _lists(r))), "ids"),
            clock=lambda: self.now,
            rng=random.Random(7),
        )
        for worker in workers:
            self.fleet.add(worker)
            self.index.add_worker(worker.id, root_hash(worker.served[0].root), worker.block_size)
            self.assumed.add_worker(worker.id, keep_s=1.0, max_blocks=1000)

    def store(self, name: str, ids: Sequence[int], size: int = 16) -> None:
        names = [hash((tuple(ids[: i + size]), size)) & (2**64 - 1) for i in range(0, len(ids), size)]
        self.index.apply(WorkerId(name), BlocksStored(names, None, tokens_of(ids), size))

    def decide(self, ids: Sequence[int], model: str = "m", **fields: object) -> Decision:
        return self.router.decide(
            make_request("/v1/completions", {"model": model, "prompt": list(ids), **fields})
        )

    def records(self, decision: Decision) -> list[object]:
        records = DecisionLog()
        records.add(decision)
        explained = records.explain(decision.id)
        assert explained is not None
        return [candidate["offloaded_tokens"] for candidate in explained["candidates"]]


def _lists(request: InferenceRequest) -> list[list[int]]:
    prompt = request.fields["prompt"]
    return prompt if isinstance(prompt[0], list) else [prompt]


def worker(name: str, *served: ServedModel, size: int | None = 16) -> Worker:
    return Worker(WorkerId(name), f"http://{name}", served or (ServedModel("m", "root"),), block_size=size)
