"""Wire format of TensorRT-LLM, as its sources describe it; see tests/data/trtllm/SOURCES.md."""

import json
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import msgpack

from engines.trtllm import BLOCK_SIZE, TrtLlm
from engines.trtllm_polled import NO_TOKEN
from gateway.core.engine import EngineInfo, EngineMetrics, ModelInfo
from gateway.core.kv_events import (
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    DecodeError,
    EventBatch,
    KvEvent,
    UnknownEvent,
)

TRTLLM = TrtLlm()
SEQ = (3).to_bytes(8, "big")


# published -------------------------------------------------------------------------------------


def published(*events: object) -> EventBatch:
    return TRTLLM.decode([b"", SEQ, msgpack.encode([1795208255.5, events, 1])])


def test_a_published_batch_is_decoded() -> None:
    stored = {
        "type": "BlockStored",
        "block_hashes": [7, 2**64 - 1],
        "parent_block_hash": 6,
        "token_ids": [1, 2, 3, 4],
        "block_size": 2,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
    }
    batch = published(stored, {"type": "BlockRemoved", "block_hashes": [7], "medium": "GPU"})
    assert (batch.seq, batch.ts, batch.dp_rank) == (3, 1795208255.5, 1)
    assert list(batch.events) == [
        BlocksStored([7, 2**64 - 1], 6, array("I", [1, 2, 3, 4]), 2),
        BlocksRemoved([7]),
    ]
    assert list(published({"type": "AllBlocksCleared"}, ["AllBlocksCleared"], ["New"]).events) == [
        BlocksCleared(),
        BlocksCleared(),
        UnknownEvent("New"),
    ]


@pytest.mark.parametrize(
    ("fields", "keys", "ids"),
    [
        ({"lora_id": 4}, [["lora:4"]], [1, 2]),
        ({"lora_id": 4, "lora_name": "a"}, [["a"]], [1, 2]),
        ({"token_ids": ["ab", 2**40]}, None, [NO_TOKEN, NO_TOKEN]),  # an image's
    ],
)
def test_blocks_with_more_than_text_match_no_text(fields: dict[str, Any], keys: Any, ids: list[int]) -> None:
    event = {"type": "BlockStored", "block_hashes": [-1], "parent_block_hash": None, "token_ids": [1, 2]}
    (stored,) = published(event | {"block_size": 2} | fields).events
    assert stored == BlocksStored([2**64 - 1], None, array("I", ids), 2, keys)


def test_a_replay_is_decoded() -> None:
    payload = msgpack.encode([1.0, [{"type": "AllBlocksCleared"}], 0])
    assert TRTLLM.decode_replay([b"", b"topic", SEQ, payload]) == TRTLLM.decode([b"topic", SEQ, payload])
    assert TRTLLM.decode_replay([b"", b"", b"\xff" * 8, b""]) is None
    assert TRTLLM.replay_request(3) == [b"", SEQ]


# polled ----------------------------------------------------------------------------------------


def block(name: int | str, *tokens: int, level: int = 0, extra: int = 0) -> dict[str, Any]:
    ids = [{"type": "unique_token", "token_id": t, "token_extra_id": extra} for t in tokens]
    return {"type": "stored_block", "block_hash": name, "tokens": ids, "cache_level": level, "priority": 35}


def polled(*data: dict[str, Any], first: int = 0, **fields: Any) -> list[EventBatch]:
    events = [{"event_id": first + i, "data": d, "window_size": 8192, **fields} for i, d in enumerate(data)]
    return TRTLLM.decode_poll(json.dumps(events).encode(), 2, 12.5)


def stored(*blocks: dict[str, Any], parent: int | str | None = None, **more: Any) -> dict[str, Any]:
    return {"type": "stored", "parent_hash": parent, "blocks": list(blocks), **more}


def events(*data: dict[str, Any]) -> list[KvEvent]:
    return [event for batch in polled(*data) for event in batch.events]


def test_each_polled_event_has_its_own_number() -> None:
    batches = polled(
        {"type": "created", "num_blocks_per_cache_level": [100, 10]},
        stored(block(7, 1, 2), block(8, 3, 4)),
        {"type": "removed", "block_hashes": [8]},
        first=4,
    )
    assert [(batch.seq, batch.ts, batch.dp_rank) for batch in batches] == [(n, 12.5, None) for n in (4, 5, 6)]
    assert list(batches[0].events) == [BlocksCleared()]
    assert list(batches[1].events) == [BlocksStored([7, 8], None, array("I", [1, 2, 3, 4]), 2)]
    assert list(batches[2].events) == [BlocksRemoved([8]), BlocksRemoved([8], "CPU")]
    assert polled() == []


def test_a_partial_block_is_ignored() -> None:
    assert events(stored(block(7, 1, 2), block(8, 3))) == [BlocksStored([7], None, array("I", [1, 2]), 2)]
    assert events(stored(block(8, 3), parent=7)) == []


def test_blocks_of_another_size_are_counted() -> None:
    larger = BlocksStored([7], None, array("I", [1, 2, 3]), 3)
    assert events(stored(block(7, 1, 2, 3))) == [larger]
    assert events(stored(block(7, 1, 2, 3), block(8, 4))) == [larger]
    assert events(stored(block(7, 1), block(8, 2))) == [BlocksStored([7, 8], None, array("I", [1, 2]), 1)]
    assert events(stored()) == []


def test_cache_levels_are_media() -> None:
    assert events(stored(block(7, 1, 2), block(8, 3, 4, level=1), parent=6)) == [
        BlocksStored([7], 6, array("I", [1, 2]), 2),
        BlocksStored([8], 7, array("I", [3, 4]), 2, medium="CPU"),
    ]
    level = {"type": "event_diff", "old_value": 0, "new_value": 1}
    priority = {"type": "event_diff", "old_value": 35, "new_value": 50}
    assert events({"type": "updated", "block_hash": 7, "cache_level": level, "priority": None}) == [
        BlocksStored([7], None, array("I"), 0, medium="CPU"),
        BlocksRemoved([7]),
    ]
    assert events({"type": "updated", "block_hash": 7, "cache_level": None, "priority": priority}) == []
    same = {"type": "event_diff", "old_value": 1, "new_value": 2}
    assert events({"type": "updated", "block_hash": 7, "cache_level": same}) == []


def test_extra_keys_of_a_block_are_read() -> None:
    assert events(stored(block("0af3", 1, 2), parent="09", lora_name="a")) == [
        BlocksStored([b"0af3"], b"09", array("I", [1, 2]), 2, [["a"]])
    ]
    assert events(stored(block(7, 1, 2, extra=9), block(8, 3, 4), lora_id=1)) == [
        BlocksStored([7, 8], None, array("I", [1, 2, 3, 4]), 2, [["lora:1", (9, 9)], ["lora:1"]])
    ]
    assert events(stored(block(7, 1, 2), block(8, 3, 4, extra=9))) == [
        BlocksStored([7, 8], None, array("I", [1, 2, 3, 4]), 2, [None, [(9, 9)]])
    ]


def test_unknown_kinds_of_events_are_reported() -> None:
    assert events({"type": "moved"}) == [UnknownEvent("moved")]


def test_attention_dp_is_rejected_with_the_reason() -> None:
    assert len(polled(stored(block(7, 1, 2)), attention_dp_rank=0)) == 1
    with pytest.raises(DecodeError, match="attention DP"):
        polled(stored(block(7, 1, 2)), attention_dp_rank=1)


@pytest.mark.slow
@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=3),
        lambda x: (
            st.lists(x)
            | st.dictionaries(
                st.sampled_from(
                    ["event_id", "data", "type", "blocks", "block_hash", "tokens", "parent_hash"]
                ),
                x,
            )
        ),
    )
)
def test_any_answer_is_decoded_or_rejected(answer: Any) -> None:
    try:
        assert isinstance(TRTLLM.decode_poll(json.dumps(answer).encode(), 2, 0.0), list)
    except DecodeError as exc:
        assert str(exc).startswith("trtllm /kv_cache_events: ")


# the rest --------------------------------------------------------------------------------------


def test_the_block_size_is_read_from_a_step() -> None:
    steps = [
        {"iter": 1, "kvCacheStats": {"tokensPerBlock": 64, "maxNumBlocks": 100, "usedNumBlocks": 3}},
        {"iter": 2},
    ]
    reported = TRTLLM.parse_info(json.dumps(steps).encode())
    assert reported == EngineInfo(ranks={0: EngineMetrics(block_size=64, num_gpu_blocks=100)})
    usual = EngineInfo(ranks={0: EngineMetrics(block_size=BLOCK_SIZE)})
    for body in (None, b"", b"[]", b'["a step as text"]', b"# TYPE http_requests_total counter\n"):
        assert TRTLLM.parse_info(body) == usual
    with pytest.raises(DecodeError, match="trtllm /metrics: "):
        TRTLLM.parse_info(b"[1]")


def test_metrics_are_read() -> None:
    labels = '{engine_type="trtllm",model_name="m"}'
    page = "".join(
        f"trtllm_{name}{labels} {value}\n"
        for name, value in {
            "num_requests_running": 3.0,
            "num_requests_waiting": 2.0,
            "kv_cache_utilization": 0.5,
            "kv_cache_tokens_per_block": 32.0,
            "kv_cache_max_blocks": 1000.0,
            "prompt_tokens_total": 900.0,
            "prompt_cached_tokens_total": 300.0,
        }.items()
    )
    assert TRTLLM.parse_metrics(page) == {
        0: EngineMetrics(3, 2, 0.5, 32, 1000, None, 900, 300),
    }
    config = 'trtllm_kv_cache_config_info{enable_block_reuse="True",model_name="m",page_size="64"} 1.0'
    assert TRTLLM.parse_metrics(config) == {0: EngineMetrics(0, 0, block_size=64)}
    assert TRTLLM.parse_metrics(page + config)[0].block_size == 32
    assert TRTLLM.parse_metrics(f"trtllm_kv_cache_utilization{labels} 0.5") == {0: EngineMetrics(0, 0, 0.5)}


def test_models_and_version_are_read() -> None:
    body = b'{"object":"list","data":[{"id":"m","object":"model","created":1,"owned_by":"tensorrt_llm"}]}'
    assert TRTLLM.parse_models(body) == (ModelInfo("m"),)
    assert TRTLLM.parse_version(b'{"version":"1.2.0"}') == "1.2.0"
    with pytest.raises(DecodeError, match="does not report"):
        TRTLLM.parse_event_sources(b"{}")
