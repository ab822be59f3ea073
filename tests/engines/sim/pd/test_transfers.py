"""Prefill here, decode there: blocks fetched once, and the results of failures."""

import asyncio
import sys
from typing import Any

import pytest
from aiohttp import ClientSession

from engines.sim import Sim
from gateway.core.kv_events import BlocksStored
from tests.engines.sim.conftest import StartSim
from tests.engines.sim.pd.conftest import IDS, get, post, prefilled, text_of
from tests.support.patience import until
from tests.support.stories.sim_reading import replayed

SOON = {"transfer_latency_s": 0.001}
IMPATIENT = {"pull_timeout_s": 0.2}


async def pair(start_sim: StartSim, **fields: Any) -> tuple[Sim, Sim]:
    common = SOON | fields
    return await start_sim(pd_role="prefill", **common), await start_sim(pd_role="decode", **common)


async def pd_stats(http: ClientSession, sim: Sim) -> Any:
    return (await get(http, sim.url + "/sim/stats"))["pd"]


async def test_the_answer_is_that_of_a_single_worker(start_sim: StartSim, http: ClientSession) -> None:
    prefill, decode = await pair(start_sim)
    alone = await start_sim()
    _, whole = await post(http, alone)
    params = await prefilled(http, prefill)
    status, answer = await post(http, decode, kv_transfer_params=params)
    assert (status, text_of(answer)) == (200, text_of(whole))
    assert answer["usage"] == whole["usage"]


async def test_blocks_are_pinned_until_fetched(start_sim: StartSim, http: ClientSession) -> None:
    prefill, decode = await pair(start_sim)
    params = await prefilled(http, prefill)
    assert len(params["remote_block_ids"][0]) == 7, "the last, partial block too"
    assert (await pd_stats(http, prefill))["pinned_blocks"] == 7
    (rank,) = prefill.ranks
    assert rank.gauges.kv_usage > 0
    await post(http, decode, kv_transfer_params=params)
    stats = await pd_stats(http, prefill)
    assert (stats["pinned_blocks"], stats["fetched"], stats["late_fetches"]) == (0, 1, 0)
    assert rank.gauges.kv_usage == 0


async def test_fetched_blocks_are_cached_and_published_by_decode(
    start_sim: StartSim, http: ClientSession
) -> None:
    prefill, decode = await pair(start_sim)
    await post(http, decode, kv_transfer_params=await prefilled(http, prefill))
    stored = [
        event
        for batch in await replayed(decode.replay_endpoint)
        for event in batch.events
        if isinstance(event, BlocksStored)
    ]
    assert sum(len(event.engine_hashes) for event in stored) == 107 // 16
    params = await prefilled(http, prefill)
    assert params.pop("remote_prefill_cached_tokens") == 96, "prefill holds it as well"
    _, answer = await post(http, decode)
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 96


async def test_cached_tokens_are_those_of_prefill_where_passed_on(
    start_sim: StartSim, http: ClientSession
) -> None:
    prefill, decode = await pair(start_sim)
    params = await prefilled(http, prefill)
    assert params["remote_prefill_cached_tokens"] == 0
    _, reported = await post(http, decode, kv_transfer_params=params)
    assert reported["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    params = await prefilled(http, prefill, prompt=IDS[:50])
    del params["remote_prefill_cached_tokens"]
    other = await start_sim(pd_role="decode", **SOON)
    _, untold = await post(http, other, prompt=IDS[:50], kv_transfer_params=params)
    assert untold["usage"]["prompt_tokens_details"]["cached_tokens"] == 50, "all that it did not compute"
    counts = (await get(http, other.url + "/sim/stats"))["ranks"][0]
    assert (counts["external_tokens"], counts["prefix_hits"]) == (50, 0)


async def test_only_blocks_missing_at_decode_are_transferred(
    start_sim: StartSim, http: ClientSession
) -> None:
    prefill, decode = await pair(start_sim)
    await post(http, decode, prompt=IDS[:64])
    await post(http, decode, kv_transfer_params=await prefilled(http, prefill))
    counts = (await get(http, decode.url + "/sim/stats"))["ranks"][0]
    assert (counts["prefix_hits"], counts["external_tokens"]) == (64, 36)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_second_fetch_of_the_same_blocks_fails(
    start_sim: StartSim, http: ClientSession, stream: bool
) -> None:
    prefill, decode = await pair(start_sim)
    params = await prefilled(http, prefill)
    await post(http, decode, kv_transfer_params=params)
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": stream}
    async with http.post(
        decode.url + "/v1/chat/completions", json=body | {"kv_transfer_params": params}
    ) as answer:
        text = await answer.text()
        assert answer.status == (200 if stream else 500)
        assert '"message":"Internal server error"' in text
        assert text.endswith("data: [DONE]\n\n") == stream
    assert (await pd_stats(http, prefill))["late_fetches"] == 1
    assert (await pd_stats(http, decode))["failed_loads"] == 1


async def test_a_lease_expires(start_sim: StartSim, http: ClientSession) -> None:
    prefill, decode = await pair(start_sim, lease_s=0.05)
    params = await prefilled(http, prefill)

    async def is_unpinned() -> bool:
        return not (await pd_stats(http, prefill))["pinned_blocks"]

    await until(is_unpinned)
    assert (await pd_stats(http, prefill))["expired_leases"] == 1
    status, _ = await post(http, decode, kv_transfer_params=params)
    assert status == 500


async def test_with_recompute_a_failed_transfer_is_computed(start_sim: StartSim, http: ClientSession) -> None:
    prefill, decode = await pair(start_sim, kv_load_failure="recompute", **IMPATIENT)
    alone = await start_sim()
    params = await prefilled(http, prefill)
    await prefill.stop()
    status, answer = await post(http, decode, kv_transfer_params=params)
    _, whole = await post(http, alone)
    assert (status, text_of(answer)) == (200, text_of(whole))
    counts = (await get(http, decode.url + "/sim/stats"))["ranks"][0]
    assert (counts["failed_loads"], counts["external_tokens"]) == (1, 0)


async def test_a_restarted_engine_at_the_same_port_is_another(
    start_sim: StartSim, http: ClientSession
) -> None:
    prefill, decode = await pair(start_sim)
    params = await prefilled(http, prefill)
    await prefill.restart()
    assert (await post(http, decode, kv_transfer_params=params))[0] == 500


@pytest.mark.parametrize(
    "fields", [{"cache_dtype": "fp8"}, {"event_wire": "array"}, {"tp_size": 3}, {"model": "other"}]
)
async def test_an_incompatible_pair_fails(
    start_sim: StartSim, http: ClientSession, fields: dict[str, Any]
) -> None:
    prefill = await start_sim(pd_role="prefill", tp_size=2, **SOON)
    decode = await start_sim(pd_role="decode", **SOON | {"tp_size": 2, "alias": ("m",)} | fields)
    params = await prefilled(http, prefill)
    assert (await post(http, decode, kv_transfer_params=params))[0] == 500


async def test_block_sizes_may_differ(start_sim: StartSim, http: ClientSession) -> None:
    prefill = await start_sim(pd_role="prefill", block_size=32, **SOON)
    decode = await start_sim(pd_role="decode", **SOON)
    alone = await start_sim()
    params = await prefilled(http, prefill)
    status, answer = await post(http, decode, kv_transfer_params=params)
    assert (status, text_of(answer)) == (200, text_of((await post(http, alone))[1]))


async def test_keys_of_another_prompt_give_a_wrong_answer_without_an_error(
    start_sim: StartSim, http: ClientSession
) -> None:
    prefill, decode = await pair(start_sim)
    alone = await start_sim()
    params = await prefilled(http, prefill, prompt=[7, *IDS[1:]])
    status, answer = await post(http, decode, kv_transfer_params=params)
    _, whole = await post(http, alone)
    assert status == 200
    assert text_of(answer) != text_of(whole)
    assert sorted(text_of(answer).split()) == sorted(text_of(whole).split())
    assert (await pd_stats(http, decode))["mismatched_loads"] == 1


async def test_incomplete_parameters_are_waited_for(start_sim: StartSim, http: ClientSession) -> None:
    prefill, decode = await pair(start_sim)
    params = await prefilled(http, prefill)
    del params["remote_request_id"]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await post(http, decode, kv_transfer_params=params)
    status, _ = await post(http, decode)
    assert status == 200, "others are served, and who left holds nothing"

    async def is_free() -> bool:
        return (await get(http, decode.url + "/sim/stats"))["ranks"][0]["free_blocks"] == 199

    await until(is_free)


async def test_a_client_that_disconnects_during_a_fetch_leaves_no_state(
    start_sim: StartSim, http: ClientSession
) -> None:
    prefill, decode = await pair(start_sim, transfer_latency_s=0.1)
    params = await prefilled(http, prefill)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await post(http, decode, kv_transfer_params=params)

    async def is_unpinned() -> bool:
        return not (await pd_stats(http, prefill))["pinned_blocks"]

    await until(is_unpinned)
    (rank,) = decode.ranks
    assert rank.scheduler.cache.num_free == 199
    assert (rank.num_clients, rank.scheduler.loading) == (0, [])


async def test_a_worker_without_a_role_ignores_parameters(start_sim: StartSim, http: ClientSession) -> None:
    alone = await start_sim()
    _, answer = await post(http, alone, kv_transfer_params={"do_remote_prefill": True})
    assert answer["kv_transfer_params"] is None


async def test_a_streamed_prefill_has_no_parameters(start_sim: StartSim, http: ClientSession) -> None:
    prefill, _ = await pair(start_sim)
    body = {"model": "m", "prompt": IDS, "max_tokens": 1, "stream": True}
    async with http.post(
        prefill.url + "/v1/completions", json=body | {"kv_transfer_params": {"do_remote_decode": True}}
    ) as answer:
        assert "remote_block_ids" not in await answer.text()
    assert (await pd_stats(http, prefill))["pinned_blocks"] == 7


@pytest.mark.process
async def test_prefill_may_die_between_its_answer_and_the_fetch(
    start_sim: StartSim, http: ClientSession
) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "engines.sim", "--pd-role", "prefill", "--until-eof",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        ready = (await process.stdout.readline()).decode().split()
        url = ready[2]
        assert ready[-1].startswith("prefill=nixl:")
        decode = await start_sim(pd_role="decode", **IMPATIENT)
        body = {
            "model": "m",
            "prompt": IDS,
            "max_tokens": 1,
            "kv_transfer_params": {"do_remote_decode": True},
        }
        async with http.post(url + "/v1/completions", json=body) as answer:
            params = (await answer.json())["kv_transfer_params"]
    finally:
        process.kill()
        await process.wait()
    status, reported = await post(http, decode, kv_transfer_params=params)
    assert (status, reported["error"]["message"]) == (500, "Internal server error")


async def test_a_request_rejected_by_decode_leaves_no_pinned_blocks(
    start_sim: StartSim, http: ClientSession
) -> None:
    prefill, decode = await pair(start_sim)
    params = await prefilled(http, prefill)
    status, _ = await post(http, decode, kv_transfer_params=params, max_tokens=10**6)
    assert status == 400
    stats = await pd_stats(http, prefill)
    assert (stats["pinned_blocks"], stats["fetched"], stats["expired_leases"]) == (0, 0, 0)


async def test_a_lease_lasts_while_decode_has_the_request_queued(
    start_sim: StartSim, http: ClientSession
) -> None:
    prefill = await start_sim(pd_role="prefill", **SOON)
    decode = await start_sim(pd_role="decode", max_num_seqs=1, lease_s=0.06, decode_tokens_per_s=1.0, **SOON)
    loop = asyncio.get_running_loop()
    params = await prefilled(http, prefill)
    assert prefill.engine is not None and prefill.engine.transfers is not None
    leases = prefill.engine.transfers.leases
    first = leases.next_deadline
    running = loop.create_task(post(http, decode, prompt=IDS[:20]))
    await until(lambda: decode.ranks[0].scheduler.running)
    waiting = loop.create_task(post(http, decode, kv_transfer_params=params))
    await until(lambda: leases.next_deadline != first)
    running.cancel()
    waiting.cancel()
    await asyncio.gather(running, waiting, return_exceptions=True)


async def test_requests_in_transfer_count_as_waiting(start_sim: StartSim, http: ClientSession) -> None:
    prefill, decode = await pair(start_sim, transfer_latency_s=60.0)
    params = await prefilled(http, prefill)
    asks = asyncio.get_running_loop().create_task(post(http, decode, kv_transfer_params=params))
    (rank,) = decode.ranks
    await until(lambda: rank.scheduler.loading)
    assert (rank.gauges.num_running, rank.gauges.num_waiting, rank.load) == (0, 1, 4)
    assert rank.gauges.kv_usage == pytest.approx(7 / 199)
    asks.cancel()
    await asyncio.gather(asks, return_exceptions=True)
