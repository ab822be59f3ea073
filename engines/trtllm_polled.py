"""TensorRT-LLM's polled KV events: JSON, decoded a piece at a time (see trtllm.py)."""

from array import array
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TypeAlias

from msgspec import Raw, Struct, json, structs
from xxhash import xxh3_64_intdigest

from engines.slices import LARGE_BYTES
from engines.wire import STEP_BYTES, Count, parse
from gateway.core.blocks import ExtraKeys
from gateway.core.kv_events import (
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

WireHash: TypeAlias = int | str


class Token(Struct):
    token_id: int | str
    token_extra_id: int = 0


class Block(Struct):
    block_hash: WireHash
    tokens: list[Token]
    cache_level: int = 0
    cache_salt: str | int | None = None


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


class LargeData(Data):
    blocks: list[Raw] = []  # type: ignore[assignment]


class LargePolled(Struct):
    event_id: Count
    data: LargeData
    attention_dp_rank: int | None = None


POLLED = "trtllm /kv_cache_events"

_raws = json.Decoder(list[Raw]).decode
_polled = json.Decoder(Polled).decode
_large_polled = json.Decoder(LargePolled).decode
_blocks = json.Decoder(list[Block]).decode


def polled_in_steps(body: bytes, block_size: int, now: float) -> Iterator[EventBatch | None]:
    """Batches of one event each, and None where the caller may yield to other work. Raises DecodeError."""
    raws = parse(POLLED, _raws, body)
    digest, num_bytes = xxh3_64_intdigest(body), 0
    yield None
    for raw in raws:
        num_bytes += len(memoryview(raw))
        if num_bytes > STEP_BYTES:
            num_bytes = 0
            yield None
        if len(memoryview(raw)) > LARGE_BYTES:
            yield from _large(raw, block_size, now, digest)
        else:
            event = parse(POLLED, _polled, raw)
            yield _polled_batch(event, _of_poll(event.data, block_size), now, digest)


def token(value: int | str) -> int:
    """Token id; a token of an image is a text or a number above 32 bits, which no prompt here has."""
    return value if isinstance(value, int) and 0 <= value < NO_TOKEN else NO_TOKEN


NO_TOKEN = 0xFFFF_FFFF


def lora_keys(name: str | None, number: int | None, num_blocks: int) -> Sequence[ExtraKeys] | None:
    """Extra keys of an adapter. A number alone matches no prompt: unknown, but never wrong."""
    if not name and number is None:
        return None
    return [[name or f"lora:{number}"]] * num_blocks


def unsigned(name: int) -> int:
    return name & 0xFFFF_FFFF_FFFF_FFFF


def _name(name: WireHash) -> EngineHash:
    return name.encode() if isinstance(name, str) else unsigned(name)


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


def _polled_batch(event: Polled | LargePolled, events: list[KvEvent], now: float, digest: int) -> EventBatch:
    if event.attention_dp_rank:
        raise DecodeError(f"{POLLED}: attention DP ranks cannot be chosen by a request")
    return EventBatch(event.event_id, now, None, events, digest)


def _large(raw: Raw, block_size: int, now: float, digest: int) -> Iterator[EventBatch | None]:
    """Portions of a large event's blocks, each the child of the one before."""
    event = parse(POLLED, _large_polled, raw)
    yield None
    data, events = event.data, list[KvEvent]()
    plain = Data(**{name: getattr(data, name) for name in data.__struct_fields__ if name != "blocks"})
    if not data.blocks:
        events = _of_poll(plain, block_size)
    some: list[bytes] = []
    for i, block in enumerate(map(bytes, data.blocks), 1):
        if len(block) > LARGE_BYTES:
            raise DecodeError(f"{POLLED}: a block of {len(block):,} bytes")
        some.append(block)
        if sum(map(len, some)) > STEP_BYTES or i == len(data.blocks):
            blocks = parse(POLLED, _blocks, b"[%b]" % b",".join(some))
            events += _of_poll(structs.replace(plain, blocks=blocks), block_size)
            plain.parent_hash, some = blocks[-1].block_hash, []
            yield None
    yield _polled_batch(event, events, now, digest)


def _runs(data: Data, block_size: int) -> list[KvEvent]:
    """Runs of full blocks in one level; a partial block is the last, and is no prefix of anything.

    Blocks of another size are passed on as such; the index reports them.
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
        ids = [token(each.token_id) for block in blocks for each in block.tokens]
        keys = _extra_ids(blocks, lora_keys(data.lora_name, data.lora_id, len(names)))
        events.append(BlocksStored(names, parent, array("I", ids), block_size, keys, _medium(level)))
        parent = names[-1]
    return events


def _extra_ids(blocks: list[Block], keys: Sequence[ExtraKeys] | None) -> Sequence[ExtraKeys] | None:
    """Extra keys with tokens' extra ids (a prompt table's) and salts: part of a block's identity, and in no
    prompt here, since gateways send this engine no salt."""
    found = list[ExtraKeys]()
    for i, block in enumerate(blocks):
        extra = tuple(token.token_extra_id for token in block.tokens)
        salt = () if block.cache_salt is None else (f"cache_salt:{block.cache_salt}",)
        found.append([*((keys[i] if keys else None) or ()), *((extra,) if any(extra) else ()), *salt] or None)
    return found if any(found) else keys


def _moved(data: Data) -> list[KvEvent]:
    """Events of blocks that move to another level: stored there first, so that they are not forgotten in
    between."""
    if data.block_hash is None or data.cache_level is None:
        return []
    names, diff = [_name(data.block_hash)], data.cache_level
    if _medium(diff.old_value) == _medium(diff.new_value):
        return []
    there = BlocksStored(names, None, array("I"), 0, None, _medium(diff.new_value))
    return [there, BlocksRemoved(names, _medium(diff.old_value))]
