"""TensorRT-LLM (trtllm-serve): KV events over ZeroMQ or polled, metrics, model list.

Read in NVIDIA/TensorRT-LLM: _torch/pyexecutor/kv_cache_events.py (13599e98), serve/openai_server.py
(e7f7345e), metrics/collector.py (050f80de), _utils.py's KVCacheEventSerializer; tests/data/trtllm/SOURCES.md.

    published    new versions with `kv_events_config`: vLLM's frames and maps, replay too; rank r at port + r.
                 Only full blocks of the widest attention window; medium "GPU". The salt does not show, of an
                 adapter its number at most.
    polled       POST /kv_cache_events (with `event_buffer_max_size`): the events since the last request, as a
                 JSON array; each event has a number, so events that another consumer took, or an overflow
                 lost, show as a gap. There is no replay: a late client knows the rest only.
                 Partial blocks are among them, the last of their run; blocks move between levels
                 ("updated"), 0 is the GPU, 1 the host. Engines with several attention windows report each.
    metrics      Prometheus at /prometheus/metrics (with `return_perf_metrics`); /metrics is a JSON array of
                 steps that is handed out once, so it is read for the block size only, when a worker joins
    DP ranks     a request cannot choose its attention-DP rank over HTTP, so an endpoint is one worker
"""

from array import array
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct, json

from engines.prometheus import integer, label, series
from engines.trtllm_polled import lora_keys, polled_in_steps, token, unsigned
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
from gateway.core.kv_events import (
    BlocksRemoved,
    BlocksStored,
    DecodeError,
    EventBatch,
    KvEvent,
)

BLOCK_SIZE = 32
"""Default `tokens_per_block` (llmapi/llm_args.py); an engine that has not run a step does not report it."""

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


class StoredArray(Stored, tag="BlockStored", array_like=True): ...


class RemovedArray(Removed, tag="BlockRemoved", array_like=True): ...


class ModelCard(Struct):
    id: str


class ModelList(Struct):
    data: list[ModelCard]


class KvStats(Struct):
    tokensPerBlock: int | None = None  # noqa: N815
    maxNumBlocks: int | None = None  # noqa: N815


class IterationStats(Struct):
    kvCacheStats: KvStats | None = None  # noqa: N815


class VersionAnswer(Struct):
    version: str


_models = json.Decoder(ModelList).decode
_steps = json.Decoder(list[IterationStats | str]).decode
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
        'endpoint: "tcp://*:5557", replay_endpoint: "tcp://*:6557"}}, and '
        "kvgate with --events-replay-port 6557",
        cached_tokens="",
    )
    reports_from: tuple[int, ...] | None = None
    adapters: AdapterCalls | None = None
    salts_from: tuple[int, ...] | None = ()  # versions without the field reject requests with it
    salted_paths: frozenset[str] | None = None
    takes_lists = True
    loads_by_name = False
    takes_no_limit = False
    lowest_priority: int | None = None
    tokenize: TokenizeCalls | None = TokenizeCalls()

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
        values = {field: value for name, field in GAUGES for _, value in series(text, name)}
        for labels, _ in series(text, CACHE_CONFIG):  # there from the start; the gauge, from the first step
            values.setdefault("block_size", integer(label(labels, "page_size")) or 0)
        return {0: _metrics(values)} if values else {}

    def parse_models(self, body: bytes) -> tuple[ModelInfo, ...]:
        return tuple(ModelInfo(card.id) for card in parse("trtllm /v1/models", _models, body).data)

    def parse_event_sources(self, body: bytes) -> tuple[EventSource, ...]:
        raise DecodeError("trtllm does not report its event endpoints")

    def parse_version(self, body: bytes) -> str:
        return parse("trtllm /version", _version, body).version

    def parse_info(self, body: bytes | None) -> EngineInfo:
        # Optional statistics: a page of another kind under this path must not keep a worker out.
        is_steps = body is not None and body[:1] == b"["
        steps = parse("trtllm /metrics", _steps, body) if body and is_steps else []
        found = [
            step.kvCacheStats for step in steps if isinstance(step, IterationStats) and step.kvCacheStats
        ]
        stats = found[-1] if found else KvStats()
        rank = EngineMetrics(
            block_size=stats.tokensPerBlock or BLOCK_SIZE, num_gpu_blocks=stats.maxNumBlocks or None
        )
        return EngineInfo(ranks={0: rank})

    def decode_poll(self, body: bytes, block_size: int, now: float) -> list[EventBatch]:
        steps = self.decode_poll_in_steps(body, block_size, now)
        return [batch for batch in steps if batch is not None]

    def decode_poll_in_steps(self, body: bytes, block_size: int, now: float) -> Iterator[EventBatch | None]:
        return polled_in_steps(body, block_size, now)


# events ----------------------------------------------------------------------------------------


def _convert(run: list[Any]) -> list[KvEvent]:
    return [_published(event) for event in run]


def _published(event: Any) -> KvEvent:
    if isinstance(event, Stored):
        names = [unsigned(name) for name in event.block_hashes]
        parent = event.parent_block_hash
        return BlocksStored(
            names,
            None if parent is None else unsigned(parent),
            array("I", [token(each) for each in event.token_ids]),
            event.block_size,
            lora_keys(event.lora_name, event.lora_id, len(names)),
            medium_of(event.medium),
        )
    if isinstance(event, Removed):
        return BlocksRemoved([unsigned(name) for name in event.block_hashes], medium_of(event.medium))
    return cleared(event.medium)


_reader = BatchReader(
    "trtllm",
    Stored | Removed | ClearedMap,
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
