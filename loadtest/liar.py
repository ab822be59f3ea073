"""KV events of a worker that lies, or is broken, in a process of its own: `python -m loadtest.liar MODE`.

    flood   stores and removes as fast as its socket takes it, batches of 1,000 events, for SECONDS
    giant   one event, selected by KIND: 0 is of 500,000 blocks, 1 of as many but small, 2 of 60,000
    garbage sends NUM messages that are no batches
    hoard   stores blocks that follow nothing, and removes none, until NUM are sent

Payloads are made before anything is sent. The first line of output is the body of /kv_event_sources; sending
begins when a line comes on stdin, at a lower priority, and a line is printed when it has ended.
"""

import os
import random
import sys
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import zmq

HOST = "127.0.0.1"
BLOCK_SIZE = 16
EVENTS_PER_BATCH = 1_000
GIANT_BLOCKS = 500_000
SETTLE_S = 0.3
"""Seconds that subscriptions take to reach a publisher after the connection is there."""
NICENESS = 10
"""Lower priority of the publisher and its threads; on a busy machine, a start with it would take minutes."""
NUM_BATCHES = 64
"""Batches made in advance, and sent over and over."""


class LyingPublisher:
    """Publisher of false events. `can_replay` is only declared: nothing is ever replayed."""

    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.PUB)
        self._socket.setsockopt(zmq.SNDHWM, 1000)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._port = self._socket.bind_to_random_port(f"tcp://{HOST}")
        self._seq = 0

    def sources(self) -> bytes:
        endpoint = {
            "endpoint": f"tcp://{HOST}:{self._port}",
            "publisher": "zmq",
            "enable_kv_cache_events": True,
        }
        return msgspec.json.encode({"0": endpoint})

    def send(self, payload: bytes) -> None:
        self._socket.send_multipart([b"", self._seq.to_bytes(8, "big"), payload])
        self._seq += 1

    def close(self) -> None:
        self._socket.close(linger=0)
        self._context.term()


def packed(events: list[Any]) -> bytes:
    return msgspec.msgpack.encode([time.time(), events, None])


def stored(name: int, rng: random.Random) -> list[Any]:
    """Event of a block that follows nothing, as vLLM wrote it up to 0.23."""
    tokens = [rng.randrange(128_000) for _ in range(BLOCK_SIZE)]
    return ["BlockStored", [name], None, tokens, BLOCK_SIZE, None, "GPU"]


def churn() -> list[bytes]:
    """Batches that store as much as they remove."""
    rng, name, batches = random.Random(1), 1, []
    for _ in range(NUM_BATCHES):
        names = range(name, name + EVENTS_PER_BATCH // 2)
        name += EVENTS_PER_BATCH // 2
        batches.append(packed([e for n in names for e in (stored(n, rng), ["BlockRemoved", [n], "GPU"])]))
    return batches


def giants(kind: int) -> bytes:
    """Payloads far too large, with too many blocks for an event, and just not too large."""
    rng = random.Random(2)
    num, size = ((GIANT_BLOCKS, BLOCK_SIZE), (GIANT_BLOCKS, 1), (60_000, BLOCK_SIZE))[kind]
    tokens = [rng.randrange(128_000) for _ in range(num)] * size
    return packed([["BlockStored", list(range(1, num + 1)), None, tokens, size, None, "GPU"]])


def hoard(num: int) -> Iterator[bytes]:
    rng, name = random.Random(3), 1 << 32
    for first in range(0, num, EVENTS_PER_BATCH):
        yield packed([stored(name + first + i, rng) for i in range(min(EVENTS_PER_BATCH, num - first))])


def run(mode: str, amount: float) -> None:
    """Publish in a mode; `amount` is seconds, which giant, or blocks."""
    payloads = {
        "flood": churn,
        "giant": lambda: [giants(int(amount))],
        "garbage": lambda: [b"\xc1 no batch"] * int(amount),
        "hoard": lambda: list(hoard(int(amount))),
    }[mode]()
    os.nice(NICENESS)
    liar = LyingPublisher()
    print(liar.sources().decode(), flush=True)
    for _ in sys.stdin:
        time.sleep(SETTLE_S)
        end = time.monotonic() + amount
        while True:
            for payload in payloads:
                liar.send(payload)
                if mode in ("hoard", "garbage"):
                    time.sleep(
                        0.02 if mode == "hoard" else 0.001
                    )  # about as fast as it is applied: after a gap all is forgotten
            if mode != "flood" or time.monotonic() > end:
                break
        print(f"sent {liar._seq}", flush=True)
    liar.close()


if __name__ == "__main__":
    run(sys.argv[1], float(sys.argv[2]))
