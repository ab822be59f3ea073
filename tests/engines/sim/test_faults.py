"""Faults: plans, probabilities, and the view of clients and subscribers."""

import asyncio
import random
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import ClientSession
from hypothesis import given
from hypothesis import strategies as st

from engines.sim import Sim
from engines.sim.faults import Chance, Dice, EventFaults, FaultPlan, parse_faults
from tests.engines.sim.conftest import StartSim

IDS = list(range(1000, 1100))


def frames(number: int) -> tuple[bytes, bytes, bytes]:
    return b"topic", b"%d" % number, b"payload"


# plans --------------------------------------------------------------------------------------------


def test_an_empty_plan_has_no_faults() -> None:
    assert parse_faults("{}") == FaultPlan()


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        ('{"loose": {}}', "loose"),
        ('{"lose": {"probability": 2}}', "lose: .*from 0 to 1"),
        ('{"lose": {"next": -1}}', "must not be negative"),
        ('{"connections": "maybe"}', r"\$.connections"),
        ('{"slow": 0}', "slow must be positive"),
        ("nonsense", "malformed"),
    ],
)
def test_an_invalid_plan_is_rejected(plan: str, says: str) -> None:
    with pytest.raises(msgspec.DecodeError, match=says):
        parse_faults(plan)


def test_counted_faults_hit_the_next_requests_and_others_by_chance() -> None:
    dice = Dice(Chance(next=3, probability=0.5), random.Random(1))
    rolls = [dice.roll() for _ in range(1003)]
    assert rolls[:3] == [True] * 3
    assert 400 < sum(rolls[3:]) < 600


@given(
    st.builds(
        FaultPlan,
        lose=st.builds(Chance, next=st.integers(0, 2), probability=st.sampled_from([0.0, 0.3])),
        duplicate=st.builds(Chance, next=st.integers(0, 2), probability=st.sampled_from([0.0, 0.3])),
        reorder=st.builds(Chance, next=st.integers(0, 2), probability=st.sampled_from([0.0, 0.3])),
    ),
    st.integers(0, 20),
)
def test_every_message_is_lost_or_arrives_in_the_end(faults: FaultPlan, count: int) -> None:
    events = EventFaults(faults, random.Random(7))
    out = [delivery for number in range(count) for delivery in events.deliver(frames(number))]
    out += events.release()
    arrived = {delivery.frames for delivery in out}
    assert arrived <= {frames(number) for number in range(count)}
    if faults.lose == Chance():
        assert len(arrived) == count
    if faults.duplicate == Chance():
        assert len(out) == len(arrived)


# over HTTP ----------------------------------------------------------------------------------------


async def plan(http: ClientSession, sim: Sim, **faults: Any) -> None:
    async with http.post(sim.url + "/sim/faults", json=faults) as answer:
        assert answer.status == 200, await answer.text()


async def complete(http: ClientSession, sim: Sim, **fields: Any) -> Any:
    body = {"model": "m", "prompt": IDS, "max_tokens": 1, "ignore_eos": True} | fields
    async with http.post(sim.url + "/v1/completions", json=body) as answer:
        return answer.status, await answer.read()


async def test_an_invalid_plan_over_http_is_rejected_and_changes_nothing(
    start_sim: StartSim, http: ClientSession
) -> None:
    sim = await start_sim()
    async with http.post(sim.url + "/sim/faults", json={"slow": -1}) as answer:
        assert (answer.status, "slow" in await answer.text()) == (400, True)
    async with http.get(sim.url + "/sim/faults") as answer:
        assert (await answer.json())["slow"] == 1.0


async def test_connections_are_refused(start_sim: StartSim, http: ClientSession) -> None:
    sim = await start_sim()
    await plan(http, sim, connections="reset")
    with pytest.raises(aiohttp.ClientConnectionError):
        await complete(http, sim)
    await plan(http, sim, connections="503")
    assert (await complete(http, sim))[0] == 503
    async with http.get(sim.url + "/health") as answer:
        assert answer.status == 503
    await plan(http, sim)
    assert (await complete(http, sim))[0] == 200


async def test_requests_are_lost_while_probes_are_answered(start_sim: StartSim, http: ClientSession) -> None:
    sim = await start_sim()
    await plan(http, sim, connections="die")
    with pytest.raises(aiohttp.ClientConnectionError):
        await complete(http, sim)
    for path in ("/health", "/metrics", "/v1/models"):
        async with http.get(sim.url + path) as answer:
            assert answer.status == 200
    async with http.get(sim.url + "/sim/stats") as answer:
        assert (await answer.json())["requests"] == 1


async def test_a_hanging_connection_is_closed_by_the_client(start_sim: StartSim, http: ClientSession) -> None:
    sim = await start_sim()
    await plan(http, sim, connections="hang")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await complete(http, sim)


async def test_a_stream_is_cut_after_the_given_number_of_chunks(
    start_sim: StartSim, http: ClientSession
) -> None:
    sim = await start_sim()
    await plan(http, sim, cut={"next": 1, "after_chunks": 3})
    body = {"model": "m", "prompt": IDS, "max_tokens": 9, "ignore_eos": True, "stream": True}
    received = b""
    with pytest.raises(aiohttp.ClientPayloadError):
        async with http.post(sim.url + "/v1/completions", json=body) as answer:
            async for data in answer.content.iter_any():
                received += data
    assert received.count(b"data: ") == 3
    status, whole = await complete(http, sim, max_tokens=9, stream=True)
    assert (status, whole.count(b"data: ")) == (200, 10), "the next one is left alone"


async def test_a_stream_is_cut_before_the_first_chunk(start_sim: StartSim, http: ClientSession) -> None:
    sim = await start_sim()
    await plan(http, sim, cut={"probability": 1.0, "after_chunks": 0})
    with pytest.raises(aiohttp.ClientPayloadError):
        await complete(http, sim, stream=True)


async def test_a_slow_engine_takes_longer(start_sim: StartSim, http: ClientSession) -> None:
    sim = await start_sim()
    await plan(http, sim, slow=400.0)
    loop = asyncio.get_running_loop()
    begin = loop.time()
    await complete(http, sim)
    assert loop.time() - begin > 400 / 20_000


async def test_a_hanging_engine_answers_health_and_continues_later(
    start_sim: StartSim, http: ClientSession
) -> None:
    sim = await start_sim()
    await plan(http, sim, hang=True)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await complete(http, sim)
    async with http.get(sim.url + "/health") as answer:
        assert answer.status == 200
    await plan(http, sim)
    assert (await complete(http, sim))[0] == 200


async def test_lost_events_leave_a_gap_that_a_replay_fills(start_sim: StartSim, http: ClientSession) -> None:
    sim = await start_sim()
    await plan(http, sim, lose={"next": 1})
    await complete(http, sim)
    publisher = sim.ranks[0].publisher
    assert publisher is not None
    assert (publisher.next_seq, len(publisher._buffer)) == (1, 1)


async def test_faults_apply_from_the_start(start_sim: StartSim, http: ClientSession) -> None:
    sim = await start_sim(faults='{"connections": "503"}')
    assert (await complete(http, sim))[0] == 503
