from array import array
from itertools import islice
from pathlib import Path

import pytest

from engines import ENGINES
from engines.sim.publisher import EventPublisher
from engines.sim.wire import seq_bytes
from gateway.core.blocks import root_hash
from gateway.core.kv_events import BlocksRemoved, BlocksStored, EventBatch
from gateway.core.worker import WorkerId
from gateway.index.memory import MemoryIndex
from loadtest.publisher import (
    BLOCK_SIZE,
    RUN_BLOCKS,
    RUNS_HELD,
    PayloadSource,
    read_prompts,
    sources_body,
    write_prompts,
)

VLLM = ENGINES["vllm"]
PROMPT = array("I", range(100, 100 + 3 * BLOCK_SIZE + 5))


def decoded(payload: bytes, seq: int = 0) -> EventBatch:
    return VLLM.decode([b"", seq_bytes(seq), payload])


def test_prompts_are_read_back_as_written(tmp_path: Path) -> None:
    write_prompts(tmp_path / "prompts", [PROMPT, array("I")])
    assert read_prompts(tmp_path / "prompts") == [PROMPT, array("I")]


def test_a_known_prompt_is_stored_by_its_full_blocks() -> None:
    (event,) = decoded(PayloadSource(0).stored(PROMPT)).events
    assert isinstance(event, BlocksStored)
    assert (event.parent, event.block_size) == (None, BLOCK_SIZE)
    assert event.tokens == PROMPT[: 3 * BLOCK_SIZE]
    assert len(set(event.engine_hashes)) == 3


def test_the_trickle_stores_and_after_a_while_removes_as_much() -> None:
    source, worker, index = PayloadSource(1), WorkerId("w"), MemoryIndex()
    index.add_worker(worker, root_hash("m"), BLOCK_SIZE)
    for payload in islice(source.trickle(), RUNS_HELD + 10):
        for event in decoded(payload).events:
            index.apply(worker, event)
    assert index.num_blocks(worker) == RUNS_HELD * RUN_BLOCKS
    applied = index.applied(worker)
    assert applied.num_orphans == applied.num_mismatched == applied.num_unknown_removals == 0


def test_the_first_run_is_removed_first() -> None:
    batches = [decoded(payload).events for payload in islice(PayloadSource(0).trickle(), RUNS_HELD + 1)]
    assert [len(events) for events in batches] == [*[1] * RUNS_HELD, 2]
    first, removed = batches[0][0], batches[-1][1]
    assert isinstance(first, BlocksStored)
    assert removed == BlocksRemoved(list(first.engine_hashes))


@pytest.mark.parametrize("other", [1, 2, 7])
def test_workers_name_their_blocks_differently(other: int) -> None:
    (mine,), (theirs,) = (decoded(PayloadSource(i).stored(PROMPT)).events for i in (0, other))
    assert isinstance(mine, BlocksStored) and isinstance(theirs, BlocksStored)
    assert not set(mine.engine_hashes) & set(theirs.engine_hashes)


async def test_the_engine_adapter_finds_the_event_endpoint() -> None:
    publisher = EventPublisher("127.0.0.1", "", 10)
    publisher.open(0, 0)
    try:
        (source,) = VLLM.parse_event_sources(sources_body(publisher))
        assert (source.dp_rank, source.endpoint, source.replay_endpoint) == (
            0,
            publisher.endpoint,
            publisher.replay_endpoint,
        )
    finally:
        publisher.close()


def test_other_workers_fill_the_cache_with_unshared_blocks() -> None:
    index = MemoryIndex()
    for number in range(2):
        worker, source = WorkerId(f"w{number}"), PayloadSource(number)
        index.add_worker(worker, root_hash("m"), BLOCK_SIZE)
        for payload in source.others(200):
            for event in decoded(payload).events:
                index.apply(worker, event)
        assert index.num_blocks(worker) == 192
    assert "blocks=384" in repr(index)
