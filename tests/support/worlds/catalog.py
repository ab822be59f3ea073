"""Catalog of models over a fleet, with engines that tokenize."""

import asyncio
from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec

from gateway import request
from gateway.app import bundled_tokenizer
from gateway.config.models import ModelTable
from gateway.core.fleet import Fleet
from gateway.core.rendering import VLLM, Rendering
from gateway.core.worker import ServedModel, Worker, WorkerId
from gateway.models.catalog import Catalog
from gateway.models.prompt_source import PromptSource
from gateway.observability.metrics import Metrics
from gateway.parity.prober import Prober
from gateway.runtime.tasks import Tasks
from gateway.tokenization.prompt_encoder import PromptEncoder
from tests.support.patience import until

BUNDLED = str(bundled_tokenizer())
CHAT = {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]}


@cache
def _bundled() -> PromptSource:
    return PromptSource({"*": PromptEncoder.load(bundled_tokenizer())}, Metrics())


class TokenizingEngine:
    """Engine that tokenizes as the bundled tokenizer does, with `shift` added; None: it does not."""

    def __init__(self, shift: int | None = 0) -> None:
        self.shift = shift
        self.num_asked = 0
        self._prompts = _bundled()

    def answer(self, body: Any) -> bytes | None:
        self.num_asked += 1
        if self.shift is None:
            return None
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        tokens = self._prompts.tokenize(request(path, body)).tokens
        return (
            msgspec.json.encode({"tokens": [token + self.shift for token in tokens[0]]}) if tokens else None
        )


class CatalogWorld:
    def __init__(self, tables: Mapping[str, ModelTable] | None = None, **options: Any) -> None:
        self.fleet, self.metrics, self.tasks = Fleet(options.pop("aliases", None)), Metrics(), Tasks()
        self.prompts = PromptSource({}, self.metrics)
        self.engines: dict[str, TokenizingEngine] = {}
        self.forgotten: list[str | None] = []
        self.catalog = Catalog(self.prompts, self.fleet, tables=tables, **options)
        self.catalog.open(self.tasks.start, Prober(self._post), self)

    def forget(self, url: str | None = None) -> None:
        self.forgotten.append(url)

    async def _post(self, url: str, path: str, body: Any) -> bytes | None:
        assert path == "/tokenize"
        await asyncio.sleep(0)
        return self.engines[url].answer(body)

    async def join(
        self,
        name: str,
        *served: ServedModel,
        shift: int | None = 0,
        engine: TokenizingEngine | None = None,
        rendering: Rendering = VLLM,
    ) -> Worker:
        worker = Worker(
            WorkerId(name),
            f"http://{name}",
            served or (ServedModel("m", BUNDLED),),
            block_size=16,
            rendering=rendering,
        )
        self.engines[worker.url] = engine or TokenizingEngine(shift)
        self.fleet.add(worker)
        self.catalog.joined([worker])
        await until(lambda: self.is_settled(worker), seconds=60)
        await asyncio.sleep(0)  # until it is published
        return worker

    def is_settled(self, worker: Worker) -> bool:
        entries = [entry for entry in self.catalog if entry.rendering == worker.rendering]
        return all(worker.url in entry.choices for entry in entries if entry.root in _roots(worker))

    async def leave(self, worker: Worker) -> None:
        self.catalog.left(worker.id)
        self.fleet.drop(worker.id)
        await asyncio.sleep(0)

    def source(self, model: str = "m") -> str:
        """Token source of a prompt; "none" where a worker tokenizes."""
        return self.prompts.tokenize(request("/v1/chat/completions", {"model": model, **CHAT})).source

    def access(self, root: str = BUNDLED) -> dict[str, str]:
        (entry,) = (entry for entry in self.catalog if entry.root == root)
        return {
            url.removeprefix("http://"): choice.token_source.value for url, choice in entry.choices.items()
        }

    def apart(self, model: str = "m") -> set[str]:
        return {e.member.worker.id for e in self.fleet.eligible(model) if e.is_apart}


def _roots(worker: Worker) -> set[str]:
    return {served.root for served in worker.served}
