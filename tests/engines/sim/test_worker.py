"""Start, stop and restart: ports, epochs, and the view of a client; and the process with its command line."""

import asyncio
import contextlib
import signal
import sys
from typing import Any

import aiohttp
import pytest
from aiohttp import ClientSession

from engines.sim import Sim, SimConfig
from gateway.core.kv_events import BlocksStored
from loadtest.ports import free_port
from tests.engines.sim.conftest import StartSim
from tests.support.patience import patience
from tests.support.stories.sim_reading import replayed

IDS = list(range(1000, 1100))


async def complete(http: ClientSession, url: str, **fields: Any) -> Any:
    body = {"model": "m", "prompt": IDS, "max_tokens": 1, "ignore_eos": True} | fields
    async with http.post(url + "/v1/completions", json=body) as answer:
        return await answer.json()


async def get(http: ClientSession, url: str) -> Any:
    async with http.get(url) as answer:
        return await answer.json()


async def test_events_and_cache_agree_block_for_block(start_sim: StartSim, http: ClientSession) -> None:
    sim = await start_sim()
    await complete(http, sim.url, max_tokens=40)
    (names,) = [await get(http, sim.url + "/sim/cache")]
    reported = [
        name
        for batch in await replayed(sim.replay_endpoint)
        for event in batch.events
        if isinstance(event, BlocksStored)
        for name in event.engine_hashes
    ]
    assert reported == [name for name, _, _ in names["0"]]
    assert len(reported) == 139 // 16


async def test_a_restart_has_a_new_epoch_on_the_same_ports(start_sim: StartSim, http: ClientSession) -> None:
    sim = await start_sim()
    await complete(http, sim.url)
    before = (sim.url, sim.events_endpoint, sim.replay_endpoint)
    assert sim.engine is not None
    started = sim.engine.started
    await sim.restart()
    assert (sim.url, sim.events_endpoint, sim.replay_endpoint) == before
    assert sim.engine.started > started
    assert await get(http, sim.url + "/sim/cache") == {"0": []}
    answer = await complete(http, sim.url)
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert [batch.seq for batch in await replayed(sim.replay_endpoint)] == [0]


async def test_a_restart_on_request_resets_connections(start_sim: StartSim, http: ClientSession) -> None:
    sim = await start_sim(decode_tokens_per_s=10.0)
    assert sim.engine is not None
    started = sim.engine.started
    running = asyncio.ensure_future(complete(http, sim.url, max_tokens=500))  # noqa: TID251 - awaited below
    while not sim.ranks[0].scheduler.running:
        await get(http, sim.url + "/sim/stats")
    async with http.post(sim.url + "/sim/faults", json={"restart_down_s": 0.0}) as answer:
        assert answer.status == 200
    with pytest.raises(aiohttp.ClientConnectionError):
        await running
    cached = None
    async with asyncio.timeout(patience(5)):
        while cached is None or sim.engine.started == started:
            with contextlib.suppress(aiohttp.ClientConnectionError):
                cached = await get(http, sim.url + "/sim/cache")
    assert cached == {"0": []}


async def test_each_rank_has_its_port(start_sim: StartSim, http: ClientSession) -> None:
    events, replay = free_port(2), free_port(2)
    sim = await start_sim(dp_size=2, events_port=events, replay_port=replay, topic="kv")
    sources = await get(http, sim.url + "/kv_event_sources")
    ports = [int(sources[rank]["endpoint"].rpartition(":")[2]) for rank in "01"]
    assert ports == [events, events + 1]
    assert sources["1"]["replay_endpoint"] == f"tcp://127.0.0.1:{replay + 1}"
    assert sources["1"]["topic"] == "kv"


async def test_without_events_there_are_no_sources(start_sim: StartSim, http: ClientSession) -> None:
    sim = await start_sim(events=False)
    await complete(http, sim.url)
    assert await get(http, sim.url + "/kv_event_sources") == {}


async def test_stopping_twice_is_harmless(start_sim: StartSim) -> None:
    sim = await start_sim()
    await sim.stop()
    await sim.stop()


async def test_an_occupied_port_is_an_error(start_sim: StartSim) -> None:
    taken = await start_sim()
    port = int(taken.url.rpartition(":")[2])
    other = Sim(SimConfig(port=port), taken._texts)
    with pytest.raises(OSError, match="in use"):
        await other.start()
    await other.stop()


# the process --------------------------------------------------------------------------------------


async def spawn(*flags: str) -> tuple[asyncio.subprocess.Process, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "engines.sim", *flags, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    return process, next(word for word in line.split() if word.startswith("http://"))


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_the_process_cleanly(http: ClientSession, number: signal.Signals) -> None:
    process, url = await spawn("--model", "served")
    assert (await get(http, url + "/v1/models"))["data"][0]["id"] == "served"
    process.send_signal(number)
    assert await process.wait() == 0


@pytest.mark.process
@pytest.mark.parametrize("shutdown", ["refuse", "503"])
async def test_requests_in_flight_are_finished_at_a_shutdown(http: ClientSession, shutdown: str) -> None:
    process, url = await spawn("--shutdown-s", "20", "--shutdown", shutdown, "--decode-tokens-per-s", "20")
    body = {"model": "m", "prompt": [1, 2], "max_tokens": 10, "ignore_eos": True, "stream": True}
    async with http.post(url + "/v1/completions", json=body) as answer:
        await answer.content.readany()
        process.send_signal(signal.SIGTERM)
        await _until_health(http, url, 503 if shutdown == "503" else None)
        assert (await answer.read()).endswith(b"data: [DONE]\n\n")
    assert await process.wait() == 0


async def _until_health(http: ClientSession, url: str, status: int | None) -> None:
    """Health of the worker, over a new connection; None: it refuses them."""
    async with asyncio.timeout(patience(20)):
        while True:
            try:
                async with http.get(url + "/health", headers={"Connection": "close"}) as answer:
                    if answer.status == status:
                        return
            except aiohttp.ClientConnectionError:
                if status is None:
                    return


@pytest.mark.process
async def test_an_exit_on_request_is_a_crash(http: ClientSession) -> None:
    process, url = await spawn()
    with pytest.raises(aiohttp.ClientConnectionError):
        await http.post(url + "/sim/faults", json={"exit": 7})
    assert await process.wait() == 7


@pytest.mark.process
async def test_an_idle_worker_uses_no_cpu(http: ClientSession) -> None:
    process, url = await spawn()
    await complete(http, url)
    before = _cpu_ticks(process.pid)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0):
            await process.wait()
    assert _cpu_ticks(process.pid) - before <= 1
    process.terminate()
    await process.wait()


def _cpu_ticks(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
