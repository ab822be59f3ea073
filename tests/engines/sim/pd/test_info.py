"""Role that a worker reports, before any request."""

from typing import Any

import pytest
from aiohttp import ClientSession

from tests.engines.sim.conftest import StartSim
from tests.engines.sim.pd.conftest import get, prefilled
from tests.support.stories.sim_reading import metrics_of

ROLES = [("prefill", "kv_producer"), ("decode", "kv_consumer"), ("both", "kv_both")]


@pytest.mark.parametrize(("role", "kv_role"), ROLES)
async def test_a_worker_with_nixl_reports_its_role_and_cache(
    start_sim: StartSim, http: ClientSession, role: str, kv_role: str
) -> None:
    sim = await start_sim(pd_role=role, tp_size=2, cache_dtype="fp8", kv_load_failure="recompute")
    info: Any = await get(http, sim.url + "/server_info?config_format=json")
    reported = info["vllm_config"]["kv_transfer_config"]
    assert (reported["kv_connector"], reported["kv_role"]) == ("NixlConnector", kv_role)
    assert reported["kv_load_failure_policy"] == "recompute"
    assert info["vllm_config"]["cache_config"]["cache_dtype"] == "fp8"
    assert info["vllm_config"]["parallel_config"]["tensor_parallel_size"] == 2
    if role != "decode":
        params = await prefilled(http, sim)
        assert params["remote_engine_id"] == reported["engine_id"]
        assert params["remote_port"] == info["vllm_env"]["VLLM_NIXL_SIDE_CHANNEL_PORT"]


@pytest.mark.parametrize(("role", "fetches"), [("prefill", False), ("decode", True), ("both", True)])
async def test_metrics_of_fetches_exist_at_decode_workers(
    start_sim: StartSim, http: ClientSession, role: str, fetches: bool
) -> None:
    sim = await start_sim(pd_role=role)
    names = {name.partition("{")[0] for name in await metrics_of(http, sim.url)}
    assert "vllm:nixl_xfer_time_seconds_count" in names
    assert ("vllm:num_requests_kv_fetch_by_stage" in names) == fetches


async def test_a_worker_without_a_role_reports_none(start_sim: StartSim, http: ClientSession) -> None:
    sim = await start_sim()
    info = await get(http, sim.url + "/server_info?config_format=json")
    assert info["vllm_config"]["kv_transfer_config"] is None
    assert not any("nixl" in name or "kv_fetch" in name for name in await metrics_of(http, sim.url))


async def test_the_report_can_be_turned_off(start_sim: StartSim, http: ClientSession) -> None:
    sim = await start_sim(pd_role="decode", pd_info=False)
    async with http.get(sim.url + "/server_info") as answer:
        assert answer.status == 404


async def test_pinned_and_expired_blocks_are_exposed(start_sim: StartSim, http: ClientSession) -> None:
    sim = await start_sim(pd_role="prefill")
    await prefilled(http, sim)
    reported = await metrics_of(http, sim.url)
    labels = '{engine="0",model_name="m"}'
    assert reported["sim_pd_pinned_blocks" + labels] == 7
    assert reported["vllm:nixl_num_kv_expired_reqs_total" + labels] == 0
