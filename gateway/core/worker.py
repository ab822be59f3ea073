"""Workers: one routable engine rank each, and what is known of them at decision time."""

from dataclasses import dataclass
from typing import NewType

WorkerId = NewType("WorkerId", str)
"""Host and port of the endpoint, with "#rank" behind it where an endpoint has several DP ranks."""


@dataclass(frozen=True, slots=True)
class Served:
    """One name under which a worker answers.

    `root` is the model whose weights answer; all names with one root share an index. `adapter` is
    the LoRA's name where this name is one.
    """

    name: str
    root: str
    adapter: str | None = None
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True)
class Worker:
    """What a worker said of itself when it joined.

    `url` is the endpoint's base URL without a trailing slash. `block_size` is None where the engine
    does not tell: such a worker is routed by load. `num_blocks` is its cache size in blocks.
    """

    id: WorkerId
    url: str
    served: tuple[Served, ...]
    dp_rank: int = 0
    dp_size: int = 1
    block_size: int | None = None
    num_blocks: int | None = None
    engine: str = "vllm"
    version: str | None = None

    def find(self, model: str) -> Served | None:
        for served in self.served:
            if served.name == model:
                return served
        return None


def worker_id(netloc: str, dp_rank: int, dp_size: int) -> WorkerId:
    return WorkerId(f"{netloc}#{dp_rank}" if dp_size > 1 else netloc)


@dataclass(frozen=True, slots=True)
class Reported:
    """Load as the engine last said; late by up to a scrape interval and an engine step."""

    num_running: int = 0
    num_waiting: int = 0
    kv_usage: float = 0.0
