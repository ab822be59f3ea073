"""What one request is, where prefill and decode are on different workers."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Source:
    """Where KV is: the worker's channel, what it is called there, and who is expected to answer."""

    host: str
    port: int
    key: str
    engine_id: str | None = None
    may_wait: bool = False
    """Whether it may still be computed there."""
    bootstrap: str | None = None
    """Asked first for the port, where that is how the protocol goes."""


@dataclass(slots=True, eq=False)
class Load:
    """KV of the first `num_tokens` of a prompt, from elsewhere. Without a source it never comes."""

    num_tokens: int
    source: Source | None
    path: Path | None = None
    """Where it lies, in a store that all see."""
    on_mismatch: Callable[[], None] = lambda: None
    """Called when it is KV of another prompt: nothing fails, and the answer is wrong."""


@dataclass(frozen=True, slots=True)
class Leg:
    """`pins`: its blocks are to be fetched, under `key` if the client names it. `fetches`: from elsewhere."""

    pins: bool = False
    key: str | None = None
    fetches: bool = False
    source: Source | None = None
    reported_cached_tokens: int | None = None
    """What decode is to report as cached, instead of what it found."""
    answers_when_fetched: bool = False
    """Prefill's answer comes when decode has the data."""
    only_first_token: bool = False
    """Whatever the request says of its length."""
    reports_own_hit: bool = False
    """What was fetched does not count as cached."""
    room: int | None = None
    """Decides the DP rank."""
    store: Path | None = None
    """The directory where its prompt is looked for, and left."""
