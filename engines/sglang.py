"""SGLang 0.5.6 to 0.5.23: KV events, replay, `/server_info`, metrics, model list.

Read in the released packages (PyPI): srt/disaggregation/kv_events.py, srt/mem_cache/{radix_cache,
events,utils}.py, srt/entrypoints/http_server.py, srt/runtime_context.py,
srt/observability/metrics_collector.py.

    events       a batch is `[ts, events, attn_dp_rank]`; an event is an array up to 0.5.18 (with `medium`
                 from 0.5.9, the salt in a map behind it in 0.5.18), a map with its tag under "type" from
                 0.5.20. A stored page is an event of its own, joined to runs by newer versions only: with
                 the usual page of one token that is an event per token, which are joined here.
    hashes       signed 64-bit integers, chained from 0.5.6 on. Before, a page was named by its own tokens
                 regardless of the prefix: such events place nothing, and are not used.
    extra keys   the salt from 0.5.18 on, the adapter from 0.5.23; before, neither shows, and a block of a
                 salted prompt is taken for one without salt
    page size    tokens per block, 1 by default; with EAGLE a page is one of pairs of tokens, of which the
                 first are the prompt's
    replay       answers carry the topic from 0.5.23 on
    DP ranks     each publishes at port + rank; a request may name one (X-Data-Parallel-Rank) from 0.5.10
                 on, so an older engine is one worker without events
    n > 1        a first pass computes the prompt, and the answers report it as cached, on a cold cache too
    names        an unknown name means the base model, also an adapter's, although adapters are listed. An
                 adapter is chosen by `base:adapter` or the field `lora_path`, and on some routes only
"""

import re
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from msgspec import Struct, json

from engines.prometheus import integer, label, series
from engines.slices import PORTION_TOKENS
from engines.wire import (
    BatchReader,
    ClearedArray,
    ClearedMap,
    Count,
    cleared,
    medium_of,
    parse,
    published,
    replay_request,
    replayed,
)
from gateway.core.blocks import ExtraKey, ExtraKeys, Tokens
from gateway.core.engine import (
    AdapterCalls,
    EngineFlags,
    EngineInfo,
    EngineMarks,
    EngineMetrics,
    EnginePaths,
    EventSource,
    ModelInfo,
    StreamUsage,
    TokenizeCalls,
)
from gateway.core.figure_bounds import port
from gateway.core.kv_events import (
    BlocksRemoved,
    BlocksStored,
    DecodeError,
    EventBatch,
    KvEvent,
)
from gateway.core.rendering import Rendering
from gateway.core.worker import Transfer

BLOCK_SIZE = 16
"""Tokens per block assumed of an engine that does not report its page size: the grain of kvgate's own
bookkeeping."""
CHAINED, ROUTED = (0, 5, 6), (0, 5, 10)
"""First versions with hashes that name prefixes, and with DP ranks that can be chosen."""
SALTED = (0, 5, 11)
"""First version that uses `cache_salt`; before, the API takes the field and the scheduler drops it."""

RENDERED = (0, 5, 10), (0, 5, 23)
"""Oldest and newest version with rules of rendering (`gateway/tokenization/sglang.py`)."""

SALTED_PATHS = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses"})
"""Routes that pass the salt on; /v1/messages, embeddings, score, rerank and classify drop it (0.5.23)."""

TokenId: TypeAlias = int | list[int]


class Metadata(Struct):
    cache_salt: str | None = None


class Stored(Struct, gc=False):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[TokenId]
    block_size: Count
    lora_id: int | None = None
    medium: str | None = None
    metadata: Metadata | None = None
    cache_salt: str | None = None
    lora_name: str | None = None


class Removed(Struct, gc=False):
    block_hashes: list[int]
    medium: str | None = None


class StoredMap(Stored, tag="BlockStored"): ...


class RemovedMap(Removed, tag="BlockRemoved"): ...


class StoredArray(Stored, tag="BlockStored", array_like=True): ...


class RemovedArray(Removed, tag="BlockRemoved", array_like=True): ...


class ModelCard(Struct):
    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None


class ModelList(Struct):
    data: list[ModelCard]


class KvEventsInfo(Struct):
    """Field `kv_events` of /server_info, from 0.5.13 on: the events' blocks may be larger than a page."""

    block_size: int | None = None
    dp_size: int | None = None


class ServerInfo(Struct):
    version: str | None = None
    page_size: int | None = None
    dp_size: int = 1
    max_total_num_tokens: int | None = None
    kv_events_config: str | None = None
    kv_events: KvEventsInfo | None = None
    enable_cache_report: bool | None = None
    disaggregation_mode: str | None = None
    disaggregation_bootstrap_port: int | None = None
    disaggregation_transfer_backend: str | None = None
    tp_size: int | None = None
    kv_cache_dtype: str | None = None
    reasoning_parser: str | None = None
    max_running_requests: int | None = None
    internal_states: Any = None

    @property
    def max_running(self) -> int | None:
        """Limit of each rank: the one in effect, which memory may make lower than the configured one; that
        one may count all ranks together."""
        states = self.internal_states if isinstance(self.internal_states, list) else []
        found = [state.get(EFFECTIVE_LIMIT) for state in states if isinstance(state, dict)]
        limits = [limit for limit in found if isinstance(limit, int)]
        return min(limits) if limits else self.max_running_requests if self.num_ranks == 1 else None

    @property
    def rendering(self) -> Rendering:
        numbers = _numbers(self.version)
        version = min(max(numbers, RENDERED[0]), RENDERED[1]) if numbers else RENDERED[1]
        return Rendering("sglang", version, self.reasoning_parser)

    @property
    def block_size(self) -> int:
        return (self.kv_events and self.kv_events.block_size) or self.page_size or BLOCK_SIZE

    @property
    def num_ranks(self) -> int:
        return max(1, (self.kv_events and self.kv_events.dp_size) or self.dp_size)

    def is_from(self, version: tuple[int, ...]) -> bool:
        """True for this version or a newer one; also for a build from source, which has no readable
        number."""
        numbers = _numbers(self.version)
        return not numbers or numbers >= version


class EventsConfig(Struct):
    publisher: str = "null"
    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    topic: str = ""


ADAPTER_PATHS = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/embeddings"}  # by `base:adapter`
    | {"/generate"}  # by `lora_path` alone
    | {"/v1/messages/count_tokens", "/tokenize", "/detokenize", "/v1/tokenize", "/v1/detokenize"}
)
"""Routes where an adapter is chosen, or nothing is computed. All others answer from the base model, also
/v1/responses and /v1/score (ran, 0.5.23)."""
NOT_POLLED = "sglang publishes its events; no polling endpoint"
EFFECTIVE_LIMIT = "effective_max_running_requests_per_dp"
"""Field of `internal_states` in /server_info."""
ROLES = ("prefill", "decode")
MAX_RANKS = 1024
"""Data-parallel ranks of an endpoint at most; the largest deployments have some hundred."""
BOOTSTRAP_PORT = 8998
"""Default bootstrap port of the engine."""

_models = json.Decoder(ModelList).decode
_info = json.Decoder(ServerInfo).decode
_config = json.Decoder(EventsConfig).decode


class Sglang:
    name = "sglang"
    marks = EngineMarks(owned_by="sglang", metrics="sglang:")
    usage = StreamUsage(writes_null=True, copies_hit=True)
    paths = EnginePaths("/health", "/metrics", "/v1/models", info="/server_info")
    flags = EngineFlags(
        # Rank r of a data-parallel engine publishes on port + r, so the two ports lie far apart.
        events="--kv-events-config '"
        '{"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:6557"}'
        "'",
        cached_tokens="--enable-cache-report",
    )
    reports_from: tuple[int, ...] | None = None
    salts_from: tuple[int, ...] | None = SALTED
    salted_paths: frozenset[str] | None = SALTED_PATHS
    takes_lists = True
    loads_by_name = False
    takes_no_limit = False
    lowest_priority: int | None = None
    tokenize: TokenizeCalls | None = TokenizeCalls()
    adapters: AdapterCalls | None = AdapterCalls(
        "/load_lora_adapter", "/unload_lora_adapter", "--enable-lora"
    )

    def decode(self, frames: Sequence[bytes]) -> EventBatch:
        return _reader.read(*published(self.name, frames))

    def decode_replay(self, frames: Sequence[bytes]) -> EventBatch | None:
        message = replayed(self.name, frames)
        return None if message is None else _reader.read(*message)

    def decode_in_steps(self, frames: Sequence[bytes], *, is_replay: bool) -> Iterator[EventBatch | None]:
        message = replayed(self.name, frames) if is_replay else published(self.name, frames)
        return iter(()) if message is None else _reader.read_in_steps(*message)

    def replay_request(self, start_seq: int) -> list[bytes]:
        return replay_request(start_seq)

    def parse_metrics(self, text: str) -> dict[int, EngineMetrics]:
        found: dict[int, dict[str, float]] = {}
        for name, field in GAUGES:
            for labels, value in series(text, name):
                if not label(labels, "priority"):  # beside the sum, a figure for each priority
                    found.setdefault(integer(label(labels, "dp_rank")) or 0, {})[field] = value
        if len(found) == 1:  # counted in front of the ranks
            (only,) = found.values()
            for name, field in COUNTERS:
                if values := [value for _, value in series(text, name)]:
                    only[field] = sum(values)
        return {rank: _metrics(values) for rank, values in sorted(found.items())}

    def parse_models(self, body: bytes) -> tuple[ModelInfo, ...]:
        cards = parse("sglang /v1/models", _models, body).data
        return tuple(map(_model, cards))

    def parse_event_sources(self, body: bytes) -> tuple[EventSource, ...]:
        return self.parse_info(body).sources or ()

    def parse_version(self, body: bytes) -> str:
        return self.parse_info(body).version or ""

    def parse_info(self, body: bytes | None) -> EngineInfo:
        if body is None:  # up to 0.5.5
            rank = EngineMetrics(block_size=BLOCK_SIZE)
            return EngineInfo(ranks={0: rank}, sources=(), rendering=Rendering("sglang", RENDERED[0]))
        info = parse("sglang /server_info", _info, body)
        if info.num_ranks > MAX_RANKS:
            raise DecodeError(
                f"sglang /server_info: {info.num_ranks} data-parallel ranks, at most {MAX_RANKS}"
            )
        size, num_tokens = info.block_size, info.max_total_num_tokens
        rank = EngineMetrics(
            block_size=size,
            num_gpu_blocks=num_tokens // size if num_tokens and size > 0 else None,
            kv_cache_size_tokens=num_tokens,
        )
        num_ranks = info.num_ranks if info.is_from(ROUTED) else 1
        role = info.disaggregation_mode
        return EngineInfo(
            version=info.version,
            ranks=dict.fromkeys(range(num_ranks), rank),
            sources=_sources(info, num_ranks),
            role=role if role in ROLES else None,
            transfer=_transfer(info) if role in ROLES else None,
            rendering=info.rendering,
            reports_cached_tokens=info.enable_cache_report,
            max_running=info.max_running,
        )

    def decode_poll(self, body: bytes, block_size: int, now: float) -> list[EventBatch]:
        raise DecodeError(NOT_POLLED)

    def decode_poll_in_steps(self, body: bytes, block_size: int, now: float) -> Iterator[EventBatch | None]:
        raise DecodeError(NOT_POLLED)


def _numbers(version: str | None) -> tuple[int, ...]:
    """The three numbers of a version; () where there are none, as in a build from source."""
    numbers = tuple(map(int, re.findall(r"\d{1,9}", version or "")[:3]))
    return numbers if len(numbers) == 3 and any(numbers) else ()


def _model(card: ModelCard) -> ModelInfo:
    if not card.parent:
        return ModelInfo(card.id, card.root, None, card.max_model_len)
    called = f"{card.parent}:{card.id}"
    return ModelInfo(card.id, card.root, card.parent, card.max_model_len, called, ADAPTER_PATHS)


def _transfer(info: ServerInfo) -> Transfer:
    """KV transfer endpoint of a prefill worker; its host is the one of the worker's URL."""
    address = f"*:{port(info.disaggregation_bootstrap_port) or BOOTSTRAP_PORT}"
    return Transfer("bootstrap", address, None, info.kv_cache_dtype, info.tp_size, is_bound=True)


def _sources(info: ServerInfo, num_ranks: int) -> tuple[EventSource, ...]:
    if not info.kv_events_config or not info.is_from(CHAINED) or num_ranks != info.num_ranks:
        return ()
    config = parse("sglang /server_info: kv_events_config", _config, info.kv_events_config.encode())
    if config.publisher != "zmq":
        return ()
    return tuple(
        EventSource(
            rank,
            _at_rank(config.endpoint, rank),
            _at_rank(config.replay_endpoint, rank) if config.replay_endpoint else None,
            config.topic,
        )
        for rank in range(num_ranks)
    )


def _at_rank(endpoint: str, rank: int) -> str:
    base, _, port = endpoint.rpartition(":")
    number = integer(port)
    return endpoint if number is None else f"{base}:{number + rank}"


# events ----------------------------------------------------------------------------------------


def _convert(run: list[Any]) -> list[KvEvent]:
    """Convert events, joining stores that continue each other: events per token become a run per prompt."""
    events: list[KvEvent] = []
    last: Stored | None = None
    for event in run:
        if last is not None and isinstance(event, Stored) and _follows(last, event):
            last.block_hashes += event.block_hashes
            last.token_ids += event.token_ids
            continue
        if last is not None:
            events.append(_stored(last))
        last = event if isinstance(event, Stored) else None
        if isinstance(event, Removed):
            names = [_unsigned(name) for name in event.block_hashes]
            events.append(BlocksRemoved(names, medium_of(event.medium)))
        elif last is None:
            events.append(cleared(event.medium))
    if last is not None:
        events.append(_stored(last))
    return events


def _follows(last: Stored, event: Stored) -> bool:
    return (
        event.block_size == last.block_size
        and event.medium == last.medium
        and event.lora_name == last.lora_name
        and _salt(event) == _salt(last)
        and bool(last.block_hashes)
        and event.parent_block_hash == last.block_hashes[-1]
        and len(last.token_ids) < PORTION_TOKENS
    )


def _stored(event: Stored) -> BlocksStored:
    parent = event.parent_block_hash
    return BlocksStored(
        [_unsigned(name) for name in event.block_hashes],
        None if parent is None else _unsigned(parent),
        _tokens(event.token_ids),
        event.block_size,
        _extra_keys(event),
        medium_of(event.medium),
    )


def _unsigned(name: int) -> int:
    return name & 0xFFFF_FFFF_FFFF_FFFF


def _tokens(ids: list[TokenId]) -> Tokens:
    """Token ids; for a pair its first: the page's last pair reaches into the next page."""
    if ids and isinstance(ids[0], list):
        return array("I", [pair[0] for pair in ids if isinstance(pair, list)])
    return array("I", ids)  # type: ignore[arg-type]


def _salt(event: Stored) -> str | None:
    return event.metadata.cache_salt if event.metadata else event.cache_salt


def _extra_keys(event: Stored) -> Sequence[ExtraKeys] | None:
    """Extra keys as a prompt has them: the adapter in each block, the salt in the first of all."""
    salt = _salt(event) if event.parent_block_hash is None else None
    if not event.lora_name and not salt:
        return None
    each: list[ExtraKey] = [event.lora_name] if event.lora_name else []
    first = [*each, salt] if salt else each
    return [first, *([each or None] * (len(event.block_hashes) - 1))]


TAGS = {"BlockStored", "BlockRemoved", "AllBlocksCleared"}
_reader = BatchReader(
    "sglang",
    StoredMap | RemovedMap | ClearedMap,
    StoredArray | RemovedArray | ClearedArray,
    TAGS,
    _convert,
)


# metrics ---------------------------------------------------------------------------------------

GAUGES = (
    ("sglang:num_running_reqs{", "num_requests_running"),
    ("sglang:num_queue_reqs{", "num_requests_waiting"),
    ("sglang:token_usage{", "kv_cache_usage"),
)
COUNTERS = (  # per model, and by where they were cached
    ("sglang:prompt_tokens_total{", "prefix_cache_queries_total"),
    ("sglang:cached_tokens_total{", "prefix_cache_hits_total"),
)


def _metrics(values: dict[str, float]) -> EngineMetrics:
    def integer(name: str) -> int | None:
        return int(values[name]) if name in values else None

    return EngineMetrics(
        num_requests_running=integer("num_requests_running"),
        num_requests_waiting=integer("num_requests_waiting"),
        kv_cache_usage=values.get("kv_cache_usage"),
        prefix_cache_queries_total=integer("prefix_cache_queries_total"),
        prefix_cache_hits_total=integer("prefix_cache_hits_total"),
    )
