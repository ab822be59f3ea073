"""Gateways that tell each other of their bookings through a real Redis, before simulated engines: what one
has sent the others count, a burst spreads as one gateway would spread it, and whatever becomes of Redis, or
of a gateway, no request is lost and no booking stays.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from itertools import zip_longest
from typing import Any

import aiohttp
import pytest

from engines.sim import Sim, SimConfig
from gateway import request
from gateway.app import Gateway, bundled_tokenizer
from gateway.config import load
from gateway.core.worker import WorkerId
from tests.redis.serving import Server, redis_server, server
from tests.support.gateway_process import GatewayProcess

__all__ = ["redis_server", "server"]
pytestmark = pytest.mark.process

DEADLINE_S = 20.0
SLOW = {"prefill_tokens_per_s": 2e4, "decode_tokens_per_s": 20.0}
"""Engines at which requests are in flight for as long as a test looks."""


async def until(is_true: Any) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not is_true():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


PROMPT = list(range(1500))
BURST = 64


def worker_id(sim: Sim) -> WorkerId:
    return WorkerId(sim.url.removeprefix("http://"))


def known(gateway: Gateway) -> bool:
    """Events have told of the prompt."""
    return sum(gateway.index.num_blocks(member.worker.id) for member in gateway.fleet) >= len(PROMPT) // 16


class Several:
    """Gateways before the same engines, and a client of all."""

    def __init__(
        self, sims: Sequence[Sim], gateways: Sequence[Gateway], session: aiohttp.ClientSession
    ) -> None:
        self.sims, self.gateways, self.session = sims, gateways, session

    async def ask(self, number: int, prompt: Sequence[int], **more: Any) -> str:
        """One request to one of the gateways; the worker that answered."""
        url = f"http://127.0.0.1:{self.gateways[number].port}/v1/completions"
        body = {"model": "m", "prompt": list(prompt), "max_tokens": 4} | more
        async with self.session.post(url, json=body) as answer:
            assert answer.status == 200, await answer.text()
            await answer.read()
            return answer.headers["x-kvgate-worker"]

    def loads(self, number: int) -> tuple[int, int]:
        """Requests and tokens that a gateway counts in all, own and others'."""
        ledger = self.gateways[number].router.ledger
        loads = [each(worker_id(sim)) for sim in self.sims for each in (ledger.here, ledger.remote)]
        return sum(load.num_in_flight for load in loads), sum(load.booked_tokens for load in loads)

    def own(self, number: int) -> int:
        ledger = self.gateways[number].router.ledger
        return sum(ledger.here(worker_id(sim)).num_in_flight for sim in self.sims)

    def start(self, number: int, num: int) -> "asyncio.Future[list[str]]":
        """Requests that are in flight for a second."""
        return asyncio.gather(
            *[self.ask(number, range(9 * i, 9 * i + 400), max_tokens=20) for i in range(num)]
        )

    async def acquainted(self) -> None:
        for gateway in self.gateways:
            bookings = gateway.bookings
            assert bookings
            await until(lambda b=bookings: b.remote_hosts.num_gateways == len(self.gateways) - 1)


@asynccontextmanager
async def several(
    server: Server,
    num: int = 2,
    *,
    workers: int = 2,
    booking: str = "auto",
    redis_timeout_s: float = 1.0,
    **sim: Any,
) -> AsyncIterator[Several]:
    flags = {
        "kv_blocks": 2000,
        "max_num_seqs": 256,
        "prefill_tokens_per_s": 1e6,
        "decode_tokens_per_s": 2000.0,
    } | sim
    async with AsyncExitStack() as stack:
        sims = []
        for seed in range(workers):
            sims.append(await Sim(SimConfig(port=0, seed=seed, **flags)).start())
            stack.push_async_callback(sims[-1].stop)
        gateways = []
        for _ in range(num):
            config = load(
                {
                    "worker": [sim.url for sim in sims],
                    "tokenizer": [str(bundled_tokenizer())],
                    "port": 0,
                    "admin_port": 0,
                    "expose_headers": True,
                    "policy": "prefix_overlap",  # one that learns decides anew with each answer
                    "redis": server.url,
                    "redis_timeout_s": redis_timeout_s,
                    "booking": booking,
                },
                environ={},
            )
            gateway = Gateway(config)
            stack.push_async_callback(gateway.stop, 0)
            await gateway.start()
            gateways.append(gateway)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        for gateway in gateways:
            await until(lambda g=gateway: len(g.fleet) == workers)
            await gateway.warm_up(5)
        told = Several(sims, gateways, session)
        await told.acquainted()
        yield told


async def test_what_one_has_in_flight_the_others_count(server: Server) -> None:
    async with several(server, 3, **SLOW) as told:
        asked = asyncio.gather(*[told.ask(0, range(100 * i, 100 * i + 400), max_tokens=20) for i in range(5)])
        await until(lambda: told.own(0) == 5)
        for number in (1, 2):
            await until(lambda n=number: told.loads(n)[0] == 5)
            assert told.own(number) == 0
        await asked
        for number in (0, 1, 2):
            await until(lambda n=number: told.loads(n) == (0, 0))


async def test_equal_prompts_one_after_the_other_go_where_another_gateway_sent_the_first(
    server: Server,
) -> None:
    """While nothing but the promise tells of it: the engine computes still."""
    async with several(server, prefill_tokens_per_s=1000.0, workers=3) as told:
        first = asyncio.gather(told.ask(0, range(1000)))
        await until(lambda: told.loads(1)[0] == 1)
        router = told.gateways[1].router

        decision = router.decide(request("/v1/completions", {"model": "m", "prompt": list(range(1000))}))
        overlaps = {c.id: c.overlap_tokens for c in decision.candidates}
        router.finish(decision)
        assert sorted(overlaps.values())[:2] == [0, 0] and max(overlaps.values()) > 900
        (worker,) = await first
        assert overlaps[WorkerId(worker)] > 900


@pytest.mark.parametrize("kind", ["new", "held"])
async def test_a_burst_in_turns_spreads_as_one_gateway_spreads_it(
    server: Server, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Equal prompts that come to all at once; with `held`, one worker has it already, and draws all gateways
    that do not know of each other. All gateways share one event loop here, so every timeout is longer than a
    busy machine makes that loop late."""
    for name, value in {"ANSWER_S": 60.0, "WAIT_S": 60.0, "HEAR_S": 60.0, "LEASE_MS": 60_000}.items():
        monkeypatch.setattr(f"gateway.bookings.atomic_lock.{name}", value)
    monkeypatch.setattr("gateway.bookings.remote_hosts.KEEP_S", 60.0)
    spreads = []
    for num in (1, 4):
        async with several(server, num, workers=4, booking="atomic", redis_timeout_s=60.0, **SLOW) as told:
            spreads.append(await spread_of(told, is_held=kind == "held"))
    assert moved(*spreads) <= BURST / 10, spreads


async def test_a_burst_of_which_nothing_is_heard_spreads_as_one_gateway_spreads_it(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes to all at once: each takes the others to do as it does."""
    monkeypatch.setattr("gateway.bookings.unconfirmed.LOST_S", 60.0)
    spreads = []
    for num in (1, 4):
        async with several(server, num, workers=4, **SLOW) as told:
            spreads.append(
                await spread_of(told, is_held=True, heard=server.paused if num > 1 else nullcontext)
            )
    assert moved(*spreads) <= BURST / 10, spreads


async def spread_of(
    told: Several, *, is_held: bool, heard: Callable[[], AbstractContextManager[None]] = nullcontext
) -> list[int]:
    """Requests per worker of a burst, the most first."""
    num = len(told.gateways)
    if is_held:
        await told.ask(0, PROMPT)
        await until(lambda: all(known(gateway) for gateway in told.gateways))
        await until(lambda: [told.loads(n) for n in range(num)] == [(0, 0)] * num)
    with heard():
        answers = await asyncio.gather(*[told.ask(i % num, PROMPT, max_tokens=20) for i in range(BURST)])
    spread = Counter({worker_id(sim): 0 for sim in told.sims}) + Counter(answers)
    return sorted(spread.values(), reverse=True)


def moved(one: list[int], other: list[int]) -> float:
    """Requests that went elsewhere."""
    return sum(abs(a - b) for a, b in zip_longest(one, other, fillvalue=0)) / 2


async def test_a_gateway_that_is_killed_has_nothing_booked(server: Server) -> None:
    async with several(server, 1, **SLOW) as told:
        tokenizer = str(bundled_tokenizer())
        workers = [flag for sim in told.sims for flag in ("--worker", sim.url)]
        dies = GatewayProcess(*workers, "--tokenizer", tokenizer, "--redis", server.url)
        await asyncio.to_thread(dies.__enter__)
        body = {"model": "m", "prompt": PROMPT, "max_tokens": 400}
        asking = [told.session.post(f"{dies.url}/v1/completions", json=body) for _ in range(6)]
        lost = asyncio.gather(*asking, return_exceptions=True)
        await until(lambda: told.loads(0)[0] == 6)
        dies.process.kill()
        assert {type(each).__name__ for each in await lost} == {"ServerDisconnectedError"}
        await until(lambda: told.loads(0) == (0, 0))
        bookings = told.gateways[0].bookings
        assert bookings and (bookings.remote_hosts.num_dropped, bookings.remote_hosts.num_gateways) == (1, 0)
        await asyncio.to_thread(dies.stop)
        dies._log.close()


async def test_one_that_stops_says_so(server: Server) -> None:
    async with several(server) as told:
        bookings = told.gateways[0].bookings
        assert bookings
        before = bookings.remote_hosts.num_dropped  # on a busy machine either may have been silent for long
        await told.gateways[1].stop(0)
        await until(lambda: bookings.remote_hosts.num_gateways == 0)
        assert bookings.remote_hosts.num_dropped == before


@pytest.mark.parametrize("booking", ["shared", "atomic"])
async def test_redis_is_paused(server: Server, booking: str) -> None:
    """Requests go on, each gateway with its own bookings; then all is as before."""
    async with several(server, booking=booking, **SLOW) as told:
        with server.paused():
            first = told.start(0, 4)
            await until(lambda: told.own(0) == 4)
            await until(lambda: all(g.bookings and g.bookings.is_lost for g in told.gateways))
            await until(lambda: told.gateways[1].bookings.remote_hosts.num_gateways == 0)  # type: ignore[union-attr]
            assert told.loads(1) == (0, 0)
            await first
            second = told.start(0, 4)
            await until(lambda: told.own(0) == 4)
        await told.acquainted()
        await until(lambda: told.loads(1)[0] >= told.own(0))
        await second
        third = told.start(1, 3)
        await until(lambda: told.loads(0)[0] == 3)
        await third
        await until(lambda: told.loads(0) == told.loads(1) == (0, 0))


@pytest.mark.parametrize("booking", ["shared", "atomic"])
async def test_redis_is_emptied(server: Server, booking: str) -> None:
    async with several(server, booking=booking, **SLOW) as told:
        first = told.start(0, 3)
        await until(lambda: told.loads(1)[0] == 3)
        server.ask("FLUSHALL")
        second = told.start(1, 3)
        await until(lambda: told.own(1) == 3)
        await first
        await second
        await until(lambda: told.loads(0) == told.loads(1) == (0, 0))


async def test_what_is_no_message_is_counted(server: Server) -> None:
    async with several(server, 1) as told:
        bookings = told.gateways[0].bookings
        assert bookings
        server.ask("PUBLISH", "kvgate:0:bookings", b"hello")
        await until(lambda: bookings.num_undecodable == 1)
        await told.ask(0, PROMPT)


async def test_processes_of_one_host_are_one_host(server: Server) -> None:
    """What one process hears all know; what one has booked is told once."""
    async with several(server, 1, **SLOW) as told:
        workers = [flag for sim in told.sims for flag in ("--worker", sim.url)]
        flags = ("--tokenizer", str(bundled_tokenizer()), "--redis", server.url, "--processes", "2")
        beside = GatewayProcess(*workers, *flags)
        await asyncio.to_thread(beside.__enter__)
        try:
            bookings = told.gateways[0].bookings
            assert bookings
            await until(lambda: bookings.remote_hosts.num_gateways == 2)
            mine = told.start(0, 5)
            await until(lambda: told.own(0) == 5)
            async with asyncio.timeout(DEADLINE_S):
                while sum([w["in_flight_elsewhere"] for w in await asyncio.to_thread(beside.workers)]) != 5:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            body = {"model": "m", "prompt": PROMPT, "max_tokens": 20}
            posts = [told.session.post(f"{beside.url}/v1/completions", json=body) for _ in range(4)]
            theirs = asyncio.gather(*posts)
            await until(lambda: told.loads(0)[0] - told.own(0) == 4)
            assert {answer.status for answer in await theirs} == {200}
            await mine
            await until(lambda: told.loads(0) == (0, 0))
        finally:
            await asyncio.to_thread(beside.stop)
            told_log = beside.log()
            beside._log.close()
        assert "Traceback" not in told_log and " ERROR " not in told_log, told_log


async def test_clocks_that_differ_by_a_minute_do_not_matter(server: Server) -> None:
    """Of two monotonic clocks none says what the other does: nothing of a clock is told."""
    async with several(server, **SLOW) as told:
        bookings = told.gateways[1].bookings
        assert bookings
        bookings._clock = lambda: time.monotonic() - 60.0
        bookings.remote_hosts.begin()
        asked = told.start(0, 3)
        await until(lambda: told.loads(1)[0] == 3)
        await asked
        await until(lambda: told.loads(1) == (0, 0))
