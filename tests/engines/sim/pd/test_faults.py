"""Injected faults of prefill and transfers, on a running worker."""

import asyncio
import sys
from typing import Any

import pytest
from aiohttp import ClientSession

from engines.sim import Sim
from tests.engines.sim.conftest import StartSim
from tests.engines.sim.pd.conftest import ASK, IDS, get, post, prefilled
from tests.support.patience import patience

SOON = {"transfer_latency_s": 0.001}


async def break_it(http: ClientSession, sim: Sim, **faults: Any) -> None:
    async with http.post(sim.url + "/sim/faults", json=faults) as answer:
        assert answer.status == 200, await answer.text()


async def test_prefill_rejects_by_fault(start_sim: StartSim, http: ClientSession) -> None:
    sim = await start_sim(pd_role="both")
    await break_it(http, sim, refuse_prefill={"next": 1})
    assert (await post(http, sim))[0] == 200, "requests that are whole are none of it"
    status, answer = await post(http, sim, kv_transfer_params=ASK)
    assert (status, answer["error"]["type"]) == (503, "ServiceUnavailableError")
    await prefilled(http, sim)


async def test_prefill_answers_without_parameters_by_fault(start_sim: StartSim, http: ClientSession) -> None:
    sim = await start_sim(pd_role="prefill")
    await break_it(http, sim, omit_params={"next": 1})
    status, answer = await post(http, sim, kv_transfer_params=ASK, max_tokens=1)
    assert (status, answer["kv_transfer_params"]) == (200, None)
    assert (await get(http, sim.url + "/sim/stats"))["pd"]["pinned_blocks"] == 7, "they stay all the same"
    await prefilled(http, sim)


@pytest.mark.parametrize("fault", ["drop_pinned", "hang_transfer"])
async def test_promised_blocks_cannot_be_fetched_by_fault(
    start_sim: StartSim, http: ClientSession, fault: str
) -> None:
    prefill = await start_sim(pd_role="prefill", **SOON)
    decode = await start_sim(pd_role="decode", pull_timeout_s=0.1, **SOON)
    patient = await start_sim(pd_role="decode", **SOON)
    before = await prefilled(http, prefill)
    await break_it(http, prefill, **{fault: True})
    after = await prefilled(http, prefill)
    for params in (before, after):
        assert (await post(http, decode, kv_transfer_params=params))[0] == 500
    await break_it(http, prefill)
    assert (await post(http, patient, kv_transfer_params=await prefilled(http, prefill)))[0] == 200


async def test_transfers_are_slow_by_fault(start_sim: StartSim, http: ClientSession) -> None:
    prefill = await start_sim(pd_role="prefill", **SOON)
    decode = await start_sim(pd_role="decode", **SOON)
    await break_it(http, decode, slow_transfer=100_000)
    params = await prefilled(http, prefill)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await post(http, decode, kv_transfer_params=params)
    assert (await get(http, decode.url + "/sim/stats"))["pd"]["loading"] == 1


async def test_legs_count_tokens_differently_by_fault(start_sim: StartSim, http: ClientSession) -> None:
    sim = await start_sim(pd_role="decode")
    await break_it(http, sim, extra_prompt_tokens=2)
    _, answer = await post(http, sim)
    assert answer["usage"]["prompt_tokens"] == 102
    assert answer["usage"]["total_tokens"] == 102 + answer["usage"]["completion_tokens"]


@pytest.mark.process
async def test_prefill_dies_after_its_answer_by_fault(http: ClientSession) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "engines.sim", "--pd-role", "prefill", "--until-eof",
        "--faults", '{"exit_after_prefill": true}',
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        url = (await process.stdout.readline()).decode().split()[2]
        body = {"model": "m", "prompt": IDS, "max_tokens": 1, "kv_transfer_params": ASK}
        async with http.post(url + "/v1/completions", json=body) as answer:
            assert (await answer.json())["kv_transfer_params"]["do_remote_prefill"]
        async with asyncio.timeout(patience(5)):
            assert await process.wait() == 1
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
