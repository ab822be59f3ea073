"""KV events of one fake worker, published by a process of its own.

`python -m loadtest.publisher FILE INDEX NUM [OTHERS]`: FILE holds the prompts that the workers' caches have
(`write_prompts`); worker INDEX of NUM holds every NUM-th, and beside them OTHERS blocks. They are published
at once as vLLM writes them, so a subscriber that comes later has them replayed. Then a steady trickle goes
on, stores and removals of an engine at work, so that its ingest is part of the gateway's CPU time. Its first
line of output is the body of /kv_event_sources.
"""

import asyncio
import sys
import time
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from engines.sim.publisher import EventPublisher
from engines.sim.wire import EventEncoder
from gateway.core.blocks import Tokens
from gateway.core.kv_events import BlocksRemoved, BlocksStored, EngineHash, KvEvent
from gateway.runtime.tasks import stop_event

HOST = "127.0.0.1"
BLOCK_SIZE = 16
BATCHES_PER_S = 20
RUN_BLOCKS = 16
"""Blocks of one stored run of the trickle: a prompt of 256 tokens."""
OTHER_BLOCKS = 64
RUNS_HELD = 32
"""Runs of the trickle in the cache; an older one is evicted for each new one."""
BUFFER_BATCHES = 100_000


def write_prompts(path: Path, prompts: Sequence[Tokens]) -> None:
    path.write_bytes(msgspec.msgpack.encode([tokens.tobytes() for tokens in prompts]))


def read_prompts(path: Path) -> list[Tokens]:
    return [array("I", data) for data in msgspec.msgpack.decode(path.read_bytes(), type=list[bytes])]


class PayloadSource:
    """Payloads of one worker's stream; engine hashes are numbers that no other worker gives."""

    def __init__(self, index: int) -> None:
        self._next_name = (index + 1) << 48
        self._encode = EventEncoder().encode
        self._held: deque[Sequence[EngineHash]] = deque()

    def stored(self, tokens: Tokens) -> bytes:
        """The full blocks of a prompt, from its beginning."""
        return self._payload([self._run(tokens)])

    def others(self, num_blocks: int) -> Iterator[bytes]:
        """Prompts that no client sends, OTHER_BLOCKS each: a cache as full as a large one is."""
        first = (1 + (self._next_name >> 48)) << 26  # tokens that no other worker has
        for _ in range(num_blocks // OTHER_BLOCKS):
            yield self.stored(array("I", range(first, first + OTHER_BLOCKS * BLOCK_SIZE)))
            first += OTHER_BLOCKS * BLOCK_SIZE

    def trickle(self) -> Iterator[bytes]:
        """Endless batches: a prompt never seen stored, the oldest of its kind removed."""
        first = 1 << 24  # above every vocabulary: no prompt of a client has these tokens
        while True:
            run = self._run(array("I", range(first, first + RUN_BLOCKS * BLOCK_SIZE)))
            first += RUN_BLOCKS * BLOCK_SIZE
            events: list[KvEvent] = [run]
            self._held.append(run.engine_hashes)
            if len(self._held) > RUNS_HELD:
                events.append(BlocksRemoved(self._held.popleft()))
            yield self._payload(events)

    def _run(self, tokens: Tokens) -> BlocksStored:
        num_blocks = len(tokens) // BLOCK_SIZE
        names = list(range(self._next_name, self._next_name + num_blocks))
        self._next_name += num_blocks
        return BlocksStored(
            names, None, tokens[: num_blocks * BLOCK_SIZE], BLOCK_SIZE, spec_kind="full_attention"
        )

    def _payload(self, events: Sequence[KvEvent]) -> bytes:
        return self._encode(time.time(), events, 0)


def sources_body(publisher: EventPublisher) -> bytes:
    """The body of /kv_event_sources: rank 0 and where it publishes."""
    config = {
        "endpoint": publisher.endpoint,
        "replay_endpoint": publisher.replay_endpoint,
        "topic": "",
        "publisher": "zmq",
        "enable_kv_cache_events": True,
    }
    return msgspec.json.encode({"0": config})


async def publish(path: Path, index: int, num_workers: int, num_others: int = 0) -> None:
    """Publish until SIGTERM."""
    publisher = EventPublisher(HOST, "", BUFFER_BATCHES)
    source, stop = PayloadSource(index), stop_event()
    publisher.open(0, 0)
    try:
        for tokens in read_prompts(path)[index::num_workers]:
            publisher.publish(source.stored(tokens))
        for payload in source.others(num_others):
            publisher.publish(payload)
        print(sources_body(publisher).decode(), flush=True)
        trickle = source.trickle()
        while not stop.is_set():
            publisher.publish(next(trickle))
            await _until(stop, 1 / BATCHES_PER_S)
    finally:
        publisher.close()


async def _until(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        pass


if __name__ == "__main__":
    asyncio.run(publish(Path(sys.argv[1]), *map(int, sys.argv[2:])))
