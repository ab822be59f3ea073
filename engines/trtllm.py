"""TensorRT-LLM (trtllm-serve): KV events over ZeroMQ or polled, metrics, model list.

Read in NVIDIA/TensorRT-LLM: _torch/pyexecutor/kv_cache_events.py (13599e98), serve/openai_server.py
(e7f7345e), metrics/collector.py (050f80de), _utils.py's KVCacheEventSerializer; tests/data/trtllm/SOURCES.md.

published    new versions with `kv_events_config`: vLLM's frames and maps, replay too; rank r at port + r.
             Only full blocks of the widest attention window; medium "GPU". The salt does not show, of an
             adapter its number at most.
polled       POST /kv_cache_events (with `event_buffer_max_size`): what happened since somebody last
             asked, as a JSON array; each event has a number, so what another consumer took, or an
             overflow lost, shows as a gap. There is no replay: who comes late knows the rest only.
             Partial blocks are among them, the last of their run; blocks move between levels
             ("updated"), 0 is the GPU, 1 the host. Engines with several attention windows tell of each.
metrics      Prometheus at /prometheus/metrics (with `return_perf_metrics`); /metrics is a JSON array of
             steps that is handed out once, so it is asked for the block size only, when a worker joins
DP ranks     a request cannot choose its attention-DP rank over HTTP, so an endpoint is one worker
"""

from array import array
from collections.abc import Sequence
from itertools import groupby
from typing import Any, TypeAlias

from msgspec import Struct, json
from xxhash import xxh3_64_intdigest

from engines.prometheus import integer, label, series
from engines.wire import BatchReader, Count, parse, published, replay_request, replayed
from gateway.core.blocks import ExtraKeys
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
)
from gateway.core.events import (
    GPU,
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    DecodeError,
    EngineHash,
    EventBatch,
    KvEvent,
    UnknownEvent,
)

BLOCK_SIZE = 32
"""`tokens_per_block` unless said (llmapi/llm_args.py); an engine that has not run a step does not tell."""

WireHash: TypeAlias = int | str


# wire: published -------------------------------------------------------------------------------


class Stored(Struct, tag="BlockStored", gc=False):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int | str]
    block_size: Count
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    mm_keys: list[Any] | None = None


class Removed(Struct, tag="BlockRemoved", gc=False):
    block_hashes: list[int]
    medium: str | None = None


class Cleared(Struct, tag="AllBlocksCleared"): ...


class StoredArray(Stored, tag="BlockStored", array_like=True): ...


class RemovedArray(Removed, tag="BlockRemoved", array_like=True): ...


class ClearedArray(Struct, tag="AllBlocksCleared", array_like=True): ...


# wire: polled ----------------------------------------------------------------------------------


class Token(Struct):
    token_id: int
    token_extra_id: int = 0


class Block(Struct):
    block_hash: WireHash
    tokens: list[Token]
    cache_level: int = 0


class Diff(Struct):
    old_value: int
    new_value: int


class Data(Struct):
    type: str
    parent_hash: WireHash | None = None
    blocks: list[Block] = []
    block_hashes: list[WireHash] = []
    block_hash: WireHash | None = None
    cache_level: Diff | None = None
    lora_name: str | None = None
    lora_id: int | None = None


class Polled(Struct):
    event_id: Count
    data: Data
    attention_dp_rank: int | None = None


class ModelCard(Struct):
    id: str


class ModelList(Struct):
    data: list[ModelCard]


class KvStats(Struct):
    tokensPerBlock: int | None = None  # noqa: N815
    maxNumBlocks: int | None = None  # noqa: N815


class Step(Struct):
    kvCacheStats: KvStats | None = None  # noqa: N815


class VersionAnswer(Struct):
    version: str


_polled = json.Decoder(list[Polled]).decode
_models = json.Decoder(ModelList).decode
_steps = json.Decoder(list[Step | str]).decode
_version = json.Decoder(VersionAnswer).decode


class TrtLlm:
    name = "trtllm"
    marks = EngineMarks(owned_by="tensorrt_llm", metrics="trtllm_")
    usage = StreamUsage()
    paths = EnginePaths(
        "/health", "/prometheus/metrics", "/v1/models", "/version", info="/metrics", poll="/kv_cache_events"
    )
    flags = EngineFlags(
        # Rank r publishes on port + r, so the two ports lie far apart.
        events="--config FILE, with  kv_cache_config: {kv_events_config: {enable_kv_cache_events: true, "
        'endpoint: "tcp://*:5557", replay_endpoint: "tcp://*:6557"}}, and kvgate with --replay-port 6557',
        cached_tokens="",
    )
    reports_from: tuple[int, ...] | None = None
    adapters: AdapterCalls | None = None

    def decode(self, frames: Sequence[bytes]) -> EventBatch:
        return _reader.read(*published(self.name, frames))

    def decode_replay(self, frames: Sequence[bytes]) -> EventBatch | None:
        message = replayed(self.name, frames)
        return None if message is None else _reader.read(*message)

    def replay_request(self, start_seq: int) -> list[bytes]:
        return replay_request(start_seq)

    def parse_metrics(self, text: str) -> dict[int, EngineMetrics]:
        values = {field: value for name, field in GAUGES for _, value in series(text, name)}
        for labels, _ in series(text, CACHE_CONFIG):  # there from the start; the gauge, from the first step
            values.setdefault("block_size", integer(label(labels, "page_size")) or 0)
        return {0: _metrics(values)} if values else {}

    def parse_models(self, body: bytes) -> tuple[ModelInfo, ...]:
        return tuple(ModelInfo(card.id) for card in parse("trtllm /v1/models", _models, body).data)

    def parse_event_sources(self, body: bytes) -> tuple[EventSource, ...]:
        raise DecodeError("trtllm does not tell where it publishes")

    def parse_version(self, body: bytes) -> str:
        return parse("trtllm /version", _version, body).version

    def parse_info(self, body: bytes | None) -> EngineInfo:
        # Optional statistics: a page of another kind under this path must not keep a worker out.
        is_steps = body is not None and body[:1] == b"["
        steps = parse("trtllm /metrics", _steps, body) if body and is_steps else []
        found = [step.kvCacheStats for step in steps if isinstance(step, Step) and step.kvCacheStats]
        stats = found[-1] if found else KvStats()
        rank = EngineMetrics(
            block_size=stats.tokensPerBlock or BLOCK_SIZE, num_gpu_blocks=stats.maxNumBlocks or None
        )
        return EngineInfo(ranks={0: rank})

    def decode_poll(self, body: bytes, block_size: int, now: float) -> list[EventBatch]:
        events = parse("trtllm /kv_cache_events", _polled, body)
        if any(event.attention_dp_rank for event in events):
            raise DecodeError("trtllm /kv_cache_events: attention DP, whose ranks a request cannot choose")
        digest = xxh3_64_intdigest(body)
        return [
            EventBatch(event.event_id, now, None, _of_poll(event.data, block_size), digest)
            for event in events
        ]


# events ----------------------------------------------------------------------------------------


def _convert(run: list[Any]) -> list[KvEvent]:
    return [_published(event) for event in run]


def _published(event: Any) -> KvEvent:
    if isinstance(event, Stored):
        names = [_unsigned(name) for name in event.block_hashes]
        parent = event.parent_block_hash
        return BlocksStored(
            names,
            None if parent is None else _unsigned(parent),
            array("I", [_token(token) for token in event.token_ids]),
            event.block_size,
            _lora_keys(event.lora_name, event.lora_id, len(names)),
            event.medium or GPU,
        )
    if isinstance(event, Removed):
        return BlocksRemoved([_unsigned(name) for name in event.block_hashes], event.medium or GPU)
    return BlocksCleared()


def _token(token: int | str) -> int:
    """A token of an image is a text or a number above 32 bits: no prompt of ours has it."""
    return token if isinstance(token, int) and 0 <= token < NO_TOKEN else NO_TOKEN


NO_TOKEN = 0xFFFF_FFFF


def _lora_keys(name: str | None, number: int | None, num_blocks: int) -> Sequence[ExtraKeys] | None:
    """A number alone matches no prompt: unknown, but never wrong."""
    if not name and number is None:
        return None
    return [[name or f"lora:{number}"]] * num_blocks


def _unsigned(name: int) -> int:
    return name & 0xFFFF_FFFF_FFFF_FFFF


def _name(name: WireHash) -> EngineHash:
    return name.encode() if isinstance(name, str) else _unsigned(name)


def _medium(level: int) -> str:
    return GPU if level == 0 else "CPU"


def _of_poll(data: Data, block_size: int) -> list[KvEvent]:
    match data.type:
        case "created":
            return [BlocksCleared()]
        case "stored":
            return _runs(data, block_size)
        case "removed":  # from whichever level it was in; the index knows which
            return [
                BlocksRemoved([_name(name) for name in data.block_hashes], medium) for medium in (GPU, "CPU")
            ]
        case "updated":
            return _moved(data)
        case _:
            return [UnknownEvent(data.type)]


def _runs(data: Data, block_size: int) -> list[KvEvent]:
    """Runs of full blocks in one level; a partial block is the last, and is no prefix of anything.

    Blocks of another size are passed on as such, for the index to say so.
    """
    events: list[KvEvent] = []
    sizes = [len(block.tokens) for block in data.blocks]
    if any(size != block_size for size in sizes[:-1]) or max(sizes, default=0) > block_size:
        block_size = sizes[0]
    parent = None if data.parent_hash is None else _name(data.parent_hash)
    full = [block for block in data.blocks if len(block.tokens) == block_size]
    for level, group in groupby(full, lambda block: block.cache_level):
        blocks = list(group)
        names = [_name(block.block_hash) for block in blocks]
        ids = [_token(token.token_id) for block in blocks for token in block.tokens]
        keys = _extra_ids(blocks, _lora_keys(data.lora_name, data.lora_id, len(names)))
        events.append(BlocksStored(names, parent, array("I", ids), block_size, keys, _medium(level)))
        parent = names[-1]
    return events


def _extra_ids(blocks: list[Block], keys: Sequence[ExtraKeys] | None) -> Sequence[ExtraKeys] | None:
    """A token's extra id (a prompt table's) is part of the block's identity, and of no prompt of ours."""
    extra = [tuple(token.token_extra_id for token in block.tokens) for block in blocks]
    if not any(any(ids) for ids in extra):
        return keys
    return [
        [*((keys[i] if keys else None) or ()), *((ids,) if any(ids) else ())] or None
        for i, ids in enumerate(extra)
    ]


def _moved(data: Data) -> list[KvEvent]:
    """To another level: there first, so that it is not forgotten in between."""
    if data.block_hash is None or data.cache_level is None:
        return []
    names, diff = [_name(data.block_hash)], data.cache_level
    if _medium(diff.old_value) == _medium(diff.new_value):
        return []
    there = BlocksStored(names, None, array("I"), 0, None, _medium(diff.new_value))
    return [there, BlocksRemoved(names, _medium(diff.old_value))]


_reader = BatchReader(
    "trtllm",
    Stored | Removed | Cleared,
    StoredArray | RemovedArray | ClearedArray,
    {"BlockStored", "BlockRemoved", "AllBlocksCleared"},
    _convert,
)


# metrics ---------------------------------------------------------------------------------------

GAUGES = (
    ("trtllm_num_requests_running{", "num_requests_running"),
    ("trtllm_num_requests_waiting{", "num_requests_waiting"),
    ("trtllm_kv_cache_utilization{", "kv_cache_usage"),
    ("trtllm_kv_cache_tokens_per_block{", "block_size"),
    ("trtllm_kv_cache_max_blocks{", "num_gpu_blocks"),
    ("trtllm_prompt_tokens_total{", "prefix_cache_queries_total"),
    ("trtllm_prompt_cached_tokens_total{", "prefix_cache_hits_total"),
)
CACHE_CONFIG = "trtllm_kv_cache_config_info{"


def _metrics(values: dict[str, float]) -> EngineMetrics:
    whole = {field: int(value) for field, value in values.items() if field != "kv_cache_usage" and value}
    return EngineMetrics(
        num_requests_running=int(values.get("num_requests_running", 0)),
        num_requests_waiting=int(values.get("num_requests_waiting", 0)),
        kv_cache_usage=values.get("kv_cache_usage"),
        block_size=whole.get("block_size"),
        num_gpu_blocks=whole.get("num_gpu_blocks"),
        prefix_cache_queries_total=whole.get("prefix_cache_queries_total"),
        prefix_cache_hits_total=whole.get("prefix_cache_hits_total"),
    )
