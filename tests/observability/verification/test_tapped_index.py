from gateway.core.blocks import hash_blocks, root_hash, tokens_of
from gateway.core.kv_events import BlocksStored, KvEvent
from gateway.core.worker import WorkerId
from gateway.index.memory import MemoryIndex
from gateway.observability.verification.tapped_index import TappedIndex

W, ROOT = WorkerId("w:1"), root_hash("root")
EVENT = BlocksStored([1], None, tokens_of([5] * 4), 4)


def test_events_are_reported_after_they_are_applied() -> None:
    index = MemoryIndex()
    heard: list[tuple[WorkerId, KvEvent, int]] = []
    overheard = TappedIndex(
        index, lambda worker, event: heard.append((worker, event, index.num_blocks(worker)))
    )
    overheard.add_worker(W, ROOT, 4)
    overheard.apply(W, EVENT)
    assert heard == [(W, EVENT, 1)]
    assert index.holds(W, hash_blocks(EVENT.tokens, 4, ROOT))
    assert overheard.applied(W).num_stored == 1
    overheard.reset_worker(W)
    assert index.num_blocks(W) == 0
    overheard.drop_worker(W)
    assert not index.holds(W, [])
    assert "MemoryIndex" in repr(overheard)
