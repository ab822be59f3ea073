"""Both legs at once, connected by a room: waiting for the other leg, and the errors where it does not
come.
"""

import asyncio
from typing import Any

import pytest
from aiohttp import ClientSession

from engines.sglang import Sglang
from engines.sim import Sim
from engines.sim.params import FlatError
from engines.sim.pd.leg import Leg, Source
from engines.sim.pd.sglang import read
from tests.engines.sim.conftest import StartSim
from tests.engines.sim.pd.conftest import IDS, get, post, text_of
from tests.support.patience import until

FIELDS = {"pd_protocol": "sglang", "transfer_latency_s": 0.001}


async def pair(start_sim: StartSim, **fields: Any) -> tuple[Sim, Sim]:
    common = FIELDS | fields
    return await start_sim(pd_role="prefill", **common), await start_sim(pd_role="decode", **common)


async def room(http: ClientSession, prefill: Sim, number: int = 77) -> dict[str, Any]:
    info = await get(http, prefill.url + "/server_info")
    port = info["disaggregation_bootstrap_port"]
    return {"bootstrap_host": "127.0.0.1", "bootstrap_port": port, "bootstrap_room": number}


async def test_both_legs_at_once_give_the_answer_of_one_worker(
    start_sim: StartSim, http: ClientSession
) -> None:
    prefill, decode = await pair(start_sim)
    alone = await start_sim()
    where = await room(http, prefill)
    (p_status, first), (d_status, answer) = await asyncio.gather(
        post(http, prefill, **where), post(http, decode, **where)
    )
    _, whole = await post(http, alone)
    assert (p_status, d_status, text_of(answer)) == (200, 200, text_of(whole))
    assert first["usage"]["completion_tokens"] == 1
    assert text_of(whole).startswith(text_of(first))
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, "what came does not count"


@pytest.mark.parametrize("is_prefill_first", [True, False])
async def test_each_leg_waits_for_the_other(
    start_sim: StartSim, http: ClientSession, is_prefill_first: bool
) -> None:
    prefill, decode = await pair(start_sim)
    where = await room(http, prefill)
    first, second = (prefill, decode) if is_prefill_first else (decode, prefill)
    waits = asyncio.get_running_loop().create_task(post(http, first, **where))
    done, _ = await asyncio.wait([waits], timeout=0.1)
    assert not done, "no answer before the other leg came"
    assert (await post(http, second, **where))[0] == 200
    assert (await waits)[0] == 200


async def test_a_streamed_request_is_answered_by_decode(start_sim: StartSim, http: ClientSession) -> None:
    prefill, decode = await pair(start_sim)
    where = await room(http, prefill)
    body = {"model": "m", "prompt": IDS, "max_tokens": 3, "ignore_eos": True, "stream": True} | where

    async def read_all(sim: Sim) -> str:
        async with http.post(sim.url + "/v1/completions", json=body) as answer:
            return await answer.text()

    first, whole = await asyncio.gather(read_all(prefill), read_all(decode))
    assert (first.count("data: "), whole.count("data: ")) == (2, 4)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_leg_without_its_other_leg_fails(
    start_sim: StartSim, http: ClientSession, stream: bool
) -> None:
    prefill, _ = await pair(start_sim, lease_s=0.05)
    where = await room(http, prefill)
    body = {"model": "m", "prompt": IDS, "max_tokens": 3, "stream": stream} | where
    async with http.post(prefill.url + "/v1/completions", json=body) as answer:
        assert answer.status == (200 if stream else 500)
        assert "Prefill transfer failed" in await answer.text()
    assert (await get(http, prefill.url + "/sim/stats"))["pd"]["pinned_blocks"] == 0


async def test_a_transfer_that_never_comes_fails(start_sim: StartSim, http: ClientSession) -> None:
    prefill, decode = await pair(start_sim, lease_s=0.05)
    status, answer = await post(http, decode, **await room(http, prefill))
    assert (status, answer["object"], answer["code"]) == (500, "error", 500)
    assert "Decode transfer failed" in answer["message"]


async def test_an_unreachable_prefill_worker_fails_the_transfer(
    start_sim: StartSim, http: ClientSession
) -> None:
    prefill, decode = await pair(start_sim, pull_timeout_s=0.2)
    where = await room(http, prefill)
    await prefill.stop()
    assert (await post(http, decode, **where))[0] == 500


async def test_a_disconnected_prefill_client_leaves_no_pinned_blocks(
    start_sim: StartSim, http: ClientSession
) -> None:
    prefill, _ = await pair(start_sim)
    where = await room(http, prefill)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await post(http, prefill, **where)

    async def is_unpinned() -> bool:
        return not (await get(http, prefill.url + "/sim/stats"))["pd"]["pinned_blocks"]

    await until(is_unpinned)


async def test_a_request_without_a_room_is_rejected_by_both(start_sim: StartSim, http: ClientSession) -> None:
    for sim in await pair(start_sim):
        status, answer = await post(http, sim)
        assert (status, answer["object"]) == (400, "error")
        assert "without bootstrap room id" in answer["message"]


async def test_the_room_decides_the_rank(start_sim: StartSim, http: ClientSession) -> None:
    prefill, decode = await pair(start_sim, dp_size=2)
    where = await room(http, prefill, number=5)
    await asyncio.gather(post(http, prefill, **where), post(http, decode, **where))
    assert [rank.num_steps > 0 for rank in prefill.ranks] == [False, True]


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_the_adapter_reads_the_role(start_sim: StartSim, http: ClientSession, role: str) -> None:
    sim = await start_sim(pd_role=role, **FIELDS)
    async with http.get(sim.url + "/server_info") as answer:
        info = Sglang().parse_info(await answer.read())
    assert info.role == role
    assert info.sources is not None and len(info.sources) == 1
    models = await get(http, sim.url + "/v1/models")
    assert models["data"][0]["owned_by"] == "sglang"


def test_a_leg_is_read_from_the_body() -> None:
    body = {"bootstrap_room": 0, "bootstrap_host": "h", "bootstrap_port": None}
    assert read(body, "decode") == Leg(
        fetches=True, source=Source("h", 8998, "0", may_wait=True), reports_own_hit=True
    )
    prefill = read(body, "prefill")
    assert prefill.pins and prefill.key == "0" and prefill.only_first_token
    with pytest.raises(FlatError):
        read({}, "decode")
