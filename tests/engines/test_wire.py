"""Frames and batches that three engines share; each adapter's test has its events."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Struct, msgpack

from engines.sglang import Sglang
from engines.trtllm import TrtLlm
from engines.vllm import Vllm
from engines.wire import END_OF_REPLAY, BatchReader, is_map, parse, published, replay_request, replayed
from gateway.core.kv_events import (
    GPU,
    BlocksCleared,
    BlocksStored,
    DecodeError,
    KvEvent,
    ReplayUnavailable,
    UnknownEvent,
)

SEQ = (7).to_bytes(8, "big")


class ClearMap(Struct, tag="Clear"): ...


class ClearArray(Struct, tag="Clear", array_like=True): ...


def convert(run: list[Any]) -> list[KvEvent]:
    return [BlocksCleared()] if run else []


READER = BatchReader("e", ClearMap, ClearArray, {"Clear"}, convert)


def read(payload: object) -> list[KvEvent]:
    return list(READER.read(7, msgpack.encode(payload)).events)


def test_published_and_replayed_messages_are_decoded() -> None:
    assert published("e", [b"topic", SEQ, b"p"]) == (7, b"p")
    assert replayed("e", [b"", SEQ, b"p"]) == replayed("e", [b"", b"topic", SEQ, b"p"]) == (7, b"p")
    assert replayed("e", [b"", b"", END_OF_REPLAY, b""]) is None
    assert replay_request(258) == [b"", b"\0\0\0\0\0\0\x01\x02"]


def test_sequence_numbers_may_have_the_publishers_id_behind_them() -> None:
    """An open change to vLLM (57789) sends them, live and in replays."""
    publisher = bytes(range(200, 216))
    assert published("e", [b"topic", SEQ + publisher, b"p"]) == (7, b"p")
    assert replayed("e", [b"", b"topic", SEQ + publisher, b"p"]) == (7, b"p")
    assert replayed("e", [b"", b"", END_OF_REPLAY + publisher, b""]) is None


@pytest.mark.parametrize("publisher", [b"", bytes(16)])
def test_a_replay_may_be_unavailable(publisher: bytes) -> None:
    mark = (-2).to_bytes(8, "big", signed=True)
    with pytest.raises(ReplayUnavailable, match="e replay: the engine has none now"):
        replayed("e", [b"", b"", mark + publisher, b""])


@pytest.mark.parametrize("frames", [[], [b"", b"p"], [b"", b"short", b"p"], [b""] * 5])
def test_other_messages_are_rejected_with_the_name_of_the_engine(frames: list[bytes]) -> None:
    with pytest.raises(DecodeError, match="^e event: expected"):
        published("e", frames)
    with pytest.raises(DecodeError, match="^e (replay|event): expected"):
        replayed("e", frames)


def test_consecutive_events_are_converted_together() -> None:
    clear_map, clear_array, new = {"type": "Clear"}, ["Clear"], ["New", 1]
    assert read([1.0, [clear_map, clear_array], 2]) == [BlocksCleared()]
    assert read([1.0, [clear_map, new, {"type": "New"}, clear_array]]) == [
        BlocksCleared(),
        UnknownEvent("New"),
        UnknownEvent("New"),
        BlocksCleared(),
    ]
    batch = READER.read(7, msgpack.encode([1.5, [], 2]))
    assert (batch.seq, batch.ts, batch.dp_rank, batch.events) == (7, 1.5, 2, [])


@pytest.mark.parametrize(
    ("payload", "where"),
    [
        (None, "batch"),
        ({"ts": 1.0}, "batch"),
        ([float("inf"), []], "batch"),
        ([1.0, [["Clear"], 3]], "event 1"),
        ([1.0, [{"type": 3}]], "event 0"),
        ([1.0, [[]]], "event 0"),
    ],
)
def test_an_unreadable_value_is_named_by_its_position(payload: object, where: str) -> None:
    with pytest.raises(DecodeError, match=f"^e seq 7, {where}: "):
        read(payload)


def test_maps_are_recognized_by_their_first_byte() -> None:
    big = msgpack.encode({str(i): i for i in range(20)})
    assert all(is_map(packed) for packed in (msgpack.encode({}), msgpack.encode({"a": 1}), big))
    assert not any(is_map(packed) for packed in (b"", msgpack.encode([1]), msgpack.encode(1)))


def test_a_body_that_does_not_parse_is_named() -> None:
    assert parse("here", int, b"5") == 5
    with pytest.raises(DecodeError, match="^here: invalid literal"):
        parse("here", int, b"x")


ENGINES = [Vllm(), Sglang(), TrtLlm()]
GPU_STORE: dict[str, Any] = {
    "type": "BlockStored", "block_hashes": [1], "parent_block_hash": None, "token_ids": [1, 2],
    "block_size": 2, "lora_id": None,
}  # fmt: skip
FORMS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "map": lambda event: event,
    "array": lambda event: list(event.values()),
}


def events_of(engine: Any, *events: object) -> list[KvEvent]:
    return list(engine.decode([b"", bytes(8), msgpack.encode([1.0, list(events), 0])]).events)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: str(engine.name))
def test_an_unreadable_event_of_another_medium_stands_for_itself(engine: Any, form: str) -> None:
    known = FORMS[form](GPU_STORE)
    bad = FORMS[form]({**GPU_STORE, "token_ids": [1.5, 2], "medium": "cpu"})
    gone = FORMS[form]({"type": "BlockRemoved", "block_hashes": [[]], "medium": "Storage"})
    stored, unread, removed, again = events_of(engine, known, bad, gone, known)
    assert stored == again
    assert unread == UnknownEvent("BlockStored", "CPU")
    assert removed == UnknownEvent("BlockRemoved", "STORAGE")


@pytest.mark.parametrize("medium", [None, "GPU", "gpu"], ids=str)
@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: str(engine.name))
def test_an_unreadable_event_of_the_gpu_makes_the_batch_unreadable(engine: Any, medium: str | None) -> None:
    with pytest.raises(DecodeError, match="event 1"):
        events_of(engine, GPU_STORE, {**GPU_STORE, "token_ids": [1.5, 2], "medium": medium})
    with pytest.raises(DecodeError, match="event 1"):
        events_of(engine, GPU_STORE, {**GPU_STORE, "token_ids": [1.5, 2], "medium": ["CPU"]})


@pytest.mark.parametrize(("text", "medium"), [(None, GPU), ("", GPU), ("gpu", GPU), ("cpu", "CPU")])
@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: str(engine.name))
def test_media_are_named_in_capital_letters(engine: Any, text: str | None, medium: str) -> None:
    (event,) = events_of(engine, {**GPU_STORE, "medium": text})
    assert isinstance(event, BlocksStored)
    assert event.medium == medium


@pytest.mark.parametrize("engine", [Vllm(), Sglang(), TrtLlm()])
@pytest.mark.parametrize("is_array", [True, False])
def test_a_tier_that_was_emptied_leaves_the_gpu_alone(engine: Vllm | Sglang | TrtLlm, is_array: bool) -> None:
    def events(medium: str | None) -> list[KvEvent]:
        event = ["AllBlocksCleared", medium] if is_array else {"type": "AllBlocksCleared", "medium": medium}
        return list(engine.decode([b"", bytes(8), msgpack.encode([1.0, [event], 0])]).events)

    assert events(None) == events("GPU") == events("gpu") == [BlocksCleared()]
    assert events("cpu") == [UnknownEvent("AllBlocksCleared", "CPU")]
