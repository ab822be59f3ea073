"""Live messages of SGLang 0.5.23, beside golden payloads and the stand-in of other tests (`SglangWorker`).

A drift of either from the engine fails here: names of fields, types, and the order of removals.
"""

import base64
import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from msgspec import msgpack

from engines.sglang import Sglang
from gateway.core.blocks import root_hash
from gateway.core.kv_events import BlocksCleared, BlocksRemoved, BlocksStored
from gateway.core.worker import WorkerId
from gateway.index.memory import MemoryIndex
from tests import DATA
from tests.support.sglang_worker import SglangWorker

PAGE = 16
W = WorkerId("w:1")
Event = dict[str, Any]


def live() -> list[list[bytes]]:
    """Frames of a session with pages of 16 tokens, evictions, and a flush."""
    content, found = (DATA / "sglang" / "capture-0.5.23-page16.bin").read_bytes(), []
    for count in range(1, 1000):
        try:
            records = msgpack.decode(b"\xdc" + count.to_bytes(2, "big") + content)
        except msgspec.DecodeError:
            continue
        found = [list(frames) for _, _, frames in records]
        break
    assert found, "the capture does not split into records"
    return found


def events_of(payloads: list[bytes]) -> Iterator[Event]:
    for payload in payloads:
        _, events, _ = msgpack.decode(payload)
        yield from events


def live_events() -> list[Event]:
    return list(events_of([frames[2] for frames in live()]))


def golden_events() -> list[Event]:
    golden = json.loads((DATA / "sglang" / "kv_events-0.5.23.json").read_text())
    return list(events_of([base64.b64decode(batch["payload_b64"]) for batch in golden["batches"]]))


async def stand_in_events() -> list[Event]:
    """Events of the stand-in: two prompts that part, evicted, and a flush."""
    worker = await SglangWorker(PAGE).start()
    shared = list(range(5 * PAGE))
    worker.compute(0, shared + [7] * 3 * PAGE)
    worker.compute(0, shared + [8] * 2 * PAGE)
    worker.evict(0, 2 * PAGE)
    worker.flush(0)
    payloads = list(worker._kept[0])
    await worker.stop()
    return list(events_of(payloads))


def fields(events: list[Event]) -> dict[str, dict[str, set[str]]]:
    """Types of each field that is set, by tag."""
    found: dict[str, dict[str, set[str]]] = {}
    for event in events:
        there = found.setdefault(event["type"], {})
        for name, value in event.items():
            if value is not None:
                there.setdefault(name, set()).add(type(value).__name__)
    return found


def parents_of(events: list[Event]) -> dict[int, int | None]:
    """The page before each stored one, by their names."""
    parents: dict[int, int | None] = {}
    for event in events:
        if event["type"] == "BlockStored":
            names = event["block_hashes"]
            parents |= zip(names, [event.get("parent_block_hash"), *names], strict=False)
    return parents


def removals(events: list[Event]) -> list[list[int]]:
    return [event["block_hashes"] for event in events if event["type"] == "BlockRemoved"]


def nodes_of(events: list[Event]) -> list[list[int]]:
    """Pages that removals name in a row, each the one behind the page before it."""
    parents, nodes = parents_of(events), list[list[int]]()
    for names in removals(events):
        for i, name in enumerate(names):
            if i and parents[name] == names[i - 1]:
                nodes[-1].append(name)
            else:
                nodes.append([name])
    return nodes


def num_tail_first(events: list[Event]) -> int:
    """Neighbours in removals where the second page is the one before the first."""
    parents = parents_of(events)
    pairs = [pair for names in removals(events) for pair in pairwise(names)]
    return sum(parents[first] == second for first, second in pairs)


def test_golden_payloads_have_the_fields_of_the_engine() -> None:
    engine, golden = fields(live_events()), fields(golden_events())
    assert engine.keys() == golden.keys() == {"BlockStored", "BlockRemoved", "AllBlocksCleared"}
    for tag, there in engine.items():
        assert {name: golden[tag].get(name) for name in there} == there, tag


async def test_the_stand_in_has_the_fields_of_the_engine() -> None:
    engine, stand_in = fields(live_events()), fields(await stand_in_events())
    assert engine.keys() == stand_in.keys()
    for tag, there in stand_in.items():
        assert {name: engine[tag].get(name) for name in there} == there, tag


@pytest.mark.parametrize("source", ["engine", "stand-in"])
async def test_removals_name_the_pages_of_a_node_head_first(source: str) -> None:
    events = live_events() if source == "engine" else await stand_in_events()
    assert num_tail_first(events) == 0
    assert max(map(len, nodes_of(events))) > 2


async def test_the_stand_in_removes_leaves_before_their_parents() -> None:
    assert [len(node) for node in nodes_of(await stand_in_events())] == [2, 3, 3]


def test_the_live_session_is_indexed_without_a_lost_page() -> None:
    index, sglang, kinds = MemoryIndex(), Sglang(), set()
    index.add_worker(W, root_hash("m"), PAGE)
    for frames in live():
        for event in sglang.decode(frames).events:
            kinds.add(type(event))
            index.apply(W, event)
    assert kinds == {BlocksStored, BlocksRemoved, BlocksCleared}
    applied = index.applied(W)
    assert applied.num_stored > applied.num_removed > 60
    assert (applied.num_orphans, applied.num_unknown_removals, applied.num_mismatched) == (0, 0, 0)
