"""The interface of KV connectors, which carry a prompt's KV cache from a prefill to a decode worker. Pure.

    one after the other   the prefill leg answers where its blocks lie; the decode leg carries that and
                          fetches them
    together              both legs start at once, and meet under a number of kvgate's

Each `engines/*` that can be disaggregated has one; it sees requests' bodies, no sockets.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from gateway.core.worker import Worker


@dataclass(frozen=True, slots=True)
class PrefillResult:
    """The prefill worker's answer: `params` is JSON for one decode worker, to be used once.

    Token counts are the engine's, None where it reports none; `refused_usage`: why they are not believed."""

    params: bytes
    num_prompt_tokens: int | None = None
    cached_tokens: int | None = None
    refused_usage: str | None = None


@dataclass(frozen=True, slots=True)
class Pair:
    """Two workers that fit, for one request. `number` is random, of 63 bits, and names it to both."""

    prefill: Worker
    decode: Worker
    number: int


@dataclass(frozen=True, slots=True)
class BootstrapServer:
    """The bootstrap server of a prefill worker, which reports engine ids at `path` of `port` by default.

    `engine_ids` decodes its answer: ids by DP rank, empty until the engine is ready; raises DecodeError."""

    port: int
    engine_ids: Callable[[bytes], Mapping[int, str]]
    path: str = "/query"


class KvConnector(Protocol):
    name: str
    is_together: bool

    @property
    def bootstrap(self) -> BootstrapServer | None:
        """Return how to reach the bootstrap server of prefill workers; None for a connector without one."""
        ...

    def to_prefill(self, body: bytes, pair: Pair) -> bytes:
        """A client's body as the prefill worker gets it."""
        ...

    def prefill_result(self, answer: bytes) -> PrefillResult:
        """The prefill worker's whole answer. Raises DecodeError where it cannot be handed on."""
        ...

    def to_decode(self, body: bytes, pair: Pair, result: PrefillResult | None) -> bytes:
        """The same body as the decode worker gets it; `result` is None where both are asked together."""
        ...
