"""Wire formats of all vLLM versions, against payloads that their own encoders made."""

import base64
import json
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import msgpack

from engines.vllm import StoredMap, _batch, _batch_by_event
from engines.wire import END_OF_REPLAY
from gateway.core.blocks import Tokens
from gateway.core.kv_events import (
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    DecodeError,
    EventBatch,
    KvEvent,
    UnknownEvent,
)
from tests import DATA
from tests.support.vllm_captures import VLLM, capture, published

GOLDEN = sorted((DATA / "vllm_kv_events").glob("*.json"), key=lambda path: path.stem)
VERSIONS = {path.stem.removeprefix("vllm-"): json.loads(path.read_text()) for path in GOLDEN}

each_version = pytest.mark.parametrize("version", VERSIONS)


def frames(payload: bytes, seq: int = 0) -> list[bytes]:
    return [b"kv", seq.to_bytes(8, "big"), payload]


def decode(payload: object, seq: int = 0) -> EventBatch:
    return VLLM.decode(frames(msgpack.encode(payload), seq))


def decode_event(event: object) -> KvEvent:
    (decoded,) = decode([1.0, [event], 0]).events
    return decoded


def stored(event: KvEvent) -> BlocksStored:
    assert isinstance(event, BlocksStored)
    return event


def release(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


# golden payloads: the content of each batch, by version -----------------------------------------

BIG = [11152204218671497666, 7395708861904091962, 42, 2**64 - 1]
RAW = [b"\x01" * 32, b"\x02" * 32]


def run(start: int, length: int) -> Tokens:
    return array("I", range(start, start + length))


def expected(version: str) -> list[tuple[float, int, list[KvEvent]]]:
    """Timestamp, DP rank and events of the nine batches, as this version can express them."""
    at = release(version)
    kind = "full_attention" if at >= (0, 23) else None

    def block(
        hashes: Sequence[int | bytes], parent: int | None, tokens: "array[int]", **more: Any
    ) -> KvEvent:
        return BlocksStored(hashes, parent, tokens, 16, **{"spec_kind": kind, **more})

    lora = [["adapter-a"]] if at >= (0, 16) else [["lora:1"]]
    salt = [["tenant-a"], None] if at >= (0, 19) else None
    tier = "CPU" if at >= (0, 11) else "GPU"
    window = {"group_idx": 1, "spec_kind": "sliding_window", "window": 128} if kind else {}
    batches: list[tuple[int, list[KvEvent]]] = [
        (0, [block(BIG, None, run(1000, 64))]),
        (0, [block([77], 2**64 - 1, run(2000, 16))]),
        (0, [BlocksRemoved([77]), block([78], 2**64 - 1, run(2100, 16))]),
        (0, [block([501], None, run(1000, 16), extra_keys=lora)]),
        (0, [block([601, 602], None, run(1000, 32), extra_keys=salt)]),
        (0, [block(BIG[:1], None, run(1000, 16), medium=tier)]),
        (0, [block([701], None, run(1000, 16), **window)]),
        (3, [block(RAW, None, run(1000, 32)), BlocksRemoved(RAW[1:])]),
        (0, [BlocksCleared()]),
    ]
    return [(1795208255.0 + seq, rank, events) for seq, (rank, events) in enumerate(batches)]


@each_version
def test_golden_batches_are_decoded(version: str) -> None:
    batches = VERSIONS[version]["batches"]
    assert len(batches) == 9
    for batch, (ts, dp_rank, events) in zip(batches, expected(version), strict=True):
        decoded = VLLM.decode(frames(base64.b64decode(batch["payload_b64"]), batch["seq"]))
        assert (decoded.seq, decoded.ts, decoded.dp_rank) == (batch["seq"], ts, dp_rank), batch["what"]
        assert list(decoded.events) == events, batch["what"]


@each_version
def test_a_truncated_golden_payload_is_rejected(version: str) -> None:
    for batch in VERSIONS[version]["batches"]:
        payload = base64.b64decode(batch["payload_b64"])
        for length in range(len(payload)):
            with pytest.raises(DecodeError, match="vllm seq 4"):
                VLLM.decode(frames(payload[:length], seq=4))


@given(st.data())
def test_a_mutated_golden_payload_is_decoded_or_rejected(data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(sorted(VERSIONS)))
    batch = data.draw(st.sampled_from(VERSIONS[version]["batches"]))
    payload = bytearray(base64.b64decode(batch["payload_b64"]))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    decode_or_refuse(bytes(payload))


@given(st.data())
def test_decode_errors_in_one_pass_equals_event_by_event(data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(sorted(VERSIONS)))
    payload = bytearray(
        base64.b64decode(data.draw(st.sampled_from(VERSIONS[version]["batches"]))["payload_b64"])
    )
    if data.draw(st.booleans()):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    assert _outcome(_batch, bytes(payload)) == _outcome(_batch_by_event, bytes(payload))


def _outcome(read: Callable[[int, bytes], EventBatch], payload: bytes) -> EventBatch | str:
    try:
        return read(7, payload)
    except DecodeError as exc:
        return str(exc)


# live captures ----------------------------------------------------------------------------------


def test_a_live_session_is_decoded() -> None:
    batches = published("session_bs128.bin")
    assert [batch.seq for batch in batches] == [0, 1, 2, 3, 4, 5]
    assert {batch.dp_rank for batch in batches} == {0}
    assert [batch.ts for batch in batches] == sorted(batch.ts for batch in batches)
    first = BlocksStored(BIG[:2], None, run(100, 256), 128, spec_kind="full_attention")
    child, prompt, generated, salted = (stored(batch.events[0]) for batch in batches[1:5])
    assert list(batches[0].events) == [first]
    assert (child.engine_hashes, child.parent, child.tokens) == (
        [1435777317871313889],
        BIG[1],
        run(1000, 128),
    )
    assert (prompt.engine_hashes, prompt.parent) == ([15352586978720686920], None)
    assert (generated.parent, len(generated.tokens)) == (prompt.engine_hashes[0], 128)
    assert (salted.extra_keys, salted.tokens) == ([["tenantA"], None], first.tokens)
    assert set(salted.engine_hashes).isdisjoint(first.engine_hashes)
    assert list(batches[5].events) == [BlocksCleared(), first]


def test_a_replay_equals_the_published_batches() -> None:
    replay = [
        VLLM.decode_replay(parts) for source, parts in capture("session_bs128.bin") if source == "replay"
    ]
    assert replay.pop() is None
    assert replay == published("session_bs128.bin")  # digests too


def test_eviction_removes_tail_first_before_the_new_store() -> None:
    batches = published("evict_bs32.bin")
    held: list[list[int | bytes]] = []
    for batch, num_removed in zip(batches, [0, 0, 9, 16], strict=True):
        *removed, last = batch.events
        assert len(removed) == num_removed
        for event in removed:
            assert isinstance(event, BlocksRemoved)
            (gone,) = event.engine_hashes
            assert gone == held[0].pop()
            held = [run for run in held if run]
        store = stored(last)
        assert (store.parent, store.block_size, len(store.tokens)) == (None, 32, 512)
        held.append(list(store.engine_hashes))


# forms ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("event", [["AllBlocksCleared"], {"type": "AllBlocksCleared"}])
def test_a_batch_is_an_array_or_a_map(event: object) -> None:
    as_array = decode([2.5, [event], 3], seq=9)
    as_map = decode({"ts": 2.5, "events": [event], "data_parallel_rank": 3, "new": 1}, seq=9)
    for batch in (as_array, as_map):
        assert (batch.seq, batch.ts, batch.dp_rank) == (9, 2.5, 3)
        assert list(batch.events) == [BlocksCleared()]
    assert as_array.digest != as_map.digest


def test_a_batch_without_a_rank() -> None:
    assert decode([1, []]).dp_rank is None
    assert decode({"ts": 1, "events": []}).dp_rank is None


def test_both_event_forms_in_one_batch_with_unknown_fields_are_decoded() -> None:
    array_form: list[object] = [
        "BlockStored",
        [5],
        None,
        [1, 2],
        2,
        None,
        "GPU",
        None,
        [None],
        0,
        "mamba",
        4,
        "LOCAL",
        "tier",
        "session",
        "NEW",
        {},
    ]
    map_form = {"type": "BlockRemoved", "block_hashes": [5], "new": "NEW", "session_id": "s"}
    assert list(decode([1.0, [array_form, map_form], 0, "NEW"]).events) == [
        BlocksStored([5], None, array("I", [1, 2]), 2, spec_kind="mamba", window=4),
        BlocksRemoved([5]),
    ]


@pytest.mark.parametrize(
    ("fields", "medium"),
    [
        ({}, "GPU"),
        ({"medium": "cpu"}, "CPU"),
        ({"medium": "STORAGE"}, "STORAGE"),
        ({"medium": "STORAGE", "locality": "LOCAL", "ownership": "a"}, "STORAGE"),
        ({"medium": "STORAGE", "locality": "REMOTE"}, "STORAGE@"),
        ({"medium": "STORAGE", "locality": "REMOTE", "ownership": "a"}, "STORAGE@a"),
    ],
)
def test_tiers_follow_from_medium_and_reach(fields: dict[str, object], medium: str) -> None:
    removed = {"type": "BlockRemoved", "block_hashes": [5]} | fields
    assert decode_event(removed) == BlocksRemoved([5], medium)
    assert stored(decode_event(store_map(**fields))).medium == medium


@pytest.mark.parametrize("event", [["BlockMoved", 1, 2], {"type": "BlockMoved", "to": "CPU"}])
def test_an_unknown_tag_is_an_unknown_event(event: object) -> None:
    batch = decode([1.0, [event, ["AllBlocksCleared"]], 0])
    assert list(batch.events) == [UnknownEvent("BlockMoved"), BlocksCleared()]


@pytest.mark.parametrize(
    "event",
    [
        ["BlockStored", [5, b"h"], None, [], 0, None, "CPU"],
        {
            "type": "BlockStored",
            "block_hashes": [5, b"h"],
            "token_ids": None,
            "block_size": None,
            "medium": "CPU",
        },
    ],
)
def test_a_placeholder_store_has_no_tokens_and_block_size_0(event: object) -> None:
    assert decode_event(event) == BlocksStored([5, b"h"], None, array("I"), 0, medium="CPU")


def store_map(**fields: object) -> dict[str, object]:
    return {"type": "BlockStored", "block_hashes": [1, 2], "token_ids": [7, 8], "block_size": 1} | fields


@pytest.mark.parametrize(
    ("fields", "extra_keys"),
    [
        ({}, None),
        ({"extra_keys": [None, None]}, None),
        ({"extra_keys": [[], False]}, None),
        ({"lora_name": "a"}, [["a"], ["a"]]),
        ({"lora_id": 4, "lora_name": None}, [["lora:4"], ["lora:4"]]),
        ({"lora_id": 4, "lora_name": "a"}, [["a"], ["a"]]),
        ({"lora_name": "a", "extra_keys": [["a", "salt"], ["a"]]}, [["a", "salt"], ["a"]]),
        ({"extra_keys": [["a", ["image", 12]], None]}, [["a", ["image", 12]], None]),
        ({"extra_keys": [[b"\x01\x02", 3, None], None]}, [[b"\x01\x02", 3, None], None]),
        ({"extra_keys": [[1.5, {"a": 1}], None]}, [[msgpack.encode(1.5), msgpack.encode({"a": 1})], None]),
    ],
)
def test_extra_keys_are_decoded(fields: dict[str, object], extra_keys: object) -> None:
    assert stored(decode_event(store_map(**fields))).extra_keys == extra_keys


DEEP: list[Any] = []
for _ in range(20):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("event", "where"),
    [
        (store_map(block_hashes=["x"]), "block_hashes"),
        (store_map(block_hashes=None), "block_hashes"),
        (store_map(block_hashes=[-1]), "block_hashes"),
        (store_map(block_hashes=[True]), "block_hashes"),
        (store_map(token_ids=["x"]), "token_ids"),
        (store_map(token_ids=[True]), "token_ids"),
        (store_map(token_ids=[-1]), "event 1"),
        (store_map(token_ids=[2**32]), "event 1"),
        (store_map(block_size=-16), "block_size"),
        (store_map(parent_block_hash=1.5), "parent_block_hash"),
        (store_map(extra_keys=["a"]), "extra_keys"),
        (store_map(extra_keys=[DEEP]), "extra_keys"),
        ({"type": "BlockRemoved"}, "block_hashes"),
        ({"type": 7}, "type"),
        ({}, "type"),
        ([], "event 1"),
        ([7], "event 1"),
        (["BlockStored"], "event 1"),
        (["BlockStored", [1], None, ["x"]], r"\[3\]\[0\]"),
        (None, "event 1"),
        (True, "event 1"),
    ],
)
def test_a_malformed_event_is_rejected_with_name_and_position(event: object, where: str) -> None:
    with pytest.raises(DecodeError, match=f"vllm seq 12, event 1: .*{where}|vllm seq 12, {where}: "):
        decode([1.0, [["AllBlocksCleared"], event], 0], seq=12)


@pytest.mark.parametrize(
    "payload", [None, 1, [], [1.0], ["x", []], [float("nan"), []], [1.0, None], [1.0, [], -1], {"ts": 1.0}]
)
def test_a_malformed_batch_is_rejected(payload: object) -> None:
    with pytest.raises(DecodeError, match="vllm seq 12, batch: "):
        decode(payload, seq=12)


@pytest.mark.parametrize("parts", [[], [b""], [b"", b"1" * 8], [b"", b"1" * 7, b"\x92\x01\x90"], [b""] * 4])
def test_malformed_frames_are_rejected(parts: list[bytes]) -> None:
    with pytest.raises(DecodeError, match="vllm event: expected"):
        VLLM.decode(parts)


def test_endless_nesting_is_rejected() -> None:
    with pytest.raises(DecodeError):
        VLLM.decode(frames(msgpack.encode([1.0, [store_map()], 0])[:-1] + b"\x91" * 100_000))


scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats()
values = st.recursive(
    scalars | st.text(max_size=4) | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)
known_fields = st.sampled_from(["type", *StoredMap.__struct_fields__])
tags = st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", "New"])


def decode_or_refuse(payload: bytes) -> None:
    try:
        assert isinstance(VLLM.decode(frames(payload)), EventBatch)
    except DecodeError as exc:
        assert str(exc).startswith("vllm seq 0, ")


@given(tags, st.dictionaries(known_fields, values), st.lists(values, max_size=12))
def test_any_content_is_decoded_or_rejected(tag: str, fields: dict[str, Any], items: list[Any]) -> None:
    decode_or_refuse(msgpack.encode([1.0, [{"type": tag} | fields], 0]))
    decode_or_refuse(msgpack.encode([1.0, [[tag, *items]], 0]))
    decode_or_refuse(msgpack.encode(items))
    decode_or_refuse(msgpack.encode(fields))


@given(st.binary(max_size=200))
def test_a_payload_of_random_bytes_is_decoded_or_rejected(payload: bytes) -> None:
    decode_or_refuse(payload)


# replay -----------------------------------------------------------------------------------------

BATCH = msgpack.encode([1.0, [["AllBlocksCleared"]], 2])


@pytest.mark.parametrize("head", [[b"", b"kv@topic"], [b""]], ids=["from 0.26", "before"])
def test_replay_answers_of_both_forms(head: list[bytes]) -> None:
    seq = (5).to_bytes(8, "big")
    assert VLLM.decode_replay([*head, seq, BATCH]) == VLLM.decode([b"kv@topic", seq, BATCH])
    assert VLLM.decode_replay([*head, END_OF_REPLAY, b""]) is None


@pytest.mark.parametrize("parts", [[], [b"", b""], [b""] * 5, [b"", b"short", BATCH], [b"", b"\0" * 8, b"x"]])
def test_malformed_replay_answers_are_rejected(parts: list[bytes]) -> None:
    with pytest.raises(DecodeError):
        VLLM.decode_replay(parts)


def test_a_replay_request_is_readable_by_the_engine() -> None:
    assert VLLM.replay_request(258) == [b"", b"\0\0\0\0\0\0\x01\x02"]


def test_events_of_newer_versions_are_read_as_far_as_they_are_known() -> None:
    """Fields of 0.32 and 0.33 and of open changes, maps in place of arrays, longer arrays, unknown tags."""
    stored = {
        "type": "BlockStored",
        "block_hashes": [11, 12],
        "parent_block_hash": None,
        "token_ids": [1, 2, 3, 4],
        "block_size": 2,
        "lookahead_token_ids": [5],
        "session_id": "s-1",
        "future": {"deep": [1, {"x": None}]},
    }
    array_event = ["BlockRemoved", [11], "GPU", 0, None, None, {"reason": "evicted"}, "more"]
    unknown = {"type": "BlockPinned", "block_hashes": [11]}
    for batch in (
        [1.0, [stored, array_event, unknown, ["BlockMoved", 1]], 0, "more", {"publisher": "x"}],
        {"ts": 1.0, "events": [stored, array_event, unknown, ["BlockMoved", 1]], "snapshot": True},
    ):
        first, *rest = decode(batch).events
        assert isinstance(first, BlocksStored) and list(first.engine_hashes) == [11, 12]
        assert isinstance(rest[0], BlocksRemoved)
        assert rest[1:] == [UnknownEvent("BlockPinned"), UnknownEvent("BlockMoved")]


def test_a_heartbeat_is_a_batch_without_events() -> None:
    publisher = bytes(range(16))
    beat = VLLM.decode([b"kv", (9).to_bytes(8, "big") + publisher, msgpack.encode([1.0, []])])
    assert (beat.seq, list(beat.events)) == (9, [])
