"""Golden payloads of each version as a later one might send them: what is known is read as before.

Longer arrays and unknown fields, unknown kinds of events between known ones, and maps where arrays were. vLLM
went each of these ways between 0.9 and 0.33.
"""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import msgpack

from engines import ENGINES
from gateway.core.kv_events import EventBatch, UnknownEvent
from tests import DATA

GOLDEN = {
    "vllm": sorted((DATA / "vllm_kv_events").glob("vllm-*.json")),
    "sglang": sorted((DATA / "sglang").glob("kv_events-*.json")),
}
FILES = [(engine, path) for engine, paths in GOLDEN.items() for path in paths]
NUM_KNOWN = {"vllm": {"BlockStored": 20, "BlockRemoved": 8}, "sglang": {"BlockStored": 10, "BlockRemoved": 3}}
"""Places of an array that some version gives a meaning, and a few more; the tag is one of them."""
RANKS = {"vllm": "data_parallel_rank", "sglang": "attn_dp_rank"}
UNKNOWN = "BlockMoved"

Batch = list[Any]


def longer(engine: str, batch: Batch) -> object:
    """Items behind the last known place, and fields of unknown names."""

    def grown(event: Any) -> Any:
        if isinstance(event, dict):
            return {**event, "unknown": {"k": [1]}}
        missing = NUM_KNOWN[engine].get(event[0], 8) - len(event)
        return [*event, *[None] * missing, "unknown", {"k": [1]}]

    ts, events, *rest = batch
    return [ts, [grown(event) for event in events], *rest, "unknown"]


def with_unknown_kinds(engine: str, batch: Batch) -> object:
    ts, events, *rest = batch
    unknown = {"type": UNKNOWN, "to": "CPU"} if isinstance(events[0], dict) else [UNKNOWN, 1, "CPU"]
    return [ts, [each for event in events for each in (unknown, event)], *rest]


def as_a_map(engine: str, batch: Batch) -> object:
    return dict(zip(("ts", "events", RANKS[engine]), batch, strict=False)) | {"unknown": 1}


def events_of(batch: EventBatch) -> list[object]:
    """Known events; runs that unknown ones divide are joined or not, so blocks stand one by one."""
    blocks: list[object] = []
    for event in batch.events:
        if isinstance(event, UnknownEvent):
            assert event.tag == UNKNOWN
        elif hasattr(event, "engine_hashes") and hasattr(event, "tokens"):
            size = event.block_size
            for i, name in enumerate(event.engine_hashes):
                keys = event.extra_keys[i] if event.extra_keys else None
                blocks.append((name, event.tokens[i * size : (i + 1) * size], size, keys, event.medium))
        else:
            blocks.append(event)
    return blocks


@pytest.mark.parametrize("drift", [longer, with_unknown_kinds, as_a_map])
@pytest.mark.parametrize(("engine", "path"), FILES, ids=[path.stem for _, path in FILES])
def test_known_events_are_read_as_before(
    engine: str, path: Path, drift: Callable[[str, Batch], object]
) -> None:
    num_unknown = 0
    for golden in json.loads(path.read_text())["batches"]:
        payload = base64.b64decode(golden["payload_b64"])
        batch = msgpack.decode(payload)
        batch = list(batch.values()) if isinstance(batch, dict) else batch
        if not batch[1]:
            continue
        before = ENGINES[engine].decode([b"", bytes(8), payload])
        after = ENGINES[engine].decode([b"", bytes(8), msgpack.encode(drift(engine, batch))])
        assert events_of(after) == events_of(before), golden["what"]
        assert (after.dp_rank, after.ts) == (before.dp_rank, before.ts)
        num_unknown += sum(isinstance(event, UnknownEvent) for event in after.events)
    assert (num_unknown > 0) is (drift is with_unknown_kinds)
