"""Leg of a request, where prefill and decode are on different workers."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Source:
    """Location of KV: the worker's channel, the key there, and the expected engine."""

    host: str
    port: int
    key: str
    engine_id: str | None = None
    may_wait: bool = False
    """True if it may still be being computed there."""
    bootstrap: str | None = None
    """Bootstrap address that reports the port, if the protocol has one."""


@dataclass(slots=True, eq=False)
class KvLoad:
    """KV of the first `num_tokens` of a prompt, from elsewhere. Without a source it never comes."""

    num_tokens: int
    source: Source | None
    path: Path | None = None
    """Path in a store that all workers share."""
    on_mismatch: Callable[[], None] = lambda: None
    """Called when it is KV of another prompt: nothing fails, and the response is wrong."""


@dataclass(frozen=True, slots=True)
class Leg:
    """Leg of a request. `pins`: another worker will fetch its blocks, under `key` if the client names it.
    `fetches`: from elsewhere."""

    pins: bool = False
    key: str | None = None
    fetches: bool = False
    source: Source | None = None
    reported_cached_tokens: int | None = None
    """Cached tokens that decode reports, instead of those it found."""
    answers_when_fetched: bool = False
    """True if prefill responds when decode has the data."""
    only_first_token: bool = False
    """True if one token is generated, regardless of the request's length."""
    reports_own_hit: bool = False
    """True if fetched tokens do not count as cached."""
    room: int | None = None
    """Bootstrap room, which decides the DP rank."""
    store: Path | None = None
    """Directory where its prompt is looked for, and left."""
