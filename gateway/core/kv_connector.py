"""How the KV cache of a prompt goes from a prefill worker to a decode worker, in one connector's words. Pure.

    one after the other   prefill is asked, and its answer says where its blocks lie; decode is told that, and
                          fetches them
    together              both are asked at once, and meet under a number that is ours

Each `engines/*` that can be disaggregated has one; it sees requests' bodies, no sockets.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from gateway.core.worker import Worker


@dataclass(frozen=True, slots=True)
class Handed:
    """What the prefill worker said: `params` is JSON, to be given to one decode worker, once. Tokens as the
    engine counted them, None where it does not tell; `refused_usage` is why its counts are not believed."""

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
class Bootstrap:
    """Where prefill workers tell their engines' names: at `path` of `port`, unless they say where else.
    `engine_ids` reads that answer: by DP rank, empty until the engine is ready; raises DecodeError."""

    port: int
    engine_ids: Callable[[bytes], Mapping[int, str]]
    path: str = "/query"


class Handoff(Protocol):
    name: str
    is_together: bool

    @property
    def bootstrap(self) -> Bootstrap | None:
        """None where a worker needs no name."""
        ...

    def to_prefill(self, body: bytes, pair: Pair) -> bytes:
        """A client's body as the prefill worker gets it."""
        ...

    def handed(self, answer: bytes) -> Handed:
        """The prefill worker's whole answer. Raises DecodeError where it cannot be handed on."""
        ...

    def to_decode(self, body: bytes, pair: Pair, handed: Handed | None) -> bytes:
        """The same body as the decode worker gets it; `handed` is None where both are asked together."""
        ...
