"""A transfer id connects the legs; the engine id is read from the bootstrap port."""

import asyncio
from typing import Any

import pytest
from aiohttp import ClientSession

from engines.sim import Sim
from engines.sim.pd.mooncake import found, query_response
from tests.engines.sim.conftest import StartSim
from tests.engines.sim.pd.conftest import get, post, text_of

FIELDS = {"pd_protocol": "mooncake", "transfer_latency_s": 0.001}


async def pair(start_sim: StartSim, **fields: Any) -> tuple[Sim, Sim]:
    common = FIELDS | fields
    return await start_sim(pd_role="prefill", **common), await start_sim(pd_role="decode", **common)


async def legs(
    http: ClientSession, prefill: Sim, key: str = "xfer-1"
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fields of both requests, as a gateway makes them."""
    port = (await get(http, prefill.url + "/sim/stats"))["pd"]["bootstrap_port"]
    address = f"http://127.0.0.1:{port}"
    entry = (await get(http, address + "/query"))["0"]
    first = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": key}
    second = {
        "do_remote_decode": False,
        "do_remote_prefill": True,
        "transfer_id": key,
        "remote_bootstrap_addr": address,
        "remote_engine_id": entry["engine_id"],
    }
    return {"kv_transfer_params": first, "max_tokens": 1}, {"kv_transfer_params": second}


@pytest.mark.parametrize("at_once", [False, True])
async def test_prefill_and_decode_share_blocks(
    start_sim: StartSim, http: ClientSession, at_once: bool
) -> None:
    prefill, decode = await pair(start_sim)
    alone = await start_sim()
    first, second = await legs(http, prefill)
    if at_once:
        (_, answered), (status, answer) = await asyncio.gather(
            post(http, prefill, **first), post(http, decode, **second)
        )
    else:
        _, answered = await post(http, prefill, **first)
        status, answer = await post(http, decode, **second)
    assert answered["kv_transfer_params"] is None
    assert (status, text_of(answer)) == (200, text_of((await post(http, alone))[1]))


async def test_a_transfer_id_is_served_once(start_sim: StartSim, http: ClientSession) -> None:
    prefill, decode = await pair(start_sim)
    first, second = await legs(http, prefill)
    await post(http, prefill, **first)
    assert (await post(http, decode, **second))[0] == 200
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await post(http, decode, **second)


async def test_a_restarted_engine_at_the_same_address_is_another(
    start_sim: StartSim, http: ClientSession
) -> None:
    prefill, decode = await pair(start_sim)
    first, second = await legs(http, prefill)
    await prefill.restart()
    await post(http, prefill, **first)
    assert (await post(http, decode, **second))[0] == 500


async def test_a_prompt_that_was_never_prefilled_fails_in_decode(
    start_sim: StartSim, http: ClientSession
) -> None:
    prefill, decode = await pair(start_sim, lease_s=0.05)
    _, second = await legs(http, prefill)
    assert (await post(http, decode, **second))[0] == 500


async def test_an_unreachable_bootstrap_port_is_an_error(start_sim: StartSim, http: ClientSession) -> None:
    prefill, decode = await pair(start_sim, pull_timeout_s=0.2)
    first, second = await legs(http, prefill)
    await post(http, prefill, **first)
    await prefill.stop()
    assert (await post(http, decode, **second))[0] == 500


async def test_without_an_id_nothing_is_pinned(start_sim: StartSim, http: ClientSession) -> None:
    prefill, _ = await pair(start_sim)
    status, _ = await post(http, prefill, kv_transfer_params={"do_remote_decode": True}, max_tokens=1)
    assert status == 200
    assert (await get(http, prefill.url + "/sim/stats"))["pd"]["pinned_blocks"] == 0


async def test_a_finished_prompt_is_not_sent(start_sim: StartSim, http: ClientSession) -> None:
    prefill, _ = await pair(start_sim, mean_output_tokens=1)
    first, _ = await legs(http, prefill)
    _, answer = await post(http, prefill, **first, ignore_eos=False)
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert (await get(http, prefill.url + "/sim/stats"))["pd"]["pinned_blocks"] == 0


async def test_a_leg_of_another_role_is_ignored(start_sim: StartSim, http: ClientSession) -> None:
    prefill, decode = await pair(start_sim)
    first, second = await legs(http, prefill)
    for sim, leg in ((prefill, second), (decode, first)):
        status, answer = await post(http, sim, **leg)
        assert (status, answer["error"]["message"].split()[0]) == (500, "EngineCore")


async def test_decode_has_no_bootstrap_port(start_sim: StartSim, http: ClientSession) -> None:
    _, decode = await pair(start_sim)
    assert (await get(http, decode.url + "/sim/stats"))["pd"]["bootstrap_port"] is None


def test_the_bootstrap_port_reports_the_engine_id() -> None:
    answer = query_response("e", "10.0.0.1", 5600, 2)
    assert sorted(answer) == ["0", "1"]
    assert found(answer, "e") == ("10.0.0.1", 5600)
    assert found(answer, "other") is None
