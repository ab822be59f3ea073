"""Wire format of SGLang, against payloads that each release's own structs encoded."""

import base64
import json
import shlex
from array import array
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import msgpack

from engines.sglang import ADAPTER_PATHS, BLOCK_SIZE, Sglang, _reader
from gateway.core.engine import EngineInfo, EngineMetrics, EventSource, ModelInfo
from gateway.core.kv_events import (
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    DecodeError,
    EventBatch,
    KvEvent,
    UnknownEvent,
)
from gateway.core.rendering import Rendering
from tests import DATA

CAPTURES = DATA / "sglang"
GOLDEN = {
    path.stem.removeprefix("kv_events-"): json.loads(path.read_text())
    for path in CAPTURES.glob("kv_events-*.json")
}
SGLANG = Sglang()

each_version = pytest.mark.parametrize("version", sorted(GOLDEN))


def decode(payload: bytes, seq: int = 0) -> EventBatch:
    return SGLANG.decode([b"", seq.to_bytes(8, "big"), payload])


def batches(version: str) -> dict[str, EventBatch]:
    return {
        batch["what"]: decode(base64.b64decode(batch["payload_b64"]), batch["seq"])
        for batch in GOLDEN[version]["batches"]
    }


def release(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def tokens(*ranges: tuple[int, int]) -> "array[int]":
    return array("I", [i for first, last in ranges for i in range(first, last)])


def stored(event: KvEvent) -> BlocksStored:
    assert isinstance(event, BlocksStored)
    return event


def names(events: Sequence[KvEvent]) -> list[int | bytes]:
    return [name for event in events if isinstance(event, BlocksRemoved) for name in event.engine_hashes]


@each_version
def test_pages_of_one_token_each_are_one_run(version: str) -> None:
    batch = batches(version)["forty pages of one token from the root"]
    (event,) = map(stored, batch.events)
    assert (batch.seq, batch.dp_rank, batch.ts) == (0, 0, 1795208255.0)
    assert (event.parent, event.block_size, event.medium, event.extra_keys) == (None, 1, "GPU", None)
    assert event.tokens == tokens((1000, 1040))
    assert len(event.engine_hashes) == len(set(event.engine_hashes)) == 40
    assert all(isinstance(name, int) and 0 <= name < 2**64 for name in event.engine_hashes)


@each_version
def test_a_split_node_is_removed_and_stored_again(version: str) -> None:
    reported = batches(version)
    (first,) = map(stored, reported["forty pages of one token from the root"].events)
    split = reported["the node is split at page 20, and another child stored behind it"].events
    again, child = (stored(event) for event in split if isinstance(event, BlocksStored))
    assert names(split) == list(again.engine_hashes) == list(first.engine_hashes)
    assert (child.parent, child.tokens) == (first.engine_hashes[19], tokens((2000, 2003)))


@each_version
def test_large_pages_are_stored_evicted_and_flushed(version: str) -> None:
    reported = batches(version)
    (pages,) = map(stored, reported["four pages of 16 from the root"].events)
    assert (pages.block_size, pages.tokens, len(pages.engine_hashes)) == (16, tokens((3000, 3064)), 4)
    assert list(reported["the last page evicted"].events) == [BlocksRemoved(pages.engine_hashes[3:])]
    assert list(reported["the cache flushed"].events) == [BlocksCleared()]
    assert reported["rank 3"].dp_rank == 3


@each_version
def test_the_first_of_a_pair_of_tokens_counts(version: str) -> None:
    (event,) = map(stored, batches(version)["EAGLE: two pages of pairs"].events)
    assert (event.tokens, event.block_size) == (tokens((5000, 5032)), 16)


@pytest.mark.parametrize("version", [v for v in sorted(GOLDEN) if release(v) >= (0, 5, 9)])
def test_pages_in_host_memory_are_offloaded(version: str) -> None:
    reported = batches(version)
    (event,) = map(stored, reported["two pages in host memory"].events)
    (pages,) = map(stored, reported["four pages of 16 from the root"].events)
    assert (event.medium, event.engine_hashes) == ("CPU_PINNED", pages.engine_hashes[:2])


@pytest.mark.parametrize("version", [v for v in sorted(GOLDEN) if release(v) >= (0, 5, 18)])
def test_a_salt_is_in_the_first_page(version: str) -> None:
    reported = batches(version)
    (first,) = map(stored, reported["three pages of a salted prompt"].events)
    (child,) = map(stored, reported["their child"].events)
    (plain,) = map(stored, reported["four pages of 16 from the root"].events)
    assert first.extra_keys == [["tenant-a"], None, None]
    assert (child.parent, child.extra_keys) == (first.engine_hashes[-1], None)
    assert set(first.engine_hashes).isdisjoint(plain.engine_hashes)


def test_an_adapter_is_in_each_page() -> None:
    (event,) = map(stored, batches("0.5.23")["two pages of an adapter"].events)
    assert event.extra_keys == [["adapter-a"], ["adapter-a"]]


def test_an_adapter_and_a_salt_are_read_together() -> None:
    event = {"type": "BlockStored", "block_hashes": [1, 2], "parent_block_hash": None, "token_ids": [5, 6]}
    event |= {"block_size": 1, "lora_id": None, "lora_name": "a", "cache_salt": "s"}
    (decoded,) = decode(msgpack.encode([1.0, [event]])).events
    assert stored(decoded).extra_keys == [["a", "s"], ["a"]]


def test_only_consecutive_runs_are_joined() -> None:
    def page(name: int, parent: int | None, medium: str = "GPU") -> list[Any]:
        return ["BlockStored", [name], parent, [name], 1, None, medium]

    reported: list[Any] = [
        page(1, None),
        page(2, 1),
        page(3, 1),
        page(4, 3, "DISK"),
        ["BlockRemoved", [-1]],
        page(5, 4),
        ["BlockMoved"],
        page(6, 5),
    ]
    events = decode(msgpack.encode([1.0, reported, 0])).events
    assert [event.engine_hashes for event in events if isinstance(event, BlocksStored)] == [
        [1, 2],
        [3],
        [4],
        [5],
        [6],
    ]
    assert events[3] == BlocksRemoved([2**64 - 1])
    assert events[5] == UnknownEvent("BlockMoved")


@given(st.data())
def test_decode_errors_in_one_pass_equals_event_by_event(data: st.DataObject) -> None:
    batch = data.draw(st.sampled_from(GOLDEN[data.draw(st.sampled_from(sorted(GOLDEN)))]["batches"]))
    payload = bytearray(base64.b64decode(batch["payload_b64"]))
    if data.draw(st.booleans()):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    outcomes: list[EventBatch | str] = []
    for read in (_reader.read, _reader._by_event):
        try:
            outcomes.append(read(7, bytes(payload)))
        except DecodeError as exc:
            outcomes.append(str(exc))
    assert outcomes[0] == outcomes[1]


@each_version
def test_a_truncated_payload_is_rejected(version: str) -> None:
    for batch in GOLDEN[version]["batches"]:
        payload = base64.b64decode(batch["payload_b64"])
        for length in range(len(payload)):
            with pytest.raises(DecodeError, match="sglang seq 4"):
                decode(payload[:length], seq=4)


@given(st.data())
def test_a_mutated_payload_is_decoded_or_rejected(data: st.DataObject) -> None:
    batch = data.draw(st.sampled_from(GOLDEN[data.draw(st.sampled_from(sorted(GOLDEN)))]["batches"]))
    payload = bytearray(base64.b64decode(batch["payload_b64"]))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert isinstance(decode(bytes(payload)), EventBatch)
    except DecodeError as exc:
        assert str(exc).startswith("sglang seq 0, ")


def test_replay_answers_are_read_with_and_without_a_topic() -> None:
    payload = msgpack.encode([1.0, [["AllBlocksCleared"]], 2])
    seq = (5).to_bytes(8, "big")
    for head in ([b""], [b"", b""]):
        assert SGLANG.decode_replay([*head, seq, payload]) == SGLANG.decode([b"", seq, payload])
        assert SGLANG.decode_replay([*head, b"\xff" * 8, b""]) is None


# /server_info ----------------------------------------------------------------------------------

EVENTS = '{"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:6557","topic":"kv"}'


def info(**fields: Any) -> EngineInfo:
    reported = {
        "model_path": "/models/m",
        "page_size": 1,
        "dp_size": 1,
        "kv_events_config": EVENTS,
        "disaggregation_mode": "null",
        "max_total_num_tokens": 1000,
        "internal_states": [{"memory_usage": {}}],
        "version": "0.5.23",
    }
    return SGLANG.parse_info(json.dumps(reported | fields).encode())


@pytest.mark.parametrize(
    ("fields", "max_running"),
    [
        ({"max_running_requests": 48}, 48),
        ({"max_running_requests": 48, "dp_size": 2}, None),
        (
            {
                "max_running_requests": 48,
                "dp_size": 2,
                "internal_states": [
                    {"effective_max_running_requests_per_dp": 24},
                    {"effective_max_running_requests_per_dp": 20},
                ],
            },
            20,
        ),
        ({"internal_states": "x", "max_running_requests": -1}, None),
        ({"internal_states": [1, {"effective_max_running_requests_per_dp": "x"}]}, None),
    ],
)
def test_the_concurrency_limit_of_a_rank_is_read(fields: dict[str, Any], max_running: int | None) -> None:
    assert info(**fields).max_running == max_running


def test_facts_are_read_from_the_server_info() -> None:
    assert info() == EngineInfo(
        version="0.5.23",
        ranks={0: EngineMetrics(block_size=1, num_gpu_blocks=1000, kv_cache_size_tokens=1000)},
        sources=(EventSource(0, "tcp://*:5557", "tcp://*:6557", "kv"),),
        rendering=Rendering("sglang", (0, 5, 23)),
    )
    assert SGLANG.parse_version(b'{"version":"0.5.23"}') == "0.5.23"
    assert SGLANG.parse_event_sources(b"{}") == ()


def test_each_rank_has_its_event_port() -> None:
    reported = info(dp_size=2, page_size=64)
    assert reported.sources == (
        EventSource(0, "tcp://*:5557", "tcp://*:6557", "kv"),
        EventSource(1, "tcp://*:5558", "tcp://*:6558", "kv"),
    )
    assert {rank: (m.block_size, m.num_gpu_blocks) for rank, m in reported.ranks.items()} == {
        0: (64, 15),
        1: (64, 15),
    }


def test_published_blocks_may_be_larger_than_pages() -> None:
    reported = info(page_size=16, kv_events={"block_size": 32, "dp_size": 2, "publisher": "zmq"})
    assert [m.block_size for m in reported.ranks.values()] == [32, 32]


@pytest.mark.parametrize(
    ("fields", "sources"),
    [
        ({"kv_events_config": None}, 0),
        ({"kv_events_config": '{"publisher":"null"}'}, 0),
        ({"kv_events_config": '{"publisher":"zmq"}'}, 1),
        ({"version": "0.5.5.post3"}, 0),  # its hashes are not of prefixes
        ({"version": "0.5.6"}, 1),
        ({"version": "0.5.10.post1", "dp_size": 2}, 2),
        ({"version": "0.5.9", "dp_size": 2}, 0),  # its ranks cannot be chosen
        ({"version": "0.0.0.dev0", "dp_size": 2}, 2),
        ({"version": None}, 1),
    ],
)
def test_usable_events_are_recognized(fields: dict[str, Any], sources: int) -> None:
    reported = info(**fields)
    assert reported.sources is not None
    assert len(reported.sources) == sources
    assert len(reported.ranks) == max(1, sources)


@pytest.mark.parametrize(("mode", "role"), [("prefill", "prefill"), ("decode", "decode"), ("null", None)])
def test_roles_are_read(mode: str, role: str | None) -> None:
    assert info(disaggregation_mode=mode).role == role


def test_an_older_version_is_read_without_a_role() -> None:
    rank, rendering = EngineMetrics(block_size=BLOCK_SIZE), Rendering("sglang", (0, 5, 10))
    assert SGLANG.parse_info(None) == EngineInfo(ranks={0: rank}, sources=(), rendering=rendering)


@pytest.mark.parametrize(
    ("version", "rules"),
    [
        ("0.5.10.post1", (0, 5, 10)),
        ("0.5.6", (0, 5, 10)),
        ("0.5.16", (0, 5, 16)),
        ("0.5.23", (0, 5, 23)),
        ("0.6.0", (0, 5, 23)),
        ("0.0.0.dev0", (0, 5, 23)),
        (None, (0, 5, 23)),
    ],
)
def test_prompts_are_rendered_by_the_nearest_version_that_is_known(
    version: str | None, rules: tuple[int, ...]
) -> None:
    rendering = info(version=version, reasoning_parser="qwen3").rendering
    assert rendering == Rendering("sglang", rules, "qwen3")


def test_an_unusable_event_configuration_is_named() -> None:
    with pytest.raises(DecodeError, match="sglang /server_info: kv_events_config: "):
        info(kv_events_config="{")


# metrics, models, flags ------------------------------------------------------------------------

PAGE = """\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type="unified",model_name="m",pp_rank="0",priority="",tp_rank="0"} 3.0
sglang:num_running_reqs{engine_type="unified",model_name="m",pp_rank="0",priority="1",tp_rank="0"} 1.0
sglang:num_queue_reqs{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 2.0
sglang:token_usage{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 0.25
sglang:prompt_tokens_total{model_name="m"} 900.0
sglang:cached_tokens_total{cache_source="device",model_name="m"} 300.0
sglang:cached_tokens_total{cache_source="host",model_name="m"} 30.0
"""


def test_metrics_are_read() -> None:
    assert SGLANG.parse_metrics(PAGE) == {
        0: EngineMetrics(3, 2, 0.25, prefix_cache_queries_total=900, prefix_cache_hits_total=330)
    }


def test_metrics_of_two_ranks_are_read() -> None:
    page = 'sglang:num_running_reqs{dp_rank="0"} 3.0\nsglang:num_running_reqs{dp_rank="1"} 4.0\n'
    assert SGLANG.parse_metrics(page + 'sglang:prompt_tokens_total{model_name="m"} 900.0\n') == {
        0: EngineMetrics(3),
        1: EngineMetrics(4),
    }


def test_models_with_an_adapter_are_read() -> None:
    body = b"""{"object":"list","data":[{"id":"m","root":"m","max_model_len":8192,"owned_by":"sglang"},
        {"id":"a","root":"/adapters/a","parent":"m","max_model_len":null}]}"""
    base, adapter = SGLANG.parse_models(body)
    assert base == ModelInfo("m", "m", None, 8192)
    assert adapter == ModelInfo("a", "/adapters/a", "m", None, "m:a", ADAPTER_PATHS)


def test_the_events_flag_is_one_shell_word_of_json() -> None:
    flag, value = shlex.split(SGLANG.flags.events)
    assert flag == "--kv-events-config"
    assert info(kv_events_config=value).sources == (EventSource(0, "tcp://*:5557", "tcp://*:6557"),)


def test_sglang_has_no_polled_events() -> None:
    with pytest.raises(DecodeError, match="no polling endpoint"):
        SGLANG.decode_poll(b"[]", 1, 0.0)


@pytest.mark.parametrize("field", ["dp_size", "kv_events"])
def test_too_many_ranks_are_rejected(field: str) -> None:
    size = 1_000_000_000
    with pytest.raises(DecodeError, match="data-parallel ranks"):
        info(**{field: size if field == "dp_size" else {"dp_size": size}})


def test_a_version_of_thousands_of_digits_is_none() -> None:
    assert info(version="9" * 5000 + ".1.1").version is None
