"""KV events in vLLM's wire format: payload `[ts, events, dp_rank]` in msgpack.

    map     0.24 and newer: an event is a map with its tag under "type"; optional None fields are omitted
    array   0.23: an event is an array `[tag, ...]` with all fields in order

Messages are `[topic, seq, payload]`, replayed ones `[b"", topic, seq, payload]`; seq is 8 bytes big-endian.
"""

from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct, msgpack

from engines.sim.cache import AdapterBlocksStored
from gateway.core.blocks import ExtraKeys
from gateway.core.kv_events import SHARED, BlocksCleared, BlocksRemoved, BlocksStored, EngineHash, KvEvent

EventWire = Literal["map", "array"]

END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)


class StoredFields(Struct, tag="BlockStored", omit_defaults=True, gc=False):
    block_hashes: Sequence[EngineHash]
    parent_block_hash: EngineHash | None
    token_ids: Sequence[int]
    block_size: int
    lora_id: int | None
    medium: str
    lora_name: str | None
    extra_keys: Sequence[ExtraKeys] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class RemovedFields(Struct, tag="BlockRemoved", omit_defaults=True, gc=False):
    block_hashes: Sequence[EngineHash]
    medium: str
    group_idx: int | None = None


class ClearedFields(Struct, tag="AllBlocksCleared", gc=False):
    pass


class StoredMap(StoredFields, tag="BlockStored", omit_defaults=True, gc=False):
    locality: str | None = None


class RemovedMap(RemovedFields, tag="BlockRemoved", omit_defaults=True, gc=False):
    locality: str | None = None


class StoredArray(StoredFields, tag="BlockStored", array_like=True, gc=False):
    pass


class RemovedArray(RemovedFields, tag="BlockRemoved", array_like=True, gc=False):
    pass


class ClearedArray(ClearedFields, tag="AllBlocksCleared", array_like=True, gc=False):
    pass


class EventEncoder:
    """Encoder of event batches; `adapters` are in the order of their ids, which vLLM counts from 1."""

    def __init__(self, form: EventWire = "map", adapters: Sequence[str] = ()) -> None:
        self._pack = msgpack.Encoder().encode
        kinds: tuple[type[StoredFields], type[RemovedFields], type[ClearedFields]] = (
            (StoredMap, RemovedMap, ClearedFields)
            if form == "map"
            else (StoredArray, RemovedArray, ClearedArray)
        )
        self._stored, self._removed, self._cleared = kinds
        self._lora_ids = {name: number for number, name in enumerate(adapters, 1)}

    def encode(self, ts: float, events: Sequence[KvEvent], dp_rank: int) -> bytes:
        """Payload of one batch. `ts`: wall clock in seconds."""
        return self._pack((ts, [self._fields(event) for event in events], dp_rank))

    def _fields(self, event: KvEvent) -> Struct:
        match event:
            case BlocksStored():
                return self._store(event)
            case BlocksRemoved():
                medium, where = self._place(event.medium)
                return self._removed(event.engine_hashes, medium, event.group_idx, **where)
            case BlocksCleared():
                return self._cleared()
        raise TypeError(f"an engine sends no {event!r}")

    def _store(self, event: BlocksStored) -> Struct:
        medium, where = self._place(event.medium)
        adapter = event.adapter if isinstance(event, AdapterBlocksStored) else None
        return self._stored(
            block_hashes=event.engine_hashes,
            parent_block_hash=event.parent,
            token_ids=event.tokens.tolist(),
            block_size=event.block_size,
            lora_id=self._lora_id(adapter) if adapter else None,
            medium=medium,
            lora_name=adapter,
            extra_keys=event.extra_keys or ([None] * len(event.engine_hashes) if event.tokens else None),
            group_idx=event.group_idx,
            kv_cache_spec_kind=event.spec_kind,
            kv_cache_spec_sliding_window=event.window,
            **where,
        )

    def _lora_id(self, adapter: str) -> int:
        """Id of an adapter; one that was loaded later has the next."""
        return self._lora_ids.setdefault(adapter, len(self._lora_ids) + 1)

    def _place(self, medium: str) -> tuple[str, dict[str, Any]]:
        """Medium and locality fields of a tier; 0.23 did not report the locality."""
        plain, shared, _ = medium.partition(SHARED)
        return plain, {"locality": "REMOTE"} if shared and self._stored is StoredMap else {}


def seq_bytes(seq: int) -> bytes:
    return seq.to_bytes(8, "big")
