"""Live messages of SGLang 0.5.23 and 0.5.10.post1, beside golden payloads and the stand-in of other tests
(`SglangWorker`).

A drift of either from the engine fails here: names or places of fields, types, and the order of removals.
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

EVICTIONS = "0.5.23-page16"
"""Session with pages of 16 tokens, evictions, and a flush."""
SEVERAL = "0.5.23-adapters-salts-ranks"
"""Sessions with an adapter and two salts, and with two ranks; each message has its session beside it."""
ARRAYS = "0.5.10.post1-page1"
"""Two prompts of a session with pages of one token, and their answers."""
GOLDEN_VERSIONS = {EVICTIONS: "0.5.23", SEVERAL: "0.5.23", ARRAYS: "0.5.9"}
"""Golden payloads of the same wire."""
SESSIONS = {
    EVICTIONS: ["pub"],
    SEVERAL: ["adapters and salts", "rank 0", "rank 1"],
    ARRAYS: ["pub"],
}


def live(capture: str = EVICTIONS, session: str | None = None) -> list[list[bytes]]:
    """Frames of a capture, or of one of its sessions."""
    content, found = (DATA / "sglang" / f"capture-{capture}.bin").read_bytes(), []
    for count in range(1, 1000):
        try:
            records = msgpack.decode(b"\xdc" + count.to_bytes(2, "big") + content)
        except msgspec.DecodeError:
            continue
        found = [list(frames) for source, _, frames in records if session in (None, source)]
        break
    assert found, "the capture does not split into records"
    return found


def events_of(payloads: list[bytes]) -> Iterator[Event]:
    """Events of payloads; those of arrays are keyed by place."""
    for payload in payloads:
        _, events, _ = msgpack.decode(payload)
        for event in events:
            yield event if isinstance(event, dict) else dict(zip(PLACES, event, strict=False))


PLACES = ["type", *map(str, range(1, 12))]


def live_events(capture: str = EVICTIONS) -> list[Event]:
    return list(events_of([frames[2] for frames in live(capture)]))


def golden_events(version: str = "0.5.23") -> list[Event]:
    golden = json.loads((DATA / "sglang" / f"kv_events-{version}.json").read_text())
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


@pytest.mark.parametrize("capture", GOLDEN_VERSIONS)
def test_golden_payloads_have_the_fields_of_the_engine(capture: str) -> None:
    engine, golden = fields(live_events(capture)), fields(golden_events(GOLDEN_VERSIONS[capture]))
    assert golden.keys() == {"BlockStored", "BlockRemoved", "AllBlocksCleared"}
    assert engine.keys() == (golden.keys() if capture == EVICTIONS else {"BlockStored"})
    for tag, there in engine.items():
        assert {name: golden[tag].get(name, set()) & types for name, types in there.items()} == there, tag


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


def indexed(frames_of_each: list[list[bytes]]) -> tuple[MemoryIndex, set[type]]:
    """An index of one worker with all these events, and their kinds."""
    index, sglang, kinds = MemoryIndex(), Sglang(), set()
    page = max(event["block_size"] for event in live_blocks(frames_of_each))
    index.add_worker(W, root_hash("m"), page)
    for frames in frames_of_each:
        for event in sglang.decode(frames).events:
            kinds.add(type(event))
            index.apply(W, event)
    return index, kinds


def live_blocks(frames_of_each: list[list[bytes]]) -> Iterator[Event]:
    for event in events_of([frames[2] for frames in frames_of_each]):
        if event["type"] == "BlockStored":
            yield {"block_size": event.get("block_size") or event["4"]}


@pytest.mark.parametrize(
    ("capture", "session"), [(capture, each) for capture, some in SESSIONS.items() for each in some]
)
def test_live_sessions_are_indexed_without_a_lost_page(capture: str, session: str) -> None:
    index, kinds = indexed(live(capture, session))
    assert kinds == ({BlocksStored, BlocksRemoved, BlocksCleared} if capture == EVICTIONS else {BlocksStored})
    applied = index.applied(W)
    assert applied.num_stored > applied.num_removed
    assert (applied.num_removed > 60) is (capture == EVICTIONS)
    assert (applied.num_orphans, applied.num_unknown_removals, applied.num_mismatched) == (0, 0, 0)


@pytest.mark.parametrize("rank", [0, 1])
def test_messages_name_the_rank_of_their_session(rank: int) -> None:
    assert {Sglang().decode(frames).dp_rank for frames in live(SEVERAL, f"rank {rank}")} == {rank}


def test_one_prompt_under_two_salts_and_two_adapters_is_as_many_blocks() -> None:
    """The engine names a salt in the first page of a prompt, and an adapter in each of its pages."""
    frames = live(SEVERAL, "adapters and salts")
    runs = [each for one in frames for each in Sglang().decode(one).events if isinstance(each, BlocksStored)]
    firsts = [run for run in runs if run.extra_keys]
    named = [(keys, run.extra_keys[-1]) for run in firsts if run.extra_keys for keys in run.extra_keys[:1]]
    assert sorted({str(first) for first, _ in named}) == ["['adapter-a']", "['s1']", "['s2']"], named
    assert all((last == first) is (first == ["adapter-a"]) for first, last in named)
    index, _ = indexed(frames)
    assert index.num_blocks(W) == sum(len(run.engine_hashes) for run in runs)
