"""Benchmark `make bench-redis`: the tree in Redis, on a real server of this machine, beside the index in
memory.

    lookup   a prompt held by eight workers in runs of 64 blocks, looked up one after another: hashes packed,
    one
             call, reply decoded; `server` is the server's own time for it (INFO commandstats)
    ragged   the same where each worker holds it to another depth and one has a hole: the dearest of them
    apply    runs of 64 blocks of a worker's own as its engine publishes them, from tokens into the tree
    bytes    growth of the server's memory, per (block, worker); of prompts of 256 blocks per worker
    edges    blocks per edge after conversations that grow by single blocks, branch, and lose their end

Then the figures of `bench_replicas.py`. The wheel is measured. `.ratio` is to the index in memory in the same
run (time to time).
"""

import asyncio
import statistics
import time
from array import array
from collections.abc import Sequence
from typing import Any

import uvloop

from gateway.core.blocks import BlockHash, hash_blocks, root_hash
from gateway.core.event_stream import StreamState
from gateway.core.kv_events import BlocksRemoved
from gateway.core.worker import WorkerId
from gateway.index.memory import MemoryIndex
from gateway.index.redis_tree.index import RadixIndex
from gateway.index.redis_tree.pipeline import Pipeline, open_pipeline, pack
from gateway.index.redis_tree.tree import Pipelines, RadixTree
from gateway.redis.embedded import EmbeddedServer
from gateway.runtime import process_limits
from loadtest.bench_index import BLOCK_SIZE, new_tokens, prompt_of
from loadtest.bench_replicas import replica_figures
from loadtest.extent import extent
from loadtest.report import Figure, median_of, publish

ROOT = root_hash("m")
WORKERS = [WorkerId(f"http://10.0.0.{i}:8000") for i in range(8)]
ROUNDS = extent(1, 5)
LOOKUPS = extent(20, 500)
APPLIED_PROMPTS = extent(20, 400)
SIZED_PROMPTS = extent(5, 100)
TURNS, CONVERSATIONS = extent(2, 8), extent(20, 50)


def main() -> None:
    process_limits.prepare()
    server = EmbeddedServer()
    server.start()
    try:
        figures = uvloop.run(_measure(str(server.socket)))
        figures += uvloop.run(replica_figures(server.url))
    finally:
        server.stop()
    publish("bench_redis", figures)


async def _measure(path: str) -> list[Figure]:
    pipeline = await open_pipeline({"path": path}, 5)
    figures = [
        *await lookup_figures(pipeline),
        *await apply_figures(pipeline),
        *await size_figures(pipeline),
        await edge_figure(pipeline),
    ]
    pipeline.close()
    return figures


async def new_index(pipeline: Pipeline, num_workers: int) -> RadixIndex:
    await pipeline.ask(pack(b"FLUSHALL"))
    index = RadixIndex(lambda root: RadixTree(Pipelines(pipeline, pipeline), "kvgate", root))
    for worker in WORKERS[:num_workers]:
        index.add_worker(worker, ROOT, BLOCK_SIZE)
        index.publication.publish(worker, 1, StreamState.EXACT)
    return index


# lookups ---------------------------------------------------------------------------------------


async def lookup_figures(pipeline: Pipeline) -> list[Figure]:
    index = await new_index(pipeline, len(WORKERS))
    figures: list[Figure] = []
    for num, goal in ((256, 150), (2_048, 300)):
        full, ragged = new_tokens(num), new_tokens(num)
        for i, worker in enumerate(WORKERS):
            store(index, worker, full)
            store(index, worker, ragged[: num * (i + 1) // len(WORKERS) * BLOCK_SIZE], has_hole=i == 3)
        await index.publication.flush()
        for name, tokens, goals in (("", full, (goal, 100)), ("_ragged", ragged, (None, None))):
            hashes = hash_blocks(tokens, BLOCK_SIZE, ROOT)
            assert await index.trees.of(ROOT).overlap(hashes) == index.overlap(hashes)
            taken = [await lookup_us(index, pipeline, hashes) for _ in range(ROUNDS)]
            own = memory_us(index.own, hashes)
            p50s, servers = zip(*taken, strict=True)
            figures.append(median_of(f"redis.lookup{num}{name}_p50_us", "us", goals[0], p50s))
            figures.append(
                median_of(f"redis.lookup{num}{name}_p50_us.ratio", "x", None, [us / own for us in p50s])
            )
            figures.append(median_of(f"redis.lookup{num}{name}_server_us", "us", goals[1], servers))
    return figures


def store(index: RadixIndex, worker: WorkerId, tokens: "array[int]", *, has_hole: bool = False) -> None:
    names: list[Any] = []
    for event in prompt_of(tokens):
        index.apply(worker, event)
        names += event.engine_hashes
    if has_hole:
        index.apply(worker, BlocksRemoved([names[len(names) // 3]]))


async def lookup_us(
    index: RadixIndex, pipeline: Pipeline, hashes: Sequence[BlockHash]
) -> tuple[float, float]:
    """Median time of a lookup here, and the mean in the server."""
    tree, taken = index.trees.of(ROOT), []
    await pipeline.ask(pack(b"CONFIG", b"RESETSTAT"))
    for _ in range(LOOKUPS):
        started = time.perf_counter()
        await tree.overlap(hashes)
        taken.append(time.perf_counter() - started)
    info = (await pipeline.ask(pack(b"INFO", b"commandstats"))).decode()
    line = next(line for line in info.splitlines() if line.startswith("cmdstat_evalsha_ro:"))
    return statistics.median(taken) * 1e6, float(line.split("usec_per_call=")[1].split(",")[0])


def memory_us(index: MemoryIndex, hashes: Sequence[BlockHash]) -> float:
    started = time.perf_counter()
    for _ in range(LOOKUPS):
        index.overlap(hashes)
    return (time.perf_counter() - started) / LOOKUPS * 1e6


# events ----------------------------------------------------------------------------------------


async def apply_figures(pipeline: Pipeline) -> list[Figure]:
    rates, ratios = [], []
    for _ in range(ROUNDS):
        index, memory = await new_index(pipeline, 1), MemoryIndex()
        memory.add_worker(WORKERS[0], ROOT, BLOCK_SIZE)
        events = [event for _ in range(APPLIED_PROMPTS) for event in prompt_of(new_tokens(256))]
        started = time.perf_counter()
        for event in events:
            memory.apply(WORKERS[0], event)
        alone = time.perf_counter() - started
        started = time.perf_counter()
        for first in range(0, len(events), 64):
            for event in events[first : first + 64]:
                index.apply(WORKERS[0], event)
            await index.publication.flush()
        taken = time.perf_counter() - started
        rates.append(APPLIED_PROMPTS * 256 / taken)
        ratios.append(taken / alone)
    return [
        median_of("redis.apply_blocks_per_s", "1/s", 400_000, rates, is_floor=True),
        median_of("redis.apply_blocks_per_s.ratio", "x", None, ratios),
    ]


# size ------------------------------------------------------------------------------------------


async def size_figures(pipeline: Pipeline) -> list[Figure]:
    """Blocks of a worker's own, the dearest, and blocks that all hold."""
    figures = []
    for name, goal, is_shared in (("redis.bytes", 40, False), ("redis.bytes_shared", None, True)):
        index = await new_index(pipeline, len(WORKERS))
        await index.publication.flush()
        before = await used(pipeline)
        for _ in range(SIZED_PROMPTS):
            tokens = new_tokens(256)
            for worker in WORKERS:
                store(index, worker, tokens if is_shared else new_tokens(256))
            await index.publication.flush()
        pairs = sum(index.num_blocks(worker) for worker in WORKERS)
        figures.append(median_of(name, "bytes", goal, [(await used(pipeline) - before) / pairs]))
    return figures


async def used(pipeline: Pipeline) -> int:
    info = (await pipeline.ask(pack(b"INFO", b"memory"))).decode()
    return int(next(line for line in info.splitlines() if line.startswith("used_memory:")).split(":")[1])


async def edge_figure(pipeline: Pipeline) -> Figure:
    """Blocks per edge after a prefix that all share, turns of 24 blocks that are published one by one; every
    fourth conversation branches off the one before it in its middle, and the oldest lose their end."""
    index = await new_index(pipeline, len(WORKERS))
    prefix, before = new_tokens(32), new_tokens(0)
    ends: list[list[int]] = []
    for number in range(CONVERSATIONS):
        worker = WORKERS[number % len(WORKERS)]
        tokens = before[: len(before) // 2 // BLOCK_SIZE * BLOCK_SIZE] if number % 4 == 3 else prefix[:]
        tokens = tokens + new_tokens(24 * TURNS)
        named: list[int] = []
        for event in prompt_of(tokens):
            for i in range(len(event.engine_hashes)):
                await say_one(index, worker, event, i)
                named.append(event.engine_hashes[i])  # type: ignore[arg-type]
        await index.publication.flush()
        ends.append(named[-40:][::-1])
        if number >= len(WORKERS) * 2:
            old = number - len(WORKERS) * 2
            for name in ends[old]:
                index.apply(WORKERS[old % len(WORKERS)], BlocksRemoved([name]))
        before = tokens
    await index.publication.flush()
    slots = index.publication.writers[ROOT].slots
    blocks = sum(len(slot.where) for slot in slots) / sum(slot.num_edges for slot in slots)
    return median_of("redis.blocks_per_edge", "blocks", 16, [blocks], is_floor=True)


async def say_one(index: RadixIndex, worker: WorkerId, event: Any, i: int) -> None:
    names, size = event.engine_hashes, event.block_size
    parent = names[i - 1] if i else event.parent
    single = type(event)(names[i : i + 1], parent, event.tokens[i * size : (i + 1) * size], size)
    index.apply(worker, single)
    if i % 4 == 0:
        await index.publication.flush()
    await asyncio.sleep(0)


if __name__ == "__main__":
    main()
