"""Workers that join, stop, hang and drain under requests: simulated engines behind a gateway."""

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from engines.sim import Sim
from gateway.core.worker import WorkerId
from tests.support.stories.worker_story import SIM, worker_story

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]


@pytest.mark.parametrize("shutdown", ["refuse", "503"])
async def test_no_request_is_lost_when_workers_stop_gracefully(shutdown: Any) -> None:
    """Each worker ends under requests, with its idle connections, and comes back as a new engine."""
    async with worker_story(2, msgspec.structs.replace(SIM, shutdown=shutdown), slow_start_s=0.0) as s:
        stop = asyncio.Event()
        asking = [s.start(s.keep_asking(seed, stop)) for seed in range(8)]
        for number, sim in enumerate(s.sims):
            before = s.answered.total()
            await s.until(lambda before=before: s.answered.total() > before + 20)  # type: ignore[misc]
            await sim.finish()
            port = int(sim.url.rpartition(":")[2])
            sim.engine = None
            again = msgspec.structs.replace(sim.config, port=port)
            s.sims[number] = await Sim(again).start()
            name = sim.url.removeprefix("http://")
            got = s.answered[name]
            await s.until(lambda name=name, got=got: s.answered[name] > got + 5)  # type: ignore[misc]
        stop.set()
        await asyncio.gather(*asking)
        assert s.failed == []
        for sim in s.sims:
            await sim.stop()


@pytest.mark.parametrize("stream", [True, False])
async def test_last_worker_finishes_its_requests_while_its_probes_fail(stream: bool) -> None:
    """Probes fail long before the answer begins; the request stays, since no other worker could answer it."""
    sim = msgspec.structs.replace(SIM, shutdown="503", prefill_tokens_per_s=2.0)
    async with worker_story(1, sim) as s:
        asking = s.start(s.ask(stream=stream))
        await s.until(lambda: s.sims[0].ranks[0].num_clients)
        finishing = s.start(s.sims[0].finish())
        await s.until_state(s.sims[0], "down")
        await asking
        await finishing
        assert s.failed == []


async def test_draining_worker_finishes_its_requests_and_gets_no_new_ones() -> None:
    async with worker_story(2, slow_start_s=0.0) as s:
        first, second = (sim.url.removeprefix("http://") for sim in s.sims)
        slow = [s.start(s.ask(100, seed=seed)) for seed in range(6)]
        await s.until(lambda: s.gateway.router.ledger.load(first).num_in_flight == 3)  # type: ignore[arg-type]
        drained = await s.admin(f"/admin/workers/{first}/drain", "POST")
        assert (drained["changed"], drained["remaining_requests"]) == (True, 3)
        assert {await s.ask() for _ in range(10)} == {second}
        assert Counter(await asyncio.gather(*slow)) == {first: 3, second: 3}
        view = await s.worker(s.sims[0])
        assert (view["state"], view["remaining_requests"]) == ("draining", 0)
        await s.admin(f"/admin/workers/{first}/drain", "DELETE")
        await s.until(lambda: _answers(s.ask(), first))
        assert s.failed == []


async def _answers(asked: Any, worker: str) -> bool:
    return bool(await asked == worker)


async def test_worker_to_be_dropped_leaves_the_fleet_after_its_last_answer() -> None:
    async with worker_story(2) as s:
        first = s.sims[0].url.removeprefix("http://")
        slow = [s.start(s.ask(100, seed=seed)) for seed in range(4)]
        await s.until(lambda: s.gateway.router.ledger.load(first).num_in_flight == 2)  # type: ignore[arg-type]
        await s.admin(f"/admin/workers/{first}/drain", "POST", json={"remove": True})
        await s.until(lambda: len(s.gateway.fleet) == 1)
        assert s.answered[first] == 2
        await asyncio.gather(*slow)
        assert s.failed == []
        assert [each["url"] for each in (await s.admin("/admin/workers"))["removed"]] == [s.sims[0].url]


async def test_wedged_engine_is_ejected_until_its_steps_advance() -> None:
    """Probes of the wedged engine succeed all the time; the other worker answers its waiting requests."""
    async with worker_story(2, stalled_after_s=1.0, eject_s=0.5, slow_start_s=0.5) as s:
        wedged = s.sims[0]
        await s.fault(wedged, hang=True)
        asking = [s.start(s.ask(stream=False, seed=seed)) for seed in range(4)]
        out = await s.until_state(wedged, "ejected")
        assert out["is_up"] and out["reason"].startswith("no engine step in ")
        await asyncio.gather(*asking)
        assert s.failed == []
        assert s.answered == {s.sims[1].url.removeprefix("http://"): 4}
        await s.fault(wedged)
        await s.until_state(wedged, "active")
        name = wedged.url.removeprefix("http://")
        await s.until(lambda: _answers(s.ask(), name))


async def test_worker_that_fails_requests_is_ejected_while_its_probes_succeed() -> None:
    async with worker_story(2, eject_after_failures=3, slow_start_s=0.0) as s:
        await s.fault(s.sims[0], cut={"probability": 1.0, "after_chunks": 1})
        for seed in range(40):
            await s.ask(seed=seed)
        assert len(s.failed) == 3  # each answer had begun, so no other worker was asked
        out = await s.worker(s.sims[0])
        assert (out["state"], out["is_up"]) == ("ejected", True)
        assert "3 in a row" in out["reason"]


async def test_index_is_exact_for_engines_of_two_versions_with_different_event_formats() -> None:
    old = msgspec.structs.replace(SIM, event_wire="array", hash="bytes")
    async with worker_story(2, SIM, old, policy="round_robin") as s:
        versions = {e["version"] for e in (await s.admin("/admin/workers"))["endpoints"]}
        assert len(versions) == 2
        prompt = list(range(3, 67))
        for _ in range(2):
            await s.ask(1, prompt=prompt)
        names = [WorkerId(sim.url.removeprefix("http://")) for sim in s.sims]
        await s.until(lambda: all(s.gateway.index.num_blocks(name) == 4 for name in names))
        assert [(await s.worker(sim))["stream"] for sim in s.sims] == ["exact", "exact"]
        assert s.failed == []


async def test_an_engine_upgraded_in_place_is_known_by_its_new_settings() -> None:
    """Another version at the same address, with larger blocks and other events, inherits nothing."""
    old = msgspec.structs.replace(SIM, event_wire="array", hash="bytes")
    async with worker_story(2, old, SIM, policy="round_robin") as s:
        prompt, name = list(range(3, 67)), WorkerId(s.sims[0].url.removeprefix("http://"))
        for _ in range(2):
            await s.ask(1, prompt=prompt)
        await s.until(lambda: s.gateway.index.num_blocks(name) == 4)
        before = (await s.worker(s.sims[0]))["block_size"]
        await s.sims[0].stop()
        port = int(s.sims[0].url.rpartition(":")[2])
        s.sims[0] = await Sim(msgspec.structs.replace(SIM, port=port, block_size=2 * before)).start()

        async def is_known() -> bool:
            return bool((await s.worker(s.sims[0]))["block_size"] == 2 * before)

        await s.until(is_known)
        await s.until_state(s.sims[0], "active", "slow_start")
        assert s.gateway.index.num_blocks(name) == 0
        for _ in range(4):
            await s.ask(1, prompt=prompt)
        await s.until(lambda: s.gateway.index.num_blocks(name) == 2)
        assert [(await s.worker(sim))["stream"] for sim in s.sims] == ["exact", "exact"]
        await s.sims[0].stop()


async def test_full_engines_reject_and_none_is_ejected() -> None:
    """Two engines that take one request each, before eight clients."""
    full = msgspec.structs.replace(SIM, max_num_queued_reqs=1)
    async with worker_story(2, full, slow_start_s=0.0, eject_after_failures=2) as s:
        asked = [s.start(s.ask(20, seed=seed)) for seed in range(8)]
        await asyncio.gather(*asked)
        assert s.answered.total() >= 2
        assert all(failed.startswith("503: ") and "currently busy" in failed for failed in s.failed)
        rejected = [s.gateway.metrics.worker(member.worker.id).num_rejected for member in s.gateway.fleet]
        assert sum(rejected) >= len(s.failed) > 0
        assert {(await s.worker(sim))["state"] for sim in s.sims} == {"active"}
        await s.ask(1)
        assert s.answered.total() >= 3


@asynccontextmanager
async def balancer(*urls: str) -> AsyncIterator[str]:
    """A load balancer at one address that forwards connections to each URL in turn."""
    turns = itertools.cycle(int(url.rpartition(":")[2]) for url in urls)
    tasks: set[asyncio.Task[None]] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", next(turns))
        for coro in (copy(reader, back), copy(there, writer)):
            tasks.add(asyncio.get_running_loop().create_task(coro))

    server = await asyncio.start_server(forward, "127.0.0.1")
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_load_balancer_is_rejected_as_a_worker() -> None:
    async with worker_story(2) as s, balancer(*(sim.url for sim in s.sims)) as url:
        assert s.sims[0].engine is not None
        s.sims[0].engine.started += 100.0  # the engines behind the balancer start at different times
        await s.admin("/admin/workers", "POST", json={"url": url})

        async def is_refused() -> bool:
            endpoint = next(e for e in (await s.admin("/admin/workers"))["endpoints"] if e["url"] == url)
            return "several engines answer here" in (endpoint["last_error"] or "") and not endpoint["workers"]

        await s.until(is_refused)
        assert {member.worker.url for member in s.gateway.fleet} == {sim.url for sim in s.sims}


async def test_gateway_does_not_connect_outside_the_worker_networks() -> None:
    async with worker_story(1, worker_networks=["127.0.0.1"]) as s:
        assert await s.ask()
        answer = await s.admin("/admin/workers", "POST", json={"url": "http://127.0.0.2:1"})
        assert "127.0.0.2 is in none of --worker-networks" in answer["error"]["message"]
        s.gateway.roster.add("http://127.0.0.2:1")
        await s.gateway.roster.first_look()
        errors = {e["url"]: e["last_error"] for e in (await s.admin("/admin/workers"))["endpoints"]}
        assert "127.0.0.2 is in none of --worker-networks" in errors["http://127.0.0.2:1"]
