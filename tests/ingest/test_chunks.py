"""Large events applied in portions equal the whole."""

from array import array

import pytest

from gateway.core.blocks import hash_blocks, root_hash
from gateway.core.kv_events import (
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    KvEvent,
    UnknownEvent,
    num_blocks,
)
from gateway.core.worker import WorkerId
from gateway.index.memory import MemoryIndex
from gateway.ingest.chunks import PORTION_BLOCKS, portions

W, ROOT, SIZE = WorkerId("w:1"), root_hash("m"), 4
LARGE = 2 * PORTION_BLOCKS + 7


def stored(num: int, **fields: object) -> BlocksStored:
    tokens = fields.pop("tokens", array("I", range(num * SIZE)))
    return BlocksStored(range(num), None, tokens, SIZE, **fields)  # type: ignore[arg-type]


def index(*events: KvEvent) -> MemoryIndex:
    index = MemoryIndex()
    index.add_worker(W, ROOT, SIZE)
    for event in events:
        index.apply(W, event)
    return index


@pytest.mark.parametrize(
    "event", [stored(1), stored(PORTION_BLOCKS), BlocksRemoved([1, 2]), BlocksCleared(), UnknownEvent("x")]
)
def test_small_events_pass_unchanged(event: KvEvent) -> None:
    assert list(portions([event])) == [event]
    assert 1 <= num_blocks(event) <= PORTION_BLOCKS


@pytest.mark.parametrize("extra", [None, [["salt"]] * LARGE, [["salt"]] + [None] * (LARGE - 1), [["first"]]])
def test_a_large_prompt_is_stored_as_the_whole(extra: list[list[str]] | None) -> None:
    event = stored(LARGE, extra_keys=extra)
    parts = list(portions([event]))
    assert [num_blocks(part) for part in parts] == [PORTION_BLOCKS, PORTION_BLOCKS, 7]
    hashes = hash_blocks(event.tokens, SIZE, ROOT, extra)
    for each in (index(event), index(*parts)):
        assert each.overlap(hashes) == {W: LARGE}
        assert each.num_blocks(W) == LARGE


def test_many_removals_equal_the_whole() -> None:
    removed = BlocksRemoved(range(7, LARGE))
    parts = list(portions([removed]))
    assert len(parts) == 2
    rest = index(stored(LARGE), *parts)
    assert rest.num_blocks(W) == 7
    assert rest.applied(W).num_removed == LARGE - 7


def test_a_large_store_by_hash_alone_stays_one_event() -> None:
    event = stored(LARGE, tokens=array("I"), medium="CPU")
    both = index(stored(LARGE), *portions([event]))
    assert both.applied(W).num_stored == 2 * LARGE
    assert both.applied(W).num_orphans == 0


def test_an_event_that_does_not_fit_is_counted_once() -> None:
    event = stored(LARGE, tokens=array("I", range(5)))
    assert list(portions([event])) == [event]
    assert index(*portions([event])).applied(W).num_mismatched == 1


def test_a_large_store_of_masked_blocks_equals_the_whole() -> None:
    masked = BlocksStored(
        range(7, LARGE), None, array("I", range(LARGE * SIZE)), SIZE, None, "GPU", 1, "sliding_window", 9
    )
    parts = list(portions([masked]))
    assert [num_blocks(part) for part in parts] == [PORTION_BLOCKS, PORTION_BLOCKS]
    hashes = hash_blocks(masked.tokens, SIZE, ROOT)
    for each in (index(stored(LARGE), masked), index(stored(LARGE), *parts)):
        assert (each.overlap(hashes), each.overlap(hashes, 8)) == ({W: LARGE}, {})
