"""Workers: one routable engine rank each, and what is known of them at decision time."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NewType

from gateway.core.hit_rule import PLAIN, HitRule
from gateway.core.rendering import VLLM, Rendering

WorkerId = NewType("WorkerId", str)
"""Host and port of the endpoint, with "#rank" behind it where an endpoint has several DP ranks."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model name that a worker serves.

    `root` is the model with the weights that answer; all names with one root share an index. `adapter` is
    the LoRA's name where this name is one, and `parent` then a name of its base at this worker. `called` is
    the `model` of requests that choose it there, where that differs from `name`; `paths` are the routes where
    it is chosen at all (None: all), since the worker answers from the base model elsewhere.
    """

    name: str
    root: str
    adapter: str | None = None
    max_model_len: int | None = None
    parent: str | None = None
    called: str | None = None
    paths: frozenset[str] | None = None


class Role(Enum):
    """The role of a worker: prefill, decode, or both. A decode worker computes a prompt itself where that is
    cheaper."""

    PREFILL = "prefill"
    DECODE = "decode"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class Transfer:
    """How a worker's KV cache goes to another one, as far as it is known: None where it is not.

    connector         by which both sides speak (`core/kv_connector.py`)
    address           "host:port" where its side is asked for, in connectors that need it
    engine_id         its own name there
    cache_dtype, tensor_parallel   of the cache: what both sides must agree on
    is_bound          it cannot answer without a worker of the other role
    """

    connector: str
    address: str | None = None
    engine_id: str | None = None
    cache_dtype: str | None = None
    tensor_parallel: int | None = None
    is_bound: bool = False


@dataclass(frozen=True, slots=True)
class Worker:
    """The properties that a worker reported when it joined.

    `url` is the endpoint's base URL without a trailing slash. `block_size` is None where the engine
    does not report it: such a worker is routed by load. `num_blocks` is its cache size in blocks. `transfer`
    is None where its cache goes nowhere. `topology` is its location, the widest first, as in "rack2/host7",
    `rendering` how it makes prompts of requests, `hit_rule` how much of a cached prefix it
    reuses. `max_running` is the number of requests that it runs at once, where the engine reports it,
    `reports_cached_tokens` whether its answers have their cached tokens; None where it does not say.
    """

    id: WorkerId
    url: str
    served: tuple[ServedModel, ...]
    dp_rank: int = 0
    dp_size: int = 1
    block_size: int | None = None
    num_blocks: int | None = None
    engine: str = "vllm"
    version: str | None = None
    role: Role = Role.BOTH
    transfer: Transfer | None = None
    topology: str = ""
    rendering: Rendering = VLLM
    hit_rule: HitRule = PLAIN
    max_running: int | None = None
    reports_cached_tokens: bool | None = None

    @property
    def is_bound(self) -> bool:
        return self.transfer is not None and self.transfer.is_bound

    def find(self, model: str) -> ServedModel | None:
        for served in self.served:
            if served.name == model:
                return served
        return None


def worker_id(netloc: str, dp_rank: int, dp_size: int) -> WorkerId:
    return WorkerId(f"{netloc}#{dp_rank}" if dp_size > 1 else netloc)


FULL_KV: Final = 0.97
"""KV usage from which a worker has no blocks for another prompt: engines keep a rest free, and what comes
then evicts, or waits."""


@dataclass(frozen=True, slots=True)
class ReportedLoad:
    """Load as the engine last said; late by up to a scrape interval and an engine step. What it fetched from
    other workers since it started, and the time that took, where it counts that.

    `unknown` names the figures of `LOAD_FIGURES` that it does not report: they are 0 for decisions, which
    have nothing else to go by, and None for people."""

    num_running: int = 0
    num_waiting: int = 0
    kv_usage: float = 0.0
    transfer_bytes: float | None = None
    transfer_s: float | None = None
    unknown: frozenset[str] = field(default=frozenset(), compare=False)

    def shown(self, name: str) -> Any:
        """The figure, None where it is unknown."""
        return None if name in self.unknown else getattr(self, name)


LOAD_FIGURES: Final = ("num_running", "num_waiting", "kv_usage")
NOT_REPORTED: Final = ReportedLoad(unknown=frozenset(LOAD_FIGURES))
"""Load of a worker before its engine reported any, or that never does."""
