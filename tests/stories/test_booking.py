"""Gateways that share their bookings through a real Redis, before simulated engines.

Each gateway counts the others' requests in flight, and a burst at several gateways spreads as one gateway
would spread it. Whatever happens to Redis or to a gateway, no request is lost and no booking stays.
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
from tests.support.gateway_process import GatewayProcess
from tests.support.patience import patience, until
from tests.support.redis_servers import Server, redis_server, server

__all__ = ["redis_server", "server"]
pytestmark = pytest.mark.process

DEADLINE_S = patience(20.0)
SLOW = {"prefill_tokens_per_s": 2e4, "decode_tokens_per_s": 20.0}
"""Engines slow enough that requests stay in flight while a test looks."""
SLOWEST = SLOW | {"decode_tokens_per_s": 0.5}
"""No first token comes within the two seconds of a step, in which also a busy machine sends a burst."""


PROMPT = list(range(1500))
BURST = 64


def worker_id(sim: Sim) -> WorkerId:
    return WorkerId(sim.url.removeprefix("http://"))


def has_prompt(gateway: Gateway) -> bool:
    """Events have reported the blocks of PROMPT."""
    return sum(gateway.index.num_blocks(member.worker.id) for member in gateway.fleet) >= len(PROMPT) // 16


class GatewayGroup:
    """Gateways before the same engines, and a client of them all."""

    def __init__(
        self, sims: Sequence[Sim], gateways: Sequence[Gateway], session: aiohttp.ClientSession
    ) -> None:
        self.sims, self.gateways, self.session = sims, gateways, session

    async def ask(self, number: int, prompt: Sequence[int], **more: Any) -> str:
        """The worker that answered a request to gateway `number`."""
        url = f"http://127.0.0.1:{self.gateways[number].port}/v1/completions"
        body = {"model": "m", "prompt": list(prompt), "max_tokens": 4} | more
        async with self.session.post(url, json=body) as answer:
            assert answer.status == 200, await answer.text()
            await answer.read()
            return answer.headers["x-kvgate-worker"]

    def loads(self, number: int) -> tuple[int, int]:
        """Requests in flight and booked tokens that a gateway counts, its own and the others'."""
        ledger = self.gateways[number].router.ledger
        loads = [each(worker_id(sim)) for sim in self.sims for each in (ledger.here, ledger.remote)]
        return sum(load.num_in_flight for load in loads), sum(load.booked_tokens for load in loads)

    def own(self, number: int) -> int:
        ledger = self.gateways[number].router.ledger
        return sum(ledger.here(worker_id(sim)).num_in_flight for sim in self.sims)

    def start(self, number: int, num_requests: int) -> "asyncio.Future[list[str]]":
        """`num_requests` to gateway `number`, in flight for a second."""
        return asyncio.gather(
            *[self.ask(number, range(9 * i, 9 * i + 400), max_tokens=20) for i in range(num_requests)]
        )

    async def until_acquainted(self) -> None:
        for gateway in self.gateways:
            bookings = gateway.parts.bookings.bookings
            assert bookings
            await until(lambda b=bookings: b.remote_hosts.num_gateways == len(self.gateways) - 1)


@asynccontextmanager
async def gateway_group(
    server: Server,
    num_gateways: int = 2,
    *,
    workers: int = 2,
    booking: str = "auto",
    redis_timeout_s: float = 1.0,
    **sim: Any,
) -> AsyncIterator[GatewayGroup]:
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
        for _ in range(num_gateways):
            config = load(
                {
                    "worker": [sim.url for sim in sims],
                    "tokenizer": [str(bundled_tokenizer())],
                    "port": 0,
                    "admin_port": 0,
                    "expose_headers": True,
                    "policy": "prefix_overlap",  # does not learn, so equal requests get equal decisions
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
        group = GatewayGroup(sims, gateways, session)
        await group.until_acquainted()
        yield group


async def test_gateways_count_each_others_requests_in_flight(server: Server) -> None:
    async with gateway_group(server, 3, **SLOW) as group:
        asked = asyncio.gather(
            *[group.ask(0, range(100 * i, 100 * i + 400), max_tokens=20) for i in range(5)]
        )
        await until(lambda: group.own(0) == 5)
        for number in (1, 2):
            await until(lambda n=number: group.loads(n)[0] == 5)
            assert group.own(number) == 0
        await asked
        for number in (0, 1, 2):
            await until(lambda n=number: group.loads(n) == (0, 0))


async def test_booking_of_another_gateway_predicts_the_overlap_of_an_equal_prompt(
    server: Server,
) -> None:
    """The engine computes still, so only the other gateway's booking predicts the overlap."""
    async with gateway_group(server, prefill_tokens_per_s=1000.0, workers=3) as group:
        first = asyncio.gather(group.ask(0, range(1000)))
        await until(lambda: group.loads(1)[0] == 1)
        router = group.gateways[1].router

        decision = router.decide(request("/v1/completions", {"model": "m", "prompt": list(range(1000))}))
        overlaps = {c.id: c.overlap_tokens for c in decision.candidates}
        router.finish(decision)
        assert sorted(overlaps.values())[:2] == [0, 0] and max(overlaps.values()) > 900
        (worker,) = await first
        assert overlaps[WorkerId(worker)] > 900


@pytest.mark.parametrize("kind", ["new", "cached"])
async def test_burst_with_atomic_booking_spreads_as_at_one_gateway(
    server: Server, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Equal prompts arrive at all gateways at once. With `cached`, one worker has the prompt already, and
    attracts all gateways that do not know of each other's bookings.

    All gateways share one event loop here, which a busy machine delays, so every timeout is long.
    """
    for name, value in {"ANSWER_S": 60.0, "WAIT_S": 60.0, "HEAR_S": 60.0, "LEASE_MS": 60_000}.items():
        monkeypatch.setattr(f"gateway.bookings.atomic_lock.{name}", value)
    monkeypatch.setattr("gateway.bookings.remote_hosts.KEEP_S", 60.0)
    spreads = []
    for num_gateways in (1, 4):
        async with gateway_group(
            server, num_gateways, workers=4, booking="atomic", redis_timeout_s=60.0, **SLOWEST
        ) as group:
            spreads.append(await spread_of(group, is_cached=kind == "cached"))
    assert moved(*spreads) <= BURST / 10, spreads


async def test_burst_with_unconfirmed_bookings_spreads_as_at_one_gateway(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each gateway estimates the others' unconfirmed bookings by its own."""
    monkeypatch.setattr("gateway.bookings.unconfirmed.LOST_S", 60.0)
    spreads = []
    for num_gateways in (1, 4):
        async with gateway_group(server, num_gateways, workers=4, **SLOWEST) as group:
            spreads.append(
                await spread_of(
                    group, is_cached=True, confirmations=server.paused if num_gateways > 1 else nullcontext
                )
            )
    assert moved(*spreads) <= BURST / 10, spreads


async def spread_of(
    group: GatewayGroup,
    *,
    is_cached: bool,
    confirmations: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> list[int]:
    """Requests per worker of a burst of equal prompts, in descending order."""
    num_gateways = len(group.gateways)
    if is_cached:
        await group.ask(0, PROMPT, max_tokens=1)
        await until(lambda: all(has_prompt(gateway) for gateway in group.gateways))
        await until(lambda: [group.loads(n) for n in range(num_gateways)] == [(0, 0)] * num_gateways)
    with confirmations():
        answers = await asyncio.gather(
            *[group.ask(i % num_gateways, PROMPT, max_tokens=1) for i in range(BURST)]
        )
    spread = Counter({worker_id(sim): 0 for sim in group.sims}) + Counter(answers)
    return sorted(spread.values(), reverse=True)


def moved(before: list[int], after: list[int]) -> float:
    """Number of requests by which two distributions over workers differ."""
    return sum(abs(a - b) for a, b in zip_longest(before, after, fillvalue=0)) / 2


async def test_bookings_of_a_killed_gateway_are_discarded(server: Server) -> None:
    async with gateway_group(server, 1, **SLOW) as group:
        tokenizer = str(bundled_tokenizer())
        workers = [flag for sim in group.sims for flag in ("--worker", sim.url)]
        killed = GatewayProcess(*workers, "--tokenizer", tokenizer, "--redis", server.url)
        await asyncio.to_thread(killed.__enter__)
        body = {"model": "m", "prompt": PROMPT, "max_tokens": 400}
        asking = [group.session.post(f"{killed.url}/v1/completions", json=body) for _ in range(6)]
        lost = asyncio.gather(*asking, return_exceptions=True)
        await until(lambda: group.loads(0)[0] == 6)
        killed.process.kill()
        assert {type(each).__name__ for each in await lost} == {"ServerDisconnectedError"}
        await until(lambda: group.loads(0) == (0, 0))
        bookings = group.gateways[0].parts.bookings.bookings
        assert bookings and (bookings.remote_hosts.num_dropped, bookings.remote_hosts.num_gateways) == (1, 0)
        await asyncio.to_thread(killed.stop)
        killed._log.close()


async def test_stopping_gateway_says_goodbye_to_the_others(server: Server) -> None:
    async with gateway_group(server) as group:
        bookings = group.gateways[0].parts.bookings.bookings
        assert bookings
        before = bookings.remote_hosts.num_dropped  # on a busy machine either gateway may have been silent
        await group.gateways[1].stop(0)
        await until(lambda: bookings.remote_hosts.num_gateways == 0)
        assert bookings.remote_hosts.num_dropped == before


@pytest.mark.parametrize("booking", ["shared", "atomic"])
async def test_gateways_count_only_their_own_bookings_while_redis_is_paused(
    server: Server, booking: str
) -> None:
    """Bookings are not shared while Redis is paused, and are shared again afterwards."""
    async with gateway_group(server, booking=booking, **SLOW) as group:
        with server.paused():
            first = group.start(0, 4)
            await until(lambda: group.own(0) == 4)
            bookings = [each.parts.bookings.bookings for each in group.gateways]
            await until(lambda: all(each and each.is_lost for each in bookings))
            await until(lambda: bookings[1] and bookings[1].remote_hosts.num_gateways == 0)
            assert group.loads(1) == (0, 0)
            await first
            second = group.start(0, 4)
            await until(lambda: group.own(0) == 4)
        await group.until_acquainted()
        await until(lambda: group.loads(1)[0] >= group.own(0))
        await second
        third = group.start(1, 3)
        await until(lambda: group.loads(0)[0] == 3)
        await third
        await until(lambda: group.loads(0) == group.loads(1) == (0, 0))


@pytest.mark.parametrize("booking", ["shared", "atomic"])
async def test_bookings_end_after_redis_is_emptied(server: Server, booking: str) -> None:
    async with gateway_group(server, booking=booking, **SLOW) as group:
        first = group.start(0, 3)
        await until(lambda: group.loads(1)[0] == 3)
        server.ask("FLUSHALL")
        second = group.start(1, 3)
        await until(lambda: group.own(1) == 3)
        await first
        await second
        await until(lambda: group.loads(0) == group.loads(1) == (0, 0))


async def test_undecodable_message_is_counted(server: Server) -> None:
    async with gateway_group(server, 1) as group:
        bookings = group.gateways[0].parts.bookings.bookings
        assert bookings
        server.ask("PUBLISH", "kvgate:0:bookings", b"hello")
        await until(lambda: bookings.num_undecodable == 1)
        await group.ask(0, PROMPT)


async def test_processes_of_a_host_share_their_bookings_with_another_host(server: Server) -> None:
    """All processes know what one receives from Redis, and each booking is published once."""
    async with gateway_group(server, 1, **SLOW) as group:
        workers = [flag for sim in group.sims for flag in ("--worker", sim.url)]
        flags = ("--tokenizer", str(bundled_tokenizer()), "--redis", server.url, "--processes", "2")
        beside = GatewayProcess(*workers, *flags)
        await asyncio.to_thread(beside.__enter__)
        try:
            bookings = group.gateways[0].parts.bookings.bookings
            assert bookings
            await until(lambda: bookings.remote_hosts.num_gateways == 2)
            asked = group.start(0, 5)
            await until(lambda: group.own(0) == 5)

            async def are_seen() -> bool:
                return sum([w["remote_in_flight"] for w in await asyncio.to_thread(beside.workers)]) == 5

            await until(are_seen)
            body = {"model": "m", "prompt": PROMPT, "max_tokens": 20}
            posts = [group.session.post(f"{beside.url}/v1/completions", json=body) for _ in range(4)]
            others = asyncio.gather(*posts)
            await until(lambda: group.loads(0)[0] - group.own(0) == 4)
            assert {answer.status for answer in await others} == {200}
            await asked
            await until(lambda: group.loads(0) == (0, 0))
        finally:
            await asyncio.to_thread(beside.stop)
            log = beside.log()
            beside._log.close()
        assert "Traceback" not in log and " ERROR " not in log, log


async def test_bookings_ignore_clocks_that_differ_by_a_minute(server: Server) -> None:
    """Monotonic clocks of two hosts are unrelated, so no published booking contains a time."""
    async with gateway_group(server, **SLOW) as group:
        bookings = group.gateways[1].parts.bookings.bookings
        assert bookings
        bookings._clock = lambda: time.monotonic() - 60.0
        bookings.remote_hosts.begin()
        asked = group.start(0, 3)
        await until(lambda: group.loads(1)[0] == 3)
        await asked
        await until(lambda: group.loads(1) == (0, 0))
