"""The interface of engine adapters, which translate one engine's wire formats: bytes in, values out, no I/O.

The shells own sockets and requests; they ask an adapter where to look (`paths`), what to send
(`replay_request`) and what an answer means. Every `decode_*` and `parse_*` of JSON or msgpack raises
`DecodeError` for what it cannot read, and nothing else.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gateway.core import figure_bounds
from gateway.core.hit_rule import PLAIN, HitRule
from gateway.core.kv_events import EventBatch
from gateway.core.rendering import VLLM, Rendering
from gateway.core.worker import Transfer


@dataclass(frozen=True, slots=True)
class EnginePaths:
    """Where a worker answers what the probe asks; None where the engine has no such path.

    `info` is one answer about everything (see `EngineInfo`). `poll` hands out each
    KV event once: nothing but a feed may call it.
    """

    health: str
    metrics: str
    models: str
    version: str | None = None
    event_sources: str | None = None
    info: str | None = None
    poll: str | None = None


@dataclass(frozen=True, slots=True)
class EngineMarks:
    """Marks that identify an engine: the `owned_by` of its models, and the prefix of its metrics' names.

    Empty where any engine will do. `has_no_owner`: the models in its list have no `owned_by` at all.
    """

    owned_by: str = ""
    metrics: str = ""
    has_no_owner: bool = False


@dataclass(frozen=True, slots=True)
class EngineFlags:
    """Literal command-line text that gives the gateway more to know, for `kvgate check` to print."""

    events: str
    cached_tokens: str


@dataclass(frozen=True, slots=True)
class AdapterCalls:
    """Where an engine loads and unloads adapters (LoRA) while it runs, as
    `discovery/lora_wire.py` calls them; `needs` are the flags that enable them."""

    load: str
    unload: str
    needs: str


@dataclass(frozen=True, slots=True)
class TokenizeCalls:
    """Where a worker is asked for its own tokens of a prompt, and by which `field` of the body for a text.
    `template` renders a chat to such a text; None where `path` takes chats itself."""

    path: str = "/tokenize"
    field: str = "prompt"
    template: str | None = None


@dataclass(frozen=True, slots=True)
class StreamUsage:
    """How an engine reports usage, in a stream above all.

    `can_be_asked`: `stream_options.include_usage` is known to be understood. `writes_null`: its other chunks
    have `"usage":null` whether it is asked or not. `copies_hit`: of several answers to a prompt (`n`), each
    finds the prompt in the cache, where a first pass puts it, and the report is of that.
    """

    can_be_asked: bool = True
    writes_null: bool = False
    copies_hit: bool = False


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """The figures of one rank, as far as this version reports them.

    `kv_cache_usage` is 0..1. `start_time_s` is the Unix time at which the process that answers
    started. Counters count tokens since then; `transfer_*` is what came from other workers, where it is
    counted, `step_tokens_total` what steps made of prompts and answers, where each step's are counted as it
    ends. A figure beyond its bounds (`figure_bounds.py`) becomes None, and its name is in `refused`.
    """

    num_requests_running: int | None = None
    num_requests_waiting: int | None = None
    kv_cache_usage: float | None = None
    block_size: int | None = None
    num_gpu_blocks: int | None = None
    kv_cache_size_tokens: int | None = None
    prefix_cache_queries_total: int | None = None
    prefix_cache_hits_total: int | None = None
    start_time_s: float | None = None
    transfer_bytes_total: float | None = None
    transfer_seconds_total: float | None = None
    step_tokens_total: float | None = None
    refused: tuple[str, ...] = field(default=(), init=False, compare=False)

    def __post_init__(self) -> None:
        refused = []
        for name in figure_bounds.FIGURES:
            value = getattr(self, name)
            if value is not None and not figure_bounds.is_within(name, value):
                object.__setattr__(self, name, None)
                refused.append(name)
        object.__setattr__(self, "refused", tuple(refused))


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model name that a worker serves; an adapter (LoRA) has its base model as `parent`.

    `called` and `paths` are those of `Served` (`core/worker.py`): the name that chooses it, and where.
    """

    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None
    called: str | None = None
    paths: frozenset[str] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_model_len", figure_bounds.model_len(self.max_model_len))


@dataclass(frozen=True, slots=True)
class EventSource:
    """Where one rank publishes, as the worker sees it: the host may be a wildcard or its own view.

    A path in place of an address is one at the worker's own, to be polled. Without `is_reported` the place is
    configured, or a default.
    """

    dp_rank: int
    endpoint: str
    replay_endpoint: str | None = None
    topic: str = ""
    is_reported: bool = True

    @property
    def is_polled(self) -> bool:
        return self.endpoint.startswith("/")


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Everything that an engine reports in its one info answer; empty where it did not answer.

    Where a rank has metrics too, the metrics are newer and win. `sources` is None where the engine
    does not report where it publishes, empty where it publishes nothing usable. `role` is
    "prefill" or "decode" where prompts and answers are computed on different workers, `transfer` how its
    cache goes to others, `rendering` how it makes prompts of requests, `hit_rule` how much of a cached prefix
    it reuses. `reports_cached_tokens` is None where the engine does not say whether its answers do.
    `max_running`: requests that each rank runs at once.
    """

    version: str | None = None
    ranks: Mapping[int, EngineMetrics] = field(default_factory=dict)
    sources: tuple[EventSource, ...] | None = None
    role: str | None = None
    transfer: Transfer | None = None
    rendering: Rendering = VLLM
    hit_rule: HitRule = PLAIN
    reports_cached_tokens: bool | None = None
    max_running: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "version", figure_bounds.version(self.version))
        object.__setattr__(self, "max_running", figure_bounds.max_running(self.max_running))


class Engine(Protocol):
    """An engine adapter. Stateless: one object serves all workers."""

    name: str
    marks: EngineMarks
    paths: EnginePaths
    flags: EngineFlags
    usage: StreamUsage
    reports_from: tuple[int, ...] | None
    """The version from which it announces a prefix hit to a request that asks (`http/cache_report.py`)."""
    adapters: AdapterCalls | None
    """None where it takes none while it runs."""
    salts_from: tuple[int, ...] | None
    """The version from which `cache_salt` keeps caches apart, or is refused; () for all, None for none."""
    salted_paths: frozenset[str] | None
    """The routes where it does, of those that read a cache; None for all."""
    takes_lists: bool
    """False where a list as the prompt of a completion, of texts or of token ids, is not understood."""
    loads_by_name: bool
    """True where a request's `model` is loaded in place of the one before; it is sent no made-up name."""
    takes_no_limit: bool
    """True where a `max_tokens` of -1 is no mistake: it asks for an answer without a limit."""
    lowest_priority: int | None
    """The `priority` of a request that all others go before; None where a request without one is that."""
    tokenize: TokenizeCalls | None
    """None where it cannot be asked for tokens."""

    def decode(self, frames: Sequence[bytes]) -> EventBatch:
        """Decode a published message: `[topic, seq u64 big-endian, payload]`."""
        ...

    def decode_replay(self, frames: Sequence[bytes]) -> EventBatch | None:
        """Decode an answer to `replay_request` as a DEALER receives it; None is the end of the replay."""
        ...

    def decode_in_steps(self, frames: Sequence[bytes], *, is_replay: bool) -> Iterator[EventBatch | None]:
        """Decode a large message, published or replayed, in steps: None where others may be served, then the
        batch. The end of a replay has no steps."""
        ...

    def replay_request(self, start_seq: int) -> list[bytes]:
        """Frames for a DEALER that ask for all kept batches from `start_seq` on."""
        ...

    def parse_metrics(self, text: str) -> dict[int, EngineMetrics]:
        """A Prometheus page by DP rank; what is absent or unreadable is None, never an error."""
        ...

    def parse_models(self, body: bytes) -> tuple[ModelInfo, ...]: ...

    def parse_event_sources(self, body: bytes) -> tuple[EventSource, ...]:
        """Sorted by rank; empty where the worker publishes no events."""
        ...

    def parse_version(self, body: bytes) -> str: ...

    def parse_info(self, body: bytes | None) -> EngineInfo:
        """Read the answer of `paths.info`; `body` is None where the engine has no such path or did not
        answer."""
        ...

    def decode_poll(self, body: bytes, block_size: int, now: float) -> list[EventBatch]:
        """Decode an answer of `paths.poll`: each event gets a number of its own, at the time `now`."""
        ...

    def decode_poll_in_steps(self, body: bytes, block_size: int, now: float) -> Iterator[EventBatch | None]:
        """Decode an answer of `paths.poll` in steps, with None where others may be served."""
        ...
