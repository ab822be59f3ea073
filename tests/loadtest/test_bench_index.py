from engines.vllm import Vllm
from gateway.core.worker import WorkerId
from gateway.index.memory import MemoryIndex
from gateway.index.reference import ReferenceIndex
from loadtest import bench_index as bench

W = WorkerId("w0")


def applied(payloads: list[bytes]) -> MemoryIndex:
    index = MemoryIndex()
    bench.workers_of(index, 1)
    for payload in payloads:
        for event in Vllm().decode([b"", bytes(8), payload]).events:
            index.apply(W, event)
    return index


def test_all_events_of_the_payloads_are_placed() -> None:
    payloads = bench.run_payloads()[:8]
    assert applied(payloads).num_blocks(W) == 8 * bench.RUN_BLOCKS
    index = applied(bench.single_payloads()[:144])
    counts = index.applied(W)
    assert (counts.num_stored, counts.num_removed) == (128, 16)
    assert (counts.num_orphans, counts.num_mismatched, counts.num_unknown_removals) == (0, 0, 0)


def test_prompts_overlap_as_they_are_named() -> None:
    indexes: list[MemoryIndex | ReferenceIndex] = [MemoryIndex(), ReferenceIndex()]
    for index in indexes:
        bench.workers_of(index, 2)
    full, ragged, half, miss, turns = bench.new_prompts(indexes, 2, 256)
    for index in indexes:
        depths = [sorted(index.overlap(prompt).values()) for prompt in (full, ragged, half, miss, turns)]
        assert depths == [[256, 256], [128, 256], [128, 128], [], [256, 256]]


def test_bytes_are_counted_by_block_and_worker() -> None:
    index = MemoryIndex()
    workers = bench.workers_of(index, 2)
    counted, _ = bench.bytes_per_pair(index, workers, [workers, workers])
    assert 12 < counted < 100


def test_dropping_is_timed_step_by_step() -> None:
    total_s, longest_ms = bench.forget_s(MemoryIndex(), 1_000)
    assert 0 < longest_ms <= total_s * 1e3
