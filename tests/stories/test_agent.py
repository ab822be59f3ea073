"""Gateways beside agents, before simulated engines with a replay buffer of two batches.

After each story the index has exactly the blocks that each engine has cached (as in `test_fleet.py`).
"""

import asyncio
import re
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from engines.sim import Sim
from gateway.agent.config import AgentConfig
from gateway.agent.service import serve
from gateway.agent.sidecar import Sidecar
from gateway.app import Gateway
from gateway.config import replaced
from gateway.core.event_stream import StreamState
from gateway.replication.agent_feed import reach
from gateway.replication.agent_targets import Agents
from gateway.replication.messages import AgentHello
from loadtest.fleet import GATEWAY
from loadtest.ports import free_port
from tests.support.gateway_process import GatewayProcess, clean_environment, written
from tests.support.patience import patience, until
from tests.support.stories.fleet_story import FleetStory, fleet_story, worker_id

pytestmark = pytest.mark.process

SHORT = {"replay_buffer": 2}


async def start_agent(sim: Sim) -> Sidecar:
    """An agent on a fixed port, at which a restarted one can be reached again."""
    config = AgentConfig(engine_url=sim.url, listen=f"127.0.0.1:{free_port()}", probe_interval_s=0.1)
    agent = Sidecar(config, "kvgate test")
    await agent.start()
    return agent


@asynccontextmanager
async def agents(sims: list[Sim]) -> AsyncIterator[list[Sidecar]]:
    """An agent beside each engine, with EXACT streams."""
    running = [await start_agent(sim) for sim in sims]
    try:
        await until(lambda: all(map(is_exact, running)))
        yield running
    finally:
        for agent in running:
            await agent.stop()


def is_exact(agent: Sidecar) -> bool:
    return all(member.stream is StreamState.EXACT for member in agent.fleet) and len(agent.fleet) > 0


@asynccontextmanager
async def gateway_beside(first: FleetStory, running: list[Sidecar]) -> AsyncIterator[FleetStory]:
    """A second gateway before the same engines, configured with their agents."""
    named = [f"{sim.url}=127.0.0.1:{agent.port}" for sim, agent in zip(first.sims, running, strict=True)]
    gateway = Gateway(replaced(first.gateway.config, agent=named))
    await gateway.start()
    try:
        beside = FleetStory(gateway, first.sims, first.session)
        await beside.until(lambda: len(gateway.fleet) == len(first.gateway.fleet))
        yield beside
    finally:
        await gateway.stop()


def sources(s: FleetStory) -> list[str]:
    return [feed.endpoint[:4] for endpoint in s.gateway.roster for feed, _ in endpoint.feeds.values()]


def num_resets(s: FleetStory) -> list[int]:
    return [counts.num_resets for _, counts in s.gateway.roster.stream_counts()]


@pytest.mark.parametrize("flags", [{}, {"hash": "bytes"}, {"kv_blocks": 60}, {"event_wire": "array"}])
async def test_gateway_started_late_is_exact_by_the_agents_snapshots(flags: dict[str, Any]) -> None:
    async with fleet_story(**SHORT, **flags) as first, agents(first.sims) as running:
        await first.talk(31)
        await first.settled()
        async with gateway_beside(first, running) as second:
            await second.settled()
            assert sources(second) == ["grpc", "grpc"]
            assert num_resets(second) == [1, 1]  # the snapshots
            await second.talk(32)
            await second.settled()


async def test_agent_repairs_streams_that_lost_events() -> None:
    async with (
        fleet_story() as first,
        agents(first.sims) as running,
        gateway_beside(first, running) as second,
    ):
        await second.settled()
        for sim in first.sims:
            await first.faults(sim, lose={"probability": 0.3})
        await second.talk(33, num_turns=5)
        for sim in first.sims:
            await first.faults(sim)
        await second.talk(34)
        await second.settled()
        assert sources(second) == ["grpc", "grpc"]


async def test_index_forgets_a_restarted_engine_and_becomes_exact_again() -> None:
    async with (
        fleet_story(**SHORT) as first,
        agents(first.sims) as running,
        gateway_beside(first, running) as second,
    ):
        await second.talk(35)
        await second.settled()
        await second.sims[0].restart(0.0)
        await second.until(lambda: second.gateway.index.num_blocks(worker_id(second.sims[0])) == 0)
        await second.settled()
        await second.talk(36)
        await second.settled()


async def test_gateway_continues_with_the_engines_events_when_the_agent_stops() -> None:
    """The engine's replay buffer does not reach back to the start, and need not."""
    async with fleet_story(**SHORT) as first, agents(first.sims) as running:
        await first.talk(37)
        async with gateway_beside(first, running) as second:
            await second.settled()
            await running[0].stop()
            await second.until(lambda: sorted(sources(second)) == ["grpc", "tcp:"])
            await second.settled()
            assert num_resets(second) == [1, 1]
            await second.talk(38)
            await second.settled()
            running[0] = await start_agent(second.sims[0])  # `agents` stops it


async def test_blind_stream_becomes_exact_when_the_agent_answers() -> None:
    async with fleet_story(**SHORT) as first, agents(first.sims) as running:
        await first.talk(39)
        await first.settled()
        port = running[0].port
        await running[0].listening.server.stop(0)  # the agent keeps following its engine
        async with gateway_beside(first, running) as second:
            await second.until(lambda: second.states() == {StreamState.BLIND, StreamState.EXACT})
            assert sorted(sources(second)) == ["grpc", "tcp:"]
            running[0].listening.server, _ = await serve(running[0].service, f"127.0.0.1:{port}")
            await second.settled()
            assert sources(second) == ["grpc", "grpc"]


async def test_gateway_continues_with_the_engines_events_when_the_agent_is_killed() -> None:
    async with fleet_story() as first:
        with tempfile.TemporaryFile("w+") as log:
            process = _agent_process(first.sims[0].url, log)
            try:
                port = await _port_of(process, log)
                config = replaced(first.gateway.config, agent=[f"{first.sims[0].url}=127.0.0.1:{port}"])
                second = Gateway(config)
                await second.start()
                try:
                    s = FleetStory(second, first.sims, first.session)
                    await s.until(lambda: "grpc" in sources(s))
                    await s.talk(42)
                    await s.settled()
                    process.kill()
                    await s.until(lambda: sources(s) == ["tcp:", "tcp:"])
                    await s.talk(43)
                    await s.settled()
                    assert sorted(num_resets(s)) == [0, 1]
                finally:
                    await second.stop()
            finally:
                process.kill()
                process.wait()
            assert "Traceback" not in written(log)


def _agent_process(url: str, log: Any) -> "subprocess.Popen[bytes]":
    command = [*GATEWAY, "agent", "--engine-url", url, "--listen", "127.0.0.1:0"]
    return subprocess.Popen(command, stdout=log, stderr=log, env=clean_environment())


async def _port_of(process: "subprocess.Popen[bytes]", log: Any) -> int:
    """The port of an agent, once its stream is EXACT."""
    async with asyncio.timeout(patience(30)):
        while process.poll() is None:
            if found := re.search(r"listening on (127\.0\.0\.1:(\d+)) for gateways", written(log)):
                hello = await reach(Agents(), found[1], 0, 10)
                if isinstance(hello, AgentHello) and hello.status.state is StreamState.EXACT:
                    return int(found[2])
            await asyncio.sleep(0.02)
    raise AssertionError("the agent did not start")


async def test_check_reports_agents_and_a_gateway_process_follows_them() -> None:
    async with fleet_story(**SHORT) as first, agents(first.sims[:1]) as running:
        await first.talk(44)
        await first.settled()
        sim, agent = first.sims[0], running[0]
        flags = ("--worker", sim.url, f"KVGATE_AGENT={sim.url}=127.0.0.1:{agent.port}")
        blocks = len(await first.cached_blocks(sim))
        printed = await asyncio.to_thread(GatewayProcess.check, *flags)
        assert f"its agent at 127.0.0.1:{agent.port} is exact: {blocks} blocks" in printed
        await asyncio.to_thread(_follow_in_a_process, flags, agent.port)


def _follow_in_a_process(flags: tuple[str, ...], port: int) -> None:
    with GatewayProcess(*flags) as process:
        process._until(lambda: process.streams() == ["exact"])
        (worker,) = process.workers()
        assert (worker["agent"], worker["events"]) == (f"127.0.0.1:{port}", f"grpc://127.0.0.1:{port}")
        assert worker["events_connected"] is True


async def test_agent_serves_all_ranks_of_an_engine() -> None:
    async with fleet_story(**SHORT, dp_size=2) as first, agents(first.sims) as running:
        assert [len(agent.fleet) for agent in running] == [2, 2]
        await first.talk(45)
        async with gateway_beside(first, running) as second:
            await second.until(lambda: second.states() == {StreamState.EXACT})
            for member in second.gateway.fleet:
                worker = member.worker
                async with first.session.get(f"{worker.url}/sim/cache") as answer:
                    cached = (await answer.json())[str(worker.dp_rank)]
                assert {int(block) for _, block, _ in cached} == set(second.gateway.index.blocks(worker.id))
            assert sources(second) == ["grpc"] * 4


async def test_agent_without_its_engine_keeps_running_and_check_fails() -> None:
    agent = Sidecar(AgentConfig(engine_url="http://127.0.0.1:9", listen="127.0.0.1:0"), "kvgate test")
    await agent.start()
    try:
        flags = ("--worker", "http://127.0.0.1:9", "--agent-port", str(agent.port))
        with pytest.raises(AssertionError, match="127.0.0.1:9"):
            await asyncio.to_thread(GatewayProcess.check, *flags)
    finally:
        await agent.stop()
    with pytest.raises(aiohttp.ClientConnectorError):
        async with aiohttp.ClientSession() as session:
            await session.get(f"http://127.0.0.1:{agent.port}")
