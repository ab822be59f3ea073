"""Payloads byte for byte as vLLM's encoders make them, and decoded by our adapter."""

import base64
import json
from array import array
from typing import Any

import msgspec
import pytest

from engines.sim.cache import AdapterBlocksStored
from engines.sim.wire import END_OF_REPLAY, EventEncoder, EventWire, seq_bytes
from engines.vllm import Vllm
from gateway.core.kv_events import BlocksCleared, BlocksRemoved, BlocksStored, KvEvent, UnknownEvent
from tests import DATA

GOLDEN = DATA / "vllm_kv_events"
ADAPTER = Vllm()


def golden(version: str) -> list[tuple[str, int, bytes]]:
    batches = json.loads((GOLDEN / f"vllm-{version}.json").read_text())["batches"]
    return [(each["what"], each["dp_rank"], base64.b64decode(each["payload_b64"])) for each in batches]


def as_ours(event: KvEvent) -> KvEvent:
    """Event as the cache emits it: the adapter beside the extra keys."""
    if not isinstance(event, BlocksStored):
        return event
    adapter = "adapter-a" if event.extra_keys and event.extra_keys[0] == ["adapter-a"] else None
    fields = {name: getattr(event, name) for name in BlocksStored.__dataclass_fields__}
    return AdapterBlocksStored(**fields, adapter=adapter)


@pytest.mark.parametrize(
    ("version", "form"),
    [("0.23.0", "array"), ("0.24.0", "map"), ("0.26.0", "map"), ("0.31.0", "map"), ("0.32.0", "map")],
)
def test_bytes_are_those_of_vllm(version: str, form: EventWire) -> None:
    encoder = EventEncoder(form, ["adapter-a"])
    compared = 0
    for name, dp_rank, payload in golden(version):
        batch = ADAPTER.decode([b"", seq_bytes(0), payload])
        assert encoder.encode(batch.ts, [as_ours(event) for event in batch.events], dp_rank) == payload, name
        compared += 1
    assert compared == 9


def test_the_array_form_has_every_field_and_the_map_only_set_ones() -> None:
    event = BlocksStored([1], None, array("I", [5, 6]), 2, spec_kind="full_attention")
    (in_array,) = _events("array", event)
    assert in_array == [
        "BlockStored",
        [1],
        None,
        [5, 6],
        2,
        None,
        "GPU",
        None,
        [None],
        0,
        "full_attention",
        None,
    ]
    (in_map,) = _events("map", event)
    assert list(in_map) == [
        "type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium",
        "lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind",
    ]  # fmt: skip


def _events(form: EventWire, *events: KvEvent) -> list[Any]:
    ts, found, dp_rank = msgspec.msgpack.decode(EventEncoder(form).encode(2.5, events, 3))
    assert (ts, dp_rank) == (2.5, 3)
    return list(found)


@pytest.mark.parametrize("form", ["map", "array"])
def test_our_adapter_reads_the_payloads(form: EventWire) -> None:
    run = AdapterBlocksStored(
        [b"a" * 32, b"b" * 32], b"p" * 32, array("I", range(4)), 2, [("lo", "salt"), ("lo",)],
        spec_kind="full_attention", adapter="lo",
    )  # fmt: skip
    events: list[KvEvent] = [BlocksRemoved([7]), run, BlocksCleared()]
    payload = EventEncoder(form, ["other", "lo"]).encode(1.0, events, 0)
    removed, stored, cleared = ADAPTER.decode([b"", seq_bytes(9), payload]).events
    assert (removed, cleared) == (BlocksRemoved([7]), BlocksCleared())
    assert isinstance(stored, BlocksStored)
    assert (list(stored.engine_hashes), stored.parent, stored.tokens) == (
        run.engine_hashes,
        run.parent,
        run.tokens,
    )
    assert [list(keys or ()) for keys in stored.extra_keys or ()] == [["lo", "salt"], ["lo"]]


def test_no_event_is_unknown_to_our_adapter() -> None:
    with pytest.raises(TypeError):
        EventEncoder().encode(0.0, [UnknownEvent("x")], 0)


def test_a_replay_ends_with_minus_one() -> None:
    assert END_OF_REPLAY == b"\xff" * 8
    assert seq_bytes(258) == b"\0\0\0\0\0\0\1\2"
