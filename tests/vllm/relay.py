"""Relay between an engine's event sockets and a gateway, which loses or repeats batches and delays replays.

The relay speaks ZeroMQ on both sides, and the gateway connects to its sockets in place of the engine's.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import zmq
import zmq.asyncio

from engines.vllm import Vllm
from gateway.core.engine import EventSource
from gateway.runtime.tasks import Tasks
from tests.vllm.engine import VllmWorker
from tests.vllm.inside import new_ids, warm

END = (-1).to_bytes(8, "big", signed=True)


class Relay:
    """Relay that drops the next `num_to_lose` batches and sends later ones `num_copies` times; `num_held`
    answers to replay requests wait."""

    def __init__(self, worker: VllmWorker) -> None:
        self.num_to_lose = self.num_passed = self.num_held = 0
        self.num_copies = 1
        self._worker = worker
        self._may_replay = asyncio.Event()
        self._may_replay.set()
        self._context = zmq.asyncio.Context()
        self._tasks = Tasks()
        self._sub = self._context.socket(zmq.SUB)
        self._pub = self._context.socket(zmq.PUB)
        self._router = self._context.socket(zmq.ROUTER)

    async def start(self) -> "Relay":
        """Start, and return when the engine's batches come through."""
        for socket in (self._pub, self._router):
            socket.bind("tcp://127.0.0.1:*")
        self._sub.subscribe(b"")
        self._sub.connect(self._worker.events_endpoint)
        self._tasks.start("relay batches", self._pass_batches())
        self._tasks.start("relay replays", self._pass_replays())
        for i in range(100):
            await warm(self._worker, new_ids(f"{self._worker.url} {id(self)} {i}", 32))
            await asyncio.sleep(0.05)
            if self.num_passed:
                return self
        raise TimeoutError(f"nothing comes from {self._worker}")

    async def stop(self) -> None:
        await self._tasks.stop()
        self._context.destroy(linger=0)

    def hold_replays(self) -> None:
        self._may_replay.clear()

    def release_replays(self) -> None:
        self._may_replay.set()

    def stand_for(self, source: EventSource) -> EventSource:
        endpoint, replay = (_bound(socket) for socket in (self._pub, self._router))
        return replace(source, endpoint=endpoint, replay_endpoint=replay if source.replay_endpoint else None)

    async def _pass_batches(self) -> None:
        while True:
            frames = await self._sub.recv_multipart()
            if self.num_to_lose:
                self.num_to_lose -= 1
                continue
            self.num_passed += 1
            for _ in range(self.num_copies):
                await self._pub.send_multipart(frames)

    async def _pass_replays(self) -> None:
        while True:
            client, *request = await self._router.recv_multipart()
            self._tasks.start("relay a replay", self._pass_replay(client, request))

    async def _pass_replay(self, client: bytes, request: list[bytes]) -> None:
        """Ask the engine at once, and pass its answer on when replays are released."""
        with self._context.socket(zmq.DEALER) as dealer:
            dealer.connect(self._worker.replay_endpoint)
            await dealer.send_multipart(request)
            answers = [await dealer.recv_multipart()]
            while answers[-1][-2] != END:
                answers.append(await dealer.recv_multipart())
        self.num_held += 1
        await self._may_replay.wait()
        self.num_held -= 1
        for answer in answers:
            await self._router.send_multipart([client, *answer])


def _bound(socket: "zmq.asyncio.Socket") -> str:
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)


@asynccontextmanager
async def relayed(worker: VllmWorker, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Relay]:
    """A relay in front of a worker: gateways find its sockets as the engine's event sources."""
    relay = Relay(worker)
    parse_event_sources = Vllm.parse_event_sources

    def parse(engine: Vllm, body: bytes) -> tuple[EventSource, ...]:
        return tuple(map(relay.stand_for, parse_event_sources(engine, body)))

    try:
        await relay.start()
        with monkeypatch.context() as patch:
            patch.setattr(Vllm, "parse_event_sources", parse)
            yield relay
    finally:
        await relay.stop()
