"""Benchmark `make bench-index`: the cost of the index, in bytes and in time, beside its oracle in the same
run.

    own        each worker holds blocks of its own, in prompts of 256 blocks
    shared     all workers hold the same blocks, each under engine hashes of its own
    overlap    prompts held by all workers, by each to another depth, in half, not at all: the dearest
    apply      vLLM's payloads decoded, hashed and stored: runs of 64 blocks, single blocks and removals

The wheel is measured, which is compiled where there is a compiler. Each figure is the median of its rounds;
`.ratio` is that of the index to the oracle, round by round. Figures in bytes, and those that need a process
without other objects, have a process of their own.
"""

import gc
import json
import os
import statistics
import subprocess
import sys
import time
import tracemalloc
from array import array
from collections.abc import Callable, Iterator, Sequence

import msgspec

from engines.vllm import Vllm
from gateway.core.blocks import BlockHash, hash_blocks, root_hash
from gateway.core.kv_events import BlocksStored
from gateway.core.worker import WorkerId
from gateway.index.base import Index
from gateway.index.memory import MemoryIndex
from gateway.index.reference import ReferenceIndex
from loadtest.bench import rss_mb
from loadtest.extent import extent
from loadtest.report import Figure, median_of, publish

BLOCK_SIZE = 16
ROOT = root_hash("m")
RUN_BLOCKS = 64
PROMPT_BLOCKS = 256
NUM_BLOCKS = extent(20_480, 1_000_000)
NUM_WORKERS = 8
ROUNDS = extent(1, 5)
PROCESS_ROUNDS = extent(1, 3)
RUNS, SINGLES, LOOKUPS = extent(20, 1_000), extent(720, 10_000), extent(8, 500)
LOOKUPS_S = 0.1
OVERLAPS = extent(((8, (256,)),), ((8, (256, 2_048)), (64, (256, 2_048))))
"""Workers, and lengths of prompts in blocks."""
INDEXES: dict[str, Callable[[], Index]] = {"memory": MemoryIndex, "plain": ReferenceIndex}


def main() -> None:
    figures = [
        *memory_figures(),
        *overlap_figures(),
        *apply_figures(),
        *forget_figures(),
        *size_figures(),
    ]
    publish("bench_index", figures)


def beside(
    name: str, unit: str, goal: float | None, rounds: Sequence[tuple[float, float]], **how: bool
) -> list[Figure]:
    """Figure of the index, and its ratio to the oracle's."""
    values, ratios = [packed for packed, _ in rounds], [packed / plain for packed, plain in rounds]
    return [median_of(name, unit, goal, values, **how), median_of(f"{name}.ratio", "x", None, ratios)]


def in_process(measure: str, kind: str) -> list[float]:
    """Result of a function of this module, run in a process of its own."""
    code = f"import json, loadtest.bench_index as b; print(json.dumps(b.{measure}(b.INDEXES[{kind!r}]())))"
    asked = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    values: list[float] = json.loads(asked.stdout)
    return values


# contents --------------------------------------------------------------------------------------


def workers_of(index: Index, num: int) -> list[WorkerId]:
    workers = [WorkerId(f"w{i}") for i in range(num)]
    for worker in workers:
        index.add_worker(worker, ROOT, BLOCK_SIZE)
    return workers


def new_tokens(num_blocks: int) -> "array[int]":
    return array("I", os.urandom(num_blocks * BLOCK_SIZE * 4))


def new_names(num: int) -> list[int]:
    return array("Q", os.urandom(num * 8)).tolist()


def prompt_of(tokens: "array[int]") -> Iterator[BlocksStored]:
    """Events of a prompt as its prefill stores it, in runs."""
    parent = None
    for first in range(0, len(tokens), RUN_BLOCKS * BLOCK_SIZE):
        run = tokens[first : first + RUN_BLOCKS * BLOCK_SIZE]
        names = new_names(len(run) // BLOCK_SIZE)
        yield BlocksStored(names, parent, run, BLOCK_SIZE)
        parent = names[-1]


def store(index: Index, workers: Sequence[WorkerId], tokens: "array[int]") -> None:
    for worker in workers:
        for event in prompt_of(tokens):
            index.apply(worker, event)


def fill(index: Index, worker: WorkerId, num_blocks: int) -> None:
    """Fill a worker with prompts of its own, so that no two workers have a block in common."""
    for _ in range(0, num_blocks, PROMPT_BLOCKS):
        store(index, [worker], new_tokens(PROMPT_BLOCKS))


# bytes and pauses ------------------------------------------------------------------------------


def memory_figures() -> list[Figure]:
    figures = []
    for name, goal in (("own", 40), ("shared", 15)):
        counted, grown = zip(*(in_process(f"bytes_{name}", kind) for kind in INDEXES), strict=True)
        figures += beside(f"index.bytes_{name}", "bytes", goal, [counted])
        figures += beside(f"index.rss_{name}", "bytes", None, [grown])
    pauses = [
        (max(in_process("gc_pauses_ms", "memory")), max(in_process("gc_pauses_ms", "plain")))
        for _ in range(PROCESS_ROUNDS)
    ]
    return [*figures, *beside("index.worst_gc_pause_ms", "ms", 10, pauses)]


def bytes_own(index: Index) -> list[float]:
    workers = workers_of(index, NUM_WORKERS)
    prompts = range(0, NUM_BLOCKS // NUM_WORKERS, PROMPT_BLOCKS)
    return bytes_per_pair(index, workers, [[worker] for worker in workers for _ in prompts])


def bytes_shared(index: Index) -> list[float]:
    workers = workers_of(index, NUM_WORKERS)
    return bytes_per_pair(index, workers, [workers] * (NUM_BLOCKS // NUM_WORKERS // PROMPT_BLOCKS))


def bytes_per_pair(
    index: Index, workers: Sequence[WorkerId], prompts: Sequence[Sequence[WorkerId]]
) -> list[float]:
    """Bytes by (block, worker): allocations of all objects of the index, and growth of the process with the
    unused memory between them. A fill for each, since counting takes memory too."""
    before = rss_mb() * 1e6
    for holders in prompts:
        store(index, holders, new_tokens(PROMPT_BLOCKS))
    pairs = sum(map(index.num_blocks, workers))
    grown = (rss_mb() * 1e6 - before) / pairs
    tracemalloc.start()
    again = type(index)()
    workers_of(again, len(workers))
    for holders in prompts:
        store(again, holders, new_tokens(PROMPT_BLOCKS))
    counted = tracemalloc.get_traced_memory()[0] / pairs
    tracemalloc.stop()
    return [counted, grown]


def gc_pauses_ms(index: Index) -> list[float]:
    """Pauses of collections while the index fills, and of full ones once it has; earlier objects are
    frozen."""
    pauses: list[float] = []
    started = 0.0

    def watch(phase: str, info: dict[str, int]) -> None:
        nonlocal started
        if phase == "start":
            started = time.perf_counter()
        else:
            pauses.append((time.perf_counter() - started) * 1e3)

    gc.collect()
    gc.freeze()
    gc.callbacks.append(watch)
    for worker in workers_of(index, NUM_WORKERS):
        fill(index, worker, NUM_BLOCKS // NUM_WORKERS)
    for _ in range(3):
        gc.collect()
    return pauses


# lookups ---------------------------------------------------------------------------------------


def overlap_figures() -> list[Figure]:
    figures = []
    for num_workers, lengths in OVERLAPS:
        twins = [make() for make in INDEXES.values()]
        for index in twins:
            workers_of(index, num_workers)
        prompts = {num: new_prompts(twins, num_workers, num) for num in lengths}
        for num, asked in prompts.items():
            goal = (10 if num == 256 else 20) * (1 if num_workers == 8 else 3)
            rounds = [(dearest_us(twins[0], asked), dearest_us(twins[1], asked)) for _ in range(ROUNDS)]
            figures += beside(f"index.overlap{num}_{num_workers}w_us", "us", goal, rounds)
    return figures


def new_prompts(indexes: Sequence[Index], num_workers: int, num_blocks: int) -> list[list[BlockHash]]:
    """Hashes of prompts held by all, by each worker to another depth, by all in half, by none; and of one
    with an edge in the middle of every turn, as if each response had been reasoned about."""
    full, ragged, half, miss, turns = (new_tokens(num_blocks) for _ in range(5))
    workers = [WorkerId(f"w{i}") for i in range(num_workers)]
    for index in indexes:
        for i, worker in enumerate(workers):
            store(index, [worker], ragged[: num_blocks * (i + 1) // num_workers * BLOCK_SIZE])
        store(index, workers, full)
        store(index, workers, half[: num_blocks // 2 * BLOCK_SIZE])
        for end in range(RUN_BLOCKS, num_blocks + 1, RUN_BLOCKS):
            store(index, workers, turns[: end * BLOCK_SIZE] + new_tokens(RUN_BLOCKS // 8))
    return [hash_blocks(tokens, BLOCK_SIZE, ROOT) for tokens in (full, ragged, half, miss, turns)]


def dearest_us(index: Index, prompts: Sequence[Sequence[BlockHash]]) -> float:
    return max(lookup_us(index, [prompt]) for prompt in prompts)


def lookup_us(index: Index, prompts: Sequence[Sequence[BlockHash]]) -> float:
    """Mean of LOOKUPS, or of as many as LOOKUPS_S allows: the oracle takes up to a second for each."""
    started = time.process_time()
    for i in range(LOOKUPS):
        index.overlap(prompts[i % len(prompts)])
        if time.process_time() - started > LOOKUPS_S:
            break
    return (time.process_time() - started) / (i + 1) * 1e6


# events ----------------------------------------------------------------------------------------


def apply_figures() -> list[Figure]:
    runs, singles = run_payloads(), single_payloads()
    figures = []
    for name, goal, payloads, each in (
        ("index.apply_runs_blocks_per_s", 1e6, runs, RUN_BLOCKS),
        ("index.apply_single_events_per_s", 1e5, singles, 1),
    ):
        rounds = [
            tuple(each * len(payloads) / apply_s(make(), payloads) for make in INDEXES.values())
            for _ in range(ROUNDS)
        ]
        figures += beside(name, "1/s", goal, [(packed, plain) for packed, plain in rounds], is_floor=True)
    return figures


def apply_s(index: Index, payloads: Sequence[bytes]) -> float:
    engine, (worker,) = Vllm(), workers_of(index, 1)
    seq = (0).to_bytes(8, "big")
    started = time.process_time()
    for payload in payloads:
        for event in engine.decode([b"", seq, payload]).events:
            index.apply(worker, event)
    return time.process_time() - started


def payload_of(fields: dict[str, object]) -> bytes:
    """Payload of one event in one batch, as vLLM writes it from 0.24 on."""
    return msgspec.msgpack.encode([time.time(), [fields | {"medium": "GPU"}], 0])


def stored_fields(names: Sequence[int], parent: int | None) -> dict[str, object]:
    ids = [word % 150_000 for word in new_tokens(len(names))]
    return {
        "type": "BlockStored",
        "block_hashes": names,
        "parent_block_hash": parent,
        "token_ids": ids,
        "block_size": BLOCK_SIZE,
    }


def run_payloads() -> list[bytes]:
    payloads, parent = [], None
    for i in range(RUNS):
        names = new_names(RUN_BLOCKS)
        payloads.append(payload_of(stored_fields(names, parent if i % 4 else None)))
        parent = names[-1]
    return payloads


def single_payloads() -> list[bytes]:
    """Conversations of 64 blocks that grow by a block, each after its eighth removed again from its tail."""
    payloads: list[bytes] = []
    for _ in range(SINGLES // 72):
        names = new_names(RUN_BLOCKS)
        for parent, name in zip([None, *names], names, strict=False):
            payloads.append(payload_of(stored_fields([name], parent)))
        for name in names[: -RUN_BLOCKS // 8 - 1 : -1]:
            payloads.append(payload_of({"type": "BlockRemoved", "block_hashes": [name]}))
    return payloads


# forgetting and size ---------------------------------------------------------------------------


def forget_figures() -> list[Figure]:
    rounds = [in_process("forget_s", "memory") for _ in range(PROCESS_ROUNDS)]
    plain = in_process("forget_s", "plain")
    return [
        *beside("index.drop_1m_s", "s", 0.5, [(total, plain[0]) for total, _ in rounds]),
        *beside("index.drop_worst_stall_ms", "ms", 10, [(worst, plain[1]) for _, worst in rounds]),
    ]


def forget_s(index: Index, num_blocks: int = NUM_BLOCKS) -> list[float]:
    """Seconds to forget a worker with a million blocks, and the longest step in milliseconds."""
    first, *others = workers_of(index, NUM_WORKERS)
    fill(index, first, num_blocks)
    for worker in others:
        fill(index, worker, num_blocks // 100)
    steps = [time.perf_counter()]
    index.drop_worker(first)
    is_left = True
    while is_left:
        steps.append(time.perf_counter())
        is_left = index.sweep()
    steps.append(time.perf_counter())
    longest = max(end - start for start, end in zip(steps, steps[1:], strict=False))
    return [steps[-1] - steps[0], longest * 1e3]


def size_figures() -> list[Figure]:
    ratios = [in_process("larger_over_smaller", "memory")[0] for _ in range(2)]
    return [median_of("index.overlap_10m_over_1m", "x", 2, ratios)]


def larger_over_smaller(index: Index) -> list[float]:
    """Ratio of a lookup's time with ten million entries to that with one, in prompts that are not looked up
    twice."""
    workers, times = workers_of(index, NUM_WORKERS), []
    asked: list[list[BlockHash]] = []
    for num_blocks in (NUM_BLOCKS, 9 * NUM_BLOCKS):
        for worker in workers:
            asked += keep_some(index, worker, num_blocks // NUM_WORKERS)
        times.append(statistics.median(lookup_us(index, asked[-LOOKUPS:]) for _ in range(ROUNDS)))
    return [times[1] / times[0]]


def keep_some(index: Index, worker: WorkerId, num_blocks: int) -> list[list[BlockHash]]:
    """Fill a worker; the hashes of prompts all over the stored blocks."""
    kept = []
    for i in range(0, num_blocks, PROMPT_BLOCKS):
        tokens = new_tokens(PROMPT_BLOCKS)
        store(index, [worker], tokens)
        if i // PROMPT_BLOCKS % (num_blocks // PROMPT_BLOCKS // (LOOKUPS // NUM_WORKERS) or 1) == 0:
            kept.append(hash_blocks(tokens, BLOCK_SIZE, ROOT))
    return kept


if __name__ == "__main__":
    main()
