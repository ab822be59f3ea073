"""Workers come, are told to stop, hang and drain, under requests: simulated ones behind a real gateway."""

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest

from engines.sim import Sim, SimConfig
from gateway.app import Gateway
from gateway.config import config_of
from gateway.core.worker import WorkerId

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

SIM = SimConfig(decode_tokens_per_s=200.0, prefill_tokens_per_s=1e6, shutdown_s=20.0)


class Story:
    def __init__(self, gateway: Gateway, sims: list[Sim], session: aiohttp.ClientSession) -> None:
        self.gateway, self.sims, self.session = gateway, sims, session
        self.answered: Counter[str] = Counter()
        self.failed: list[str] = []

    async def ask(
        self, num_tokens: int = 10, *, stream: bool = True, seed: int = 0, prompt: Sequence[int] = ()
    ) -> str:
        """The worker that answered, the whole answer."""
        ids = [*prompt] or [seed + 3, 4, 5]
        body = {"model": "m", "prompt": ids, "max_tokens": num_tokens, "ignore_eos": True}
        url = f"http://127.0.0.1:{self.gateway.port}/v1/completions"
        async with self.session.post(url, json=body | {"stream": stream}) as answer:
            data = await answer.read()
            if answer.status != 200 or (stream and (b"[DONE]" not in data or b'"error"' in data)):
                self.failed.append(f"{answer.status}: {data[:300]!r}")
                return ""
            worker = answer.headers["x-kvgate-worker"]
            self.answered[worker] += 1
            return worker

    def start(self, coro: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return asyncio.get_running_loop().create_task(coro)

    async def keep_asking(self, seed: int, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self.ask(stream=seed % 2 == 0, seed=seed)

    async def admin(self, path: str, method: str = "GET", **how: Any) -> Any:
        url = f"http://127.0.0.1:{self.gateway.admin_port}{path}"
        async with self.session.request(method, url, **how) as answer:
            return await answer.json()

    async def worker(self, sim: Sim) -> dict[str, Any]:
        told = await self.admin("/admin/workers")
        found: dict[str, Any] = next(e for e in told["endpoints"] if e["url"] == sim.url)["workers"][0]
        return found

    async def fault(self, sim: Sim, **faults: Any) -> None:
        async with self.session.post(sim.url + "/sim/faults", data=msgspec.json.encode(faults)) as answer:
            assert answer.status == 200

    async def until(self, is_true: Callable[[], Any]) -> None:
        async with asyncio.timeout(30):
            while True:
                found = is_true()
                if await found if asyncio.iscoroutine(found) else found:
                    return
                await asyncio.sleep(0.01)

    async def until_state(self, sim: Sim, *states: str) -> dict[str, Any]:
        async with asyncio.timeout(30):
            while (told := await self.worker(sim))["state"] not in states:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return told


@asynccontextmanager
async def story(num: int, *each: SimConfig, **options: Any) -> AsyncIterator[Story]:
    async with AsyncExitStack() as stack:
        sims = []
        for seed in range(num):
            sim = each[seed % len(each)] if each else SIM
            sims.append(await Sim(msgspec.structs.replace(sim, seed=seed)).start())
            stack.push_async_callback(sims[-1].stop)
        told = {"probe_interval_s": 0.2, "expose_headers": True, "policy": "least_load", **options}
        gateway = Gateway(config_of(worker=[sim.url for sim in sims], port=0, admin_port=0, **told))
        await gateway.start()
        stack.push_async_callback(gateway.stop, 0.0)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        story = Story(gateway, sims, session)
        await story.until(lambda: sum(member.is_up for member in gateway.fleet) == num)
        yield story


@pytest.mark.parametrize("shutdown", ["refuse", "503"])
async def test_workers_that_are_told_to_stop_lose_no_request(shutdown: Any) -> None:
    """Each ends under requests, with its resting connections, and comes back as a new process."""
    async with story(2, msgspec.structs.replace(SIM, shutdown=shutdown), slow_start_s=0.0) as told:
        stop = asyncio.Event()
        asking = [told.start(told.keep_asking(seed, stop)) for seed in range(8)]
        for number, sim in enumerate(told.sims):
            before = told.answered.total()
            await told.until(lambda before=before: told.answered.total() > before + 20)  # type: ignore[misc]
            await sim.finish()
            port = int(sim.url.rpartition(":")[2])
            sim.engine = None
            again = msgspec.structs.replace(sim.config, port=port)
            told.sims[number] = await Sim(again).start()
            name = sim.url.removeprefix("http://")
            got = told.answered[name]
            await told.until(lambda name=name, got=got: told.answered[name] > got + 5)  # type: ignore[misc]
        stop.set()
        await asyncio.gather(*asking)
        assert told.failed == []
        for sim in told.sims:
            await sim.stop()


@pytest.mark.parametrize("stream", [True, False])
async def test_the_last_worker_finishes_what_it_has_though_it_says_no(stream: bool) -> None:
    """Its probes fail for long before its answer has begun: nobody else could answer, so it is left to."""
    sim = msgspec.structs.replace(SIM, shutdown="503", prefill_tokens_per_s=2.0)
    async with story(1, sim) as told:
        asking = told.start(told.ask(stream=stream))
        await told.until(lambda: told.sims[0].ranks[0].num_clients)
        finishing = told.start(told.sims[0].finish())
        await told.until_state(told.sims[0], "down")
        await asking
        await finishing
        assert told.failed == []


async def test_a_worker_drains_under_requests() -> None:
    async with story(2, slow_start_s=0.0) as told:
        first, second = (sim.url.removeprefix("http://") for sim in told.sims)
        slow = [told.start(told.ask(100, seed=seed)) for seed in range(6)]
        await told.until(lambda: told.gateway.router.ledger.load(first).num_in_flight == 3)  # type: ignore[arg-type]
        drained = await told.admin(f"/admin/workers/{first}/drain", "POST")
        assert (drained["changed"], drained["left"]) == (True, 3)
        assert {await told.ask() for _ in range(10)} == {second}
        assert Counter(await asyncio.gather(*slow)) == {first: 3, second: 3}
        told_of = await told.worker(told.sims[0])
        assert (told_of["state"], told_of["left"]) == ("draining", 0)
        await told.admin(f"/admin/workers/{first}/drain", "DELETE")
        await told.until(lambda: _is(told.ask(), first))
        assert told.failed == []


async def _is(asked: Any, worker: str) -> bool:
    return bool(await asked == worker)


async def test_one_that_is_to_be_dropped_is_when_it_has_answered() -> None:
    async with story(2) as told:
        first = told.sims[0].url.removeprefix("http://")
        slow = [told.start(told.ask(100, seed=seed)) for seed in range(4)]
        await told.until(lambda: told.gateway.router.ledger.load(first).num_in_flight == 2)  # type: ignore[arg-type]
        await told.admin(f"/admin/workers/{first}/drain", "POST", json={"drop": True})
        await told.until(lambda: len(told.gateway.fleet) == 1)
        assert told.answered[first] == 2
        await asyncio.gather(*slow)
        assert told.failed == []
        assert [each["url"] for each in (await told.admin("/admin/workers"))["gone"]] == [told.sims[0].url]


async def test_a_wedged_engine_is_left_out_and_comes_back_when_its_steps_move() -> None:
    """Its probes are well all the time; what waits there is answered by the other one."""
    async with story(2, stalled_after_s=1.0, eject_s=0.5, slow_start_s=0.5) as told:
        wedged = told.sims[0]
        await told.fault(wedged, hang=True)
        asking = [told.start(told.ask(stream=False, seed=seed)) for seed in range(4)]
        out = await told.until_state(wedged, "ejected")
        assert out["is_up"] and out["why"].startswith("no step in ")
        await asyncio.gather(*asking)
        assert told.failed == []
        assert told.answered == {told.sims[1].url.removeprefix("http://"): 4}
        await told.fault(wedged)
        await told.until_state(wedged, "active")
        name = wedged.url.removeprefix("http://")
        await told.until(lambda: _is(told.ask(), name))


async def test_one_that_answers_probes_and_fails_requests_is_left_out_for_a_while() -> None:
    async with story(2, eject_after_failures=3, slow_start_s=0.0) as told:
        await told.fault(told.sims[0], cut={"probability": 1.0, "after_chunks": 1})
        for seed in range(40):
            await told.ask(seed=seed)
        assert len(told.failed) == 3  # each had begun: there was no other one to ask
        out = await told.worker(told.sims[0])
        assert (out["state"], out["is_up"]) == ("ejected", True)
        assert "3 in a row" in out["why"]


async def test_engines_of_two_versions_that_write_events_in_two_ways_are_both_known_exactly() -> None:
    old = msgspec.structs.replace(SIM, event_wire="array", hash="bytes")
    async with story(2, SIM, old, policy="round_robin") as told:
        versions = {e["version"] for e in (await told.admin("/admin/workers"))["endpoints"]}
        assert len(versions) == 2
        prompt = list(range(3, 67))
        for _ in range(2):
            await told.ask(1, prompt=prompt)
        names = [WorkerId(sim.url.removeprefix("http://")) for sim in told.sims]
        await told.until(lambda: all(told.gateway.index.num_blocks(name) == 4 for name in names))
        assert [(await told.worker(sim))["stream"] for sim in told.sims] == ["exact", "exact"]
        assert told.failed == []


@asynccontextmanager
async def balancer(*urls: str) -> AsyncIterator[str]:
    """One address, behind which connections go to each in turn."""
    turns = itertools.cycle(int(url.rpartition(":")[2]) for url in urls)
    tasks: set[asyncio.Task[None]] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", next(turns))
        for coro in (copy(reader, back), copy(there, writer)):
            tasks.add(asyncio.get_running_loop().create_task(coro))

    server = await asyncio.start_server(take, "127.0.0.1")
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_balancer_is_no_worker_and_that_is_said() -> None:
    async with story(2) as told, balancer(*(sim.url for sim in told.sims)) as url:
        assert told.sims[0].engine is not None
        told.sims[0].engine.started += 100.0  # the other one began before it
        await told.admin("/admin/workers", "POST", json={"url": url})

        async def is_refused() -> bool:
            endpoint = next(e for e in (await told.admin("/admin/workers"))["endpoints"] if e["url"] == url)
            return "several engines answer here" in (endpoint["last_error"] or "") and not endpoint["workers"]

        await told.until(is_refused)
        assert {member.worker.url for member in told.gateway.fleet} == {sim.url for sim in told.sims}


async def test_addresses_that_are_none_of_a_worker_are_not_connected_to() -> None:
    async with story(1, worker_networks=["127.0.0.1"]) as told:
        assert await told.ask()
        answer = await told.admin("/admin/workers", "POST", json={"url": "http://127.0.0.2:1"})
        assert "127.0.0.2 is in none of --worker-networks" in answer["error"]["message"]
        told.gateway.roster.add("http://127.0.0.2:1")
        await told.gateway.roster.first_look()
        errors = {e["url"]: e["last_error"] for e in (await told.admin("/admin/workers"))["endpoints"]}
        assert "127.0.0.2 is in none of --worker-networks" in errors["http://127.0.0.2:1"]
