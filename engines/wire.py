"""Event batches over ZeroMQ, in the framing that vLLM began and SGLang and TensorRT-LLM took over.

published    `[topic, seq u64 big-endian, payload]`
replay       requested with `[b"", start_seq]`; answers are `[b"", topic, seq, payload]`, in older
versions
             `[b"", seq, payload]`; the end is sequence number -1
payload      msgpack `[ts, events, dp_rank]`, or a map of these; an event is a map with its tag under
             "type", in older versions an array that begins with it
"""

from collections.abc import Callable, Iterator, Sequence
from math import isfinite
from typing import Annotated, Any, Generic, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct, msgpack
from xxhash import xxh3_64_intdigest

from engines.slices import LARGE_BYTES, portions, raw_events
from gateway.core.decode_errors import UNREADABLE as UNREADABLE
from gateway.core.kv_events import (
    GPU,
    BlocksCleared,
    DecodeError,
    EventBatch,
    KvEvent,
    ReplayUnavailable,
    UnknownEvent,
)

END_OF_REPLAY = b"\xff" * 8
UNAVAILABLE = b"\xff" * 7 + b"\xfe"
"""Sequence number -2: the publisher cannot replay now (vllm#57789)."""
Count: TypeAlias = Annotated[int, Meta(ge=0)]
T = TypeVar("T")


class WireBatch(Struct, Generic[T], array_like=True, gc=False):
    ts: float
    events: list[T]
    dp_rank: Count | None = None


class TagMap(Struct):
    type: str


class TagArray(Struct, array_like=True):
    type: str


class RawBatch(Struct, array_like=True, gc=False):
    """Batch with its events still packed in `events`."""

    ts: float
    events: Raw
    dp_rank: Count | None = None


class RawBatchMap(Struct, gc=False):
    """Batch as a map: events went from arrays to maps before. The rank has the name that vLLM or SGLang
    gives it."""

    ts: float
    events: Raw
    data_parallel_rank: Count | None = None
    attn_dp_rank: Count | None = None

    @property
    def dp_rank(self) -> int | None:
        return self.attn_dp_rank if self.data_parallel_rank is None else self.data_parallel_rank


class MediumMap(Struct, gc=False):
    type: str
    medium: str | None = None


class StoredMediumArray(Struct, array_like=True, tag="BlockStored", gc=False):
    block_hashes: Raw
    parent_block_hash: Raw
    token_ids: Raw
    block_size: Raw
    lora_id: Raw
    medium: str | None = None


class RemovedMediumArray(Struct, array_like=True, tag="BlockRemoved", gc=False):
    block_hashes: Raw
    medium: str | None = None


MAX_NAME = 128
"""Characters in the name of a medium or of a kind of group: they are kept as long as the worker is."""
STEP_BYTES = 32 << 10
"""Bytes of events that are decoded between two looks at the clock."""

_batch_array = msgpack.Decoder(RawBatch).decode
_batch_map = msgpack.Decoder(RawBatchMap).decode
_tag_array = msgpack.Decoder(TagArray).decode
_tag_map = msgpack.Decoder(TagMap).decode
_medium_map = msgpack.Decoder(MediumMap).decode
_medium_array = msgpack.Decoder(StoredMediumArray | RemovedMediumArray).decode


def parse(what: str, decode: Callable[[bytes], T], body: bytes) -> T:
    """Decode a body. Raises DecodeError that begins with `what`."""
    try:
        return decode(body)
    except UNREADABLE as exc:
        raise DecodeError(f"{what}: {exc}") from exc


SEQUENCE_BYTES = (8, 24)
"""A sequence number, alone or with 16 bytes behind it that name the publisher's process (vllm#57789). A
restart is recognized by digests and times, which every version has."""


def published(engine: str, frames: Sequence[bytes]) -> tuple[int, bytes]:
    """Sequence number and payload of a message. Raises DecodeError."""
    if len(frames) != 3:
        raise DecodeError(f"{engine} event: expected 3 frames [topic, seq, payload], got {len(frames)}")
    return _sequence(engine, frames[1]), frames[2]


def replayed(engine: str, frames: Sequence[bytes]) -> tuple[int, bytes] | None:
    """Sequence number and payload of an answer in a replay; None is its end. Raises DecodeError."""
    if len(frames) not in (3, 4):
        raise DecodeError(f"{engine} replay: expected 3 or 4 frames, got {len(frames)}")
    mark = frames[-2][:8]
    if mark == UNAVAILABLE:
        raise ReplayUnavailable(f"{engine} replay: the engine has none now")
    return None if mark == END_OF_REPLAY else (_sequence(engine, frames[-2]), frames[-1])


def replay_request(start_seq: int) -> list[bytes]:
    return [b"", start_seq.to_bytes(8, "big")]


def _sequence(engine: str, frame: bytes) -> int:
    if len(frame) not in SEQUENCE_BYTES:
        raise DecodeError(f"{engine} event: expected a sequence number of 8 or 24 bytes, got {len(frame)}")
    return int.from_bytes(frame[:8], "big")


def in_portions(event: Raw) -> Iterator[Raw | None]:
    """Portions of a large event, with None between them; any other event as it is."""
    if len(memoryview(event)) <= LARGE_BYTES:
        yield event
    else:
        yield from portions(event, in_map=is_map(memoryview(event)))


def batch_of(steps: Iterator[EventBatch | None]) -> EventBatch:
    """Result of a decoding in steps, run at once."""
    *_, batch = steps
    assert batch is not None, "the last one is the batch"
    return batch


def named(text: str) -> str:
    """Check the name of a medium or a kind of group. Raises DecodeError for one that is too long for any
    engine."""
    if len(text) > MAX_NAME:
        raise DecodeError(f"a name of {len(text):,} characters, beyond {MAX_NAME}")
    return text


def of_another_medium(event: Raw) -> UnknownEvent | None:
    """Return what stands for an unreadable event that names a medium other than the GPU; None for one that
    may be about the GPU."""
    try:
        found = _medium_map(event) if is_map(memoryview(event)) else _medium_array(event)
    except UNREADABLE:
        return None
    medium = (found.medium or GPU).upper()
    tag = found.type if isinstance(found, MediumMap) else found.__struct_config__.tag
    return None if medium == GPU else UnknownEvent(str(tag)[:MAX_NAME], medium[:MAX_NAME])


def medium_of(text: str | None) -> str:
    """Return the name of a medium; some connectors write it in small letters. Raises DecodeError."""
    return GPU if text is None or text == GPU else named(text.upper() or GPU)


class ClearedMap(Struct, tag="AllBlocksCleared"):
    """Event of a medium that was emptied: the engine's own cache, where none is named."""

    medium: str | None = None


class ClearedArray(Struct, tag="AllBlocksCleared", array_like=True):
    """The same event as an array."""

    medium: str | None = None


def cleared(medium: str | None) -> KvEvent:
    """Return the event of an emptied medium; tiers are followed by removals alone. Raises DecodeError."""
    name = medium_of(medium)
    return BlocksCleared() if name == GPU else UnknownEvent("AllBlocksCleared", name)


def is_map(packed: bytes | memoryview) -> bool:
    """True for the first byte of a msgpack map; anything but a map or an array fails in the array decoder."""
    return bool(packed) and (packed[0] & 0xF0 == 0x80 or packed[0] in (0xDE, 0xDF))


class BatchReader:
    """Reader of payloads. `maps` and `arrays` are unions of tagged structs, one per event; `convert` makes
    kvgate's events of several consecutive ones, and may join them."""

    def __init__(
        self,
        engine: str,
        maps: Any,
        arrays: Any,
        tags: set[str],
        convert: Callable[[list[Any]], list[KvEvent]],
    ) -> None:
        self._engine = engine
        self._tags = tags
        self._convert = convert
        self._decode_map = msgpack.Decoder(maps).decode
        self._decode_array = msgpack.Decoder(arrays).decode
        self._decode_all = [msgpack.Decoder(WireBatch[form]).decode for form in (maps, arrays)]  # type: ignore[valid-type]

    def read(self, seq: int, payload: bytes) -> EventBatch:
        """Decode a batch in one pass. Mostly all events are of a known kind and of one form, at half the
        time.

        Raises DecodeError that names the event and the cause.
        """
        for decode in self._decode_all:
            try:
                batch = decode(payload)
                if isfinite(batch.ts):
                    events = self._convert(batch.events)
                    return EventBatch(seq, batch.ts, batch.dp_rank, events, xxh3_64_intdigest(payload))
            except UNREADABLE:
                continue  # the other form, an unknown event, or an error that is reported below
        return self._by_event(seq, payload)

    def _by_event(self, seq: int, payload: bytes) -> EventBatch:
        return batch_of(self.read_in_steps(seq, payload))

    def read_in_steps(self, seq: int, payload: bytes) -> Iterator[EventBatch | None]:
        """Decode in steps, the batch last; None where the caller may yield to other work. Raises DecodeError
        as `read` does."""
        where = "batch"
        try:
            batch = _batch_map(payload) if is_map(payload) else _batch_array(payload)
            if not isfinite(batch.ts):
                raise DecodeError(f"timestamp is {batch.ts}")
            yield None
            events: list[KvEvent] = []
            run: list[Any] = []
            num_bytes = 0
            for i, raw in enumerate(raw_events(batch.events)):
                where = f"event {i}"
                for event in self._parts(raw):
                    if event is None or isinstance(event, UnknownEvent) or num_bytes > STEP_BYTES:
                        events += self._convert(run)
                        run, num_bytes = [], 0
                        yield None
                    if isinstance(event, UnknownEvent):
                        events.append(event)
                    elif event is not None:
                        run.append(event)
                        num_bytes += len(memoryview(raw))
            events += self._convert(run)
        except UNREADABLE as exc:
            raise DecodeError(f"{self._engine} seq {seq}, {where}: {str(exc) or type(exc).__name__}") from exc
        yield EventBatch(seq, batch.ts, batch.dp_rank, events, xxh3_64_intdigest(payload))

    def _parts(self, raw: Raw) -> Iterator[Any]:
        """Yield the portions of an event, and None between them."""
        try:
            for part in in_portions(raw):
                yield self._event(part) if part is not None else None
        except UNREADABLE:
            if (unread := of_another_medium(raw)) is None:
                raise
            yield unread

    def _event(self, raw: Raw) -> Any:
        in_map = is_map(memoryview(raw))
        try:
            return self._decode_map(raw) if in_map else self._decode_array(raw)
        except msgspec.ValidationError:
            tag = (_tag_map(raw) if in_map else _tag_array(raw)).type
            if tag in self._tags:
                raise
            return UnknownEvent(tag)
