"""Prompts as tokens: the tokenizers of all models, here and at the workers."""

from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp.typedefs import Handler
from prometheus_client.registry import Collector

from gateway.admin.app import shows
from gateway.app.component import Component
from gateway.app.parts.worker_access import WorkerAccessPart
from gateway.config import Config
from gateway.core.fleet import Fleet
from gateway.models import metrics as models
from gateway.models.from_config import catalog_of
from gateway.models.metrics import ModelsCollector
from gateway.models.prompt_source import PromptSource
from gateway.models.worker_tokenizer import WorkerTokenizer
from gateway.observability.metrics import Metrics
from gateway.parity.prober import Prober
from gateway.runtime.tasks import Tasks
from gateway.tokenization.sandbox.render_budget import hurry


class PromptsPart(Component):
    metric_sections = (("Tokenizers", models.METRICS),)

    def __init__(self, config: Config, fleet: Fleet, metrics: Metrics, workers: WorkerAccessPart) -> None:
        """Load the configured tokenizers that are on disk. Raises ConfigError."""
        self.source = PromptSource({}, metrics)
        self.catalog = catalog_of(config, self.source, fleet)
        self.worker_tokenizer = WorkerTokenizer(
            timeout_s=config.tokenizer.timeout_s, tls=workers.tls, access=workers.access
        )
        self.prober = Prober(workers.post, self.worker_tokenizer.learn)

    async def start(self, tasks: Tasks) -> None:
        hurry(True)
        self.catalog.open(tasks.start, self.prober, self.worker_tokenizer)
        tasks.start("ask workers for their day", self.catalog.watch_days())

    async def stop(self) -> None:
        hurry(False)
        await self.worker_tokenizer.close()
        self.catalog.close()

    def collectors(self) -> Sequence[Collector]:
        return [ModelsCollector(self.catalog, self.worker_tokenizer.counts)]

    def admin_handlers(self) -> Mapping[str, Handler]:
        return {"tokenizer": shows(self._describe)}

    def _describe(self) -> Mapping[str, Any]:
        return {
            **self.source.describe(),
            "models": self.catalog.describe(),
            "remote_tokenizers": self.worker_tokenizer.describe(),
        }
