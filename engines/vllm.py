"""vLLM 0.9 to 0.33 on the wire: KV events, replay, metrics, model list.

events       up to 0.23 an event is an array that grew with the versions, `[tag, hashes, ...]`;
             from 0.24 a map with the tag under "type". The batch is an array `[ts, events,
             dp_rank]`, on the main branch a map. Both forms are read at both levels.
hashes       unsigned integers, or raw bytes (VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0)
extra_keys   from 0.19 on; before, a LoRA shows as `lora_name` (0.16) or `lora_id` only, and a
             cache_salt does not show at all
groups       hybrid models number their groups; kind and window come with GPU stores (0.24 on)
tiers        `locality` LOCAL or REMOTE as the worker sees its offload tier, if its operator declares it
(0.26
             on); `ownership` names the tier, where it has a name: a REMOTE one is taken for shared by all
             workers that report that name. Some connectors write a medium in small letters
replay       answers are `[b"", topic, seq, payload]` from 0.26, `[b"", seq, payload]` before;
             the end is sequence number -1
"""

from array import array
from collections.abc import Iterator, Sequence
from math import isfinite
from typing import Annotated, Any, Generic, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct, json, msgpack
from xxhash import xxh3_64_intdigest

from engines.slices import raw_events
from engines.vllm_info import INFO, parse_server_info
from engines.vllm_metrics import parse_metrics
from engines.wire import (
    STEP_BYTES,
    UNREADABLE,
    ClearedArray,
    ClearedMap,
    Count,
    TagArray,
    TagMap,
    batch_of,
    cleared,
    in_portions,
    is_map,
    medium_of,
    named,
    of_another_medium,
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
from gateway.core.kv_events import (
    GPU,
    SHARED,
    BlocksRemoved,
    BlocksStored,
    DecodeError,
    EventBatch,
    KvEvent,
    UnknownEvent,
)

REMOTE = "REMOTE"
MAX_KEY_DEPTH = 8  # an image's key is a pair in a list: 2

WireHash: TypeAlias = Annotated[int, Meta(ge=0)] | Annotated[bytes, Meta(max_length=64)]
"""Engine hash on the wire: raw bytes of a SHA-256 at most, which are kept for orphans
(`index/orphans.py`)."""


class StoredFields(Struct, gc=False):
    block_hashes: list[WireHash]
    parent_block_hash: WireHash | None = None
    token_ids: list[int] | None = None
    block_size: Count | None = None
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[Any] | None = None
    group_idx: Count | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: Count | None = None
    locality: str | None = None
    ownership: str | None = None


class RemovedFields(Struct, gc=False):
    block_hashes: list[WireHash]
    medium: str | None = None
    group_idx: Count | None = None
    locality: str | None = None
    ownership: str | None = None


class StoredMap(StoredFields, tag="BlockStored"): ...


class RemovedMap(RemovedFields, tag="BlockRemoved"): ...


class StoredArray(StoredFields, tag="BlockStored", array_like=True): ...


class RemovedArray(RemovedFields, tag="BlockRemoved", array_like=True): ...


MapEvent: TypeAlias = StoredMap | RemovedMap | ClearedMap
ArrayEvent: TypeAlias = StoredArray | RemovedArray | ClearedArray
E = TypeVar("E")


class BatchFields(Struct, Generic[E], gc=False):
    ts: float
    events: list[E]
    data_parallel_rank: Count | None = None


class BatchArray(BatchFields[E], Generic[E], array_like=True): ...


class RawBatch(Struct, gc=False):
    """Batch with its events still packed in `events`."""

    ts: float
    events: Raw
    data_parallel_rank: Count | None = None


class RawBatchArray(RawBatch, array_like=True): ...


class ModelCard(Struct):
    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None


class ModelList(Struct):
    data: list[ModelCard]


class PublisherConfig(Struct):
    endpoint: str
    enable_kv_cache_events: bool = True
    publisher: str | None = "zmq"
    replay_endpoint: str | None = None
    topic: str = ""


class VersionAnswer(Struct):
    version: str


NOT_POLLED = "vllm publishes its events; none are polled"
KNOWN_TAGS = {"BlockStored", "BlockRemoved", "AllBlocksCleared"}
_batch_array = msgpack.Decoder(RawBatchArray).decode
_batch_map = msgpack.Decoder(RawBatch).decode
_known_map = msgpack.Decoder(BatchFields[MapEvent]).decode, msgpack.Decoder(BatchFields[ArrayEvent]).decode
_known_array = msgpack.Decoder(BatchArray[MapEvent]).decode, msgpack.Decoder(BatchArray[ArrayEvent]).decode
_event_array = msgpack.Decoder(ArrayEvent).decode
_event_map = msgpack.Decoder(MapEvent).decode
_tag_array = msgpack.Decoder(TagArray).decode
_tag_map = msgpack.Decoder(TagMap).decode
_models = json.Decoder(ModelList).decode
_sources = json.Decoder(dict[int, PublisherConfig]).decode
_version = json.Decoder(VersionAnswer).decode


class Vllm:
    name = "vllm"
    marks = EngineMarks(owned_by="vllm", metrics="vllm:")
    usage = StreamUsage()
    paths = EnginePaths("/health", "/metrics", "/v1/models", "/version", "/kv_event_sources", INFO)
    flags = EngineFlags(
        # Rank r of a data-parallel engine publishes on port + r, so the two ports lie far apart.
        events="--kv-events-config '"
        '{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:6557"}'
        "'",
        cached_tokens="--enable-prompt-tokens-details",
    )
    reports_from: tuple[int, ...] | None = (0, 26)
    salts_from: tuple[int, ...] | None = ()
    salted_paths: frozenset[str] | None = None
    takes_lists = True
    loads_by_name = False
    takes_no_limit = False
    lowest_priority: int | None = (1 << 31) - 1
    tokenize: TokenizeCalls | None = TokenizeCalls()
    adapters: AdapterCalls | None = AdapterCalls(
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "--enable-lora, and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True",
    )

    def decode(self, frames: Sequence[bytes]) -> EventBatch:
        return _batch(*published("vllm", frames))

    def decode_replay(self, frames: Sequence[bytes]) -> EventBatch | None:
        message = replayed("vllm", frames)
        return None if message is None else _batch(*message)

    def decode_in_steps(self, frames: Sequence[bytes], *, is_replay: bool) -> Iterator[EventBatch | None]:
        message = replayed("vllm", frames) if is_replay else published("vllm", frames)
        return iter(()) if message is None else _steps(*message)

    def replay_request(self, start_seq: int) -> list[bytes]:
        return replay_request(start_seq)

    def parse_metrics(self, text: str) -> dict[int, EngineMetrics]:
        return parse_metrics(text)

    def parse_models(self, body: bytes) -> tuple[ModelInfo, ...]:
        cards = parse("vllm /v1/models", _models, body).data
        return tuple(ModelInfo(card.id, card.root, card.parent, card.max_model_len) for card in cards)

    def parse_event_sources(self, body: bytes) -> tuple[EventSource, ...]:
        configs = parse("vllm /kv_event_sources", _sources, body)
        return tuple(
            EventSource(rank, config.endpoint, config.replay_endpoint, config.topic)
            for rank, config in sorted(configs.items())
            if config.enable_kv_cache_events and config.publisher == "zmq"
        )

    def parse_version(self, body: bytes) -> str:
        return parse("vllm /version", _version, body).version

    def parse_info(self, body: bytes | None) -> EngineInfo:
        return parse_server_info(body) if body else EngineInfo()

    def decode_poll(self, body: bytes, block_size: int, now: float) -> list[EventBatch]:
        raise DecodeError(NOT_POLLED)

    def decode_poll_in_steps(self, body: bytes, block_size: int, now: float) -> Iterator[EventBatch | None]:
        raise DecodeError(NOT_POLLED)


# events ----------------------------------------------------------------------------------------


def _batch(seq: int, payload: bytes) -> EventBatch:
    """Decode a batch in one pass. Mostly all events are of a known kind and of one form, at half the time."""
    for decode in _known_map if is_map(payload) else _known_array:
        try:
            batch = decode(payload)
            if isfinite(batch.ts):
                events = [_known(event) for event in batch.events]
                return EventBatch(seq, batch.ts, batch.data_parallel_rank, events, xxh3_64_intdigest(payload))
        except UNREADABLE:
            continue  # the other form, an unknown event, or an error that is reported below
    return _batch_by_event(seq, payload)


def _batch_by_event(seq: int, payload: bytes) -> EventBatch:
    return batch_of(_steps(seq, payload))


def _steps(seq: int, payload: bytes) -> Iterator[EventBatch | None]:
    """Decode any batch in steps: forms mixed, unknown events, large ones; errors name the event and the
    cause. The batch comes last, before it None where the caller may yield to other work."""
    where = "batch"
    try:
        batch = _batch_map(payload) if is_map(payload) else _batch_array(payload)
        if not isfinite(batch.ts):
            raise DecodeError(f"timestamp is {batch.ts}")
        yield None
        events: list[KvEvent] = []
        num_bytes = 0
        for i, raw in enumerate(raw_events(batch.events)):
            where = f"event {i}"
            for event in _parts(raw):
                if event is None or num_bytes > STEP_BYTES:
                    num_bytes = 0
                    yield None
                if event is not None:
                    num_bytes += len(memoryview(raw))
                    events.append(event)
    except UNREADABLE as exc:
        raise DecodeError(f"vllm seq {seq}, {where}: {str(exc) or type(exc).__name__}") from exc
    yield EventBatch(seq, batch.ts, batch.data_parallel_rank, events, xxh3_64_intdigest(payload))


def _parts(raw: Raw) -> Iterator[KvEvent | None]:
    """Yield the portions of an event, and None between them."""
    try:
        for part in in_portions(raw):
            yield _event(part) if part is not None else None
    except UNREADABLE:
        if (unread := of_another_medium(raw)) is None:
            raise
        yield unread


def _event(raw: Raw) -> KvEvent:
    in_map = is_map(memoryview(raw))
    try:
        event = _event_map(raw) if in_map else _event_array(raw)
    except msgspec.ValidationError:
        tag = (_tag_map(raw) if in_map else _tag_array(raw)).type
        if tag in KNOWN_TAGS:
            raise
        return UnknownEvent(tag)
    return _known(event)


def _known(event: MapEvent | ArrayEvent) -> KvEvent:
    if isinstance(event, StoredFields):
        return _stored(event)
    if isinstance(event, RemovedFields):
        return BlocksRemoved(event.block_hashes, _medium(event), event.group_idx or 0)
    return cleared(event.medium)


def _stored(event: StoredFields) -> BlocksStored:
    """Convert a store; a placeholder store of an offload tier has neither tokens nor block size: none and 0
    here."""
    return BlocksStored(
        event.block_hashes,
        event.parent_block_hash,
        _tokens(event.token_ids),
        event.block_size or 0,
        _extra_keys(event),
        _medium(event),
        event.group_idx or 0,
        event.kv_cache_spec_kind and named(event.kv_cache_spec_kind),
        event.kv_cache_spec_sliding_window,
    )


def _medium(event: StoredFields | RemovedFields) -> str:
    medium = medium_of(event.medium)
    if medium == GPU or event.locality != REMOTE:
        return medium
    return named(f"{medium}{SHARED}{event.ownership or ''}")


def _tokens(ids: list[int] | None) -> Tokens:
    return array("I", ids or ())


def _extra_keys(event: StoredFields) -> Sequence[ExtraKeys] | None:
    keys = event.extra_keys
    if keys is None:
        return _lora_keys(event)
    if not any(keys):
        return None
    return [_block_keys(key) for key in keys]


def _lora_keys(event: StoredFields) -> Sequence[ExtraKeys] | None:
    """Extra keys before vLLM published them. An id alone matches no prompt: unknown, but never wrong."""
    if event.lora_name:
        return [[event.lora_name]] * len(event.block_hashes)
    if event.lora_id is not None:
        return [[f"lora:{event.lora_id}"]] * len(event.block_hashes)
    return None


def _block_keys(keys: Any) -> ExtraKeys:
    if keys is None:
        return None
    if not isinstance(keys, list):
        raise DecodeError(f"extra_keys: expected a list or nil for each block, got {type(keys).__name__}")
    return [_key(key, MAX_KEY_DEPTH) for key in keys]


def _key(key: Any, depth: int) -> ExtraKey:
    """Extra key as it came; a type that is no `ExtraKey` keeps its packed bytes, and so its own identity."""
    if key is None or isinstance(key, str | int | bytes):
        return key
    if isinstance(key, list):
        if not depth:
            raise DecodeError(f"extra_keys: nested deeper than {MAX_KEY_DEPTH} levels")
        return [_key(item, depth - 1) for item in key]
    return msgpack.encode(key)
