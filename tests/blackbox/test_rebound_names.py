"""Workers with names that resolve to other addresses after they have joined: each connection is judged by the
address of that time, for requests, probes, KV events and agents.

A forbidden address is 127.0.0.2, at the same port: a server there records what reaches it.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import zmq

from gateway.proto.kvgate.v1 import kv_events_pb2 as pb
from loadtest.ports import free_port
from tests.support.blackbox.bench import Bench, running
from tests.support.blackbox.http1_bytes import completion, post, wire
from tests.support.blackbox.lying_agents import Liar, serving_agent, update
from tests.support.blackbox.scripted_worker import Call, FakeWorker
from tests.support.names import Names
from tests.support.patience import until

NAME, GOOD, FORBIDDEN = "worker.test", "127.0.0.1", "127.0.0.2"
FLAGS = ("--worker-networks", GOOD, "--probe-interval-s", "0.1")
REFUSED = rf"{FORBIDDEN} is in none of --worker-networks"


class Named(FakeWorker):
    """Worker that is known by its name."""

    events_port = 0

    @property
    def url(self) -> str:
        return f"http://{NAME}:{self.port}"

    def _own(self, call: Call) -> bytes:
        if call.target == b"/kv_event_sources" and self.events_port:
            endpoint = {"endpoint": f"tcp://*:{self.events_port}", "publisher": "zmq"}
            return wire(200, msgspec.json.encode({"0": {**endpoint, "enable_kv_cache_events": True}}))
        return super()._own(call)


class Trap:
    """Server at the forbidden address."""

    def __init__(self) -> None:
        self.num_connections, self.received = 0, bytearray()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                self.received += data
        writer.close()


@contextlib.asynccontextmanager
async def listening(port: int) -> AsyncIterator[Trap]:
    trap = Trap()
    server = await asyncio.start_server(trap.serve, FORBIDDEN, port)
    try:
        yield trap
    finally:
        server.close()


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Names:
    found = Names(tmp_path, monkeypatch)
    found.bind(worker_test=GOOD)
    return found


@contextlib.asynccontextmanager
async def serving(worker: Named, *flags: str) -> AsyncIterator[Bench]:
    """Gateway with this worker."""
    async with running(*FLAGS, "--worker", worker.url, *flags) as bench:
        bench.workers.append(await worker.start())
        await until(lambda: bench.gateway.is_up(worker), "it has joined by its name")
        assert (await bench.ask(post(completion()))).status == 200
        yield bench


async def test_requests_and_probes_send_nothing_to_a_rebound_name(names: Names) -> None:
    worker = Named()
    async with serving(worker) as bench, listening(worker.port) as trap:
        names.bind(worker_test=FORBIDDEN)
        for link in list(worker.links):
            link.reset()
        num_calls = len(worker.calls)

        async def is_down() -> bool:
            answer = await bench.ask(post(completion()))
            assert answer.status in (502, 503), answer
            return not await bench.gateway.is_up(worker)

        await until(is_down, "it is down")
        await bench.gateway.logged(REFUSED)
        assert len(worker.calls) == num_calls and not trap.received
        names.bind(worker_test=GOOD)
        await until(lambda: bench.gateway.is_up(worker), "it is back")
        assert (await bench.ask(post(completion()))).status == 200


async def test_events_are_not_taken_from_a_rebound_name(names: Names) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    worker = Named()
    worker.events_port = free_port()
    try:
        with context.socket(zmq.PUB) as publisher:
            publisher.bind(f"tcp://{GOOD}:{worker.events_port}")
            async with serving(worker, "--events", "auto") as bench:

                async def is_followed() -> bool:
                    endpoint = await bench.gateway.endpoint(worker)
                    return bool(endpoint and endpoint["workers"][0]["events_connected"])

                await until(is_followed, "its events are followed")
                names.bind(worker_test=FORBIDDEN)
                with context.socket(zmq.PUB) as other:
                    other.bind(f"tcp://{FORBIDDEN}:{worker.events_port}")
                    publisher.close(linger=0)
                    await bench.gateway.logged(
                        f"worker {NAME}:.* KV events paused .*connected to {FORBIDDEN}: {REFUSED}"
                    )
    finally:
        context.term()


class Agent(Liar):
    """Agent that stays until `leaves`."""

    def __init__(self, engine_url: str) -> None:
        super().__init__(engine_url)
        self.leaves = asyncio.Event()

    async def subscribe(self, request: bytes, context: object) -> AsyncIterator[bytes]:
        yield self.right()
        yield update(snapshot=pb.SnapshotPart(epoch=1, is_last=True))
        yield update(status=self.hello.status)
        await self.leaves.wait()


async def test_an_agent_behind_a_rebound_name_is_not_contacted(names: Names) -> None:
    worker, port = Named(), free_port()
    agent = Agent(worker.url)
    flags = ("--agent-port", str(port), "--events", "auto")
    async with (
        serving_agent(agent, port),
        listening(port) as trap,
        serving(worker, *flags) as bench,
    ):

        async def is_exact() -> bool:
            endpoint = await bench.gateway.endpoint(worker)
            return bool(endpoint and endpoint["workers"][0]["stream"] == "exact")

        await until(is_exact, "its agent is followed")
        names.bind(worker_test=FORBIDDEN)
        agent.leaves.set()
        await bench.gateway.logged(rf"agent {NAME}:{port} rejected: {NAME}: {REFUSED}")
        assert not trap.num_connections
