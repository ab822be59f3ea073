"""A common directory: no parameters, no handshake, and no error where no blocks are in it."""

from array import array
from pathlib import Path

from aiohttp import ClientSession

from engines.sim.pd.storage import aligned, place
from tests.engines.sim.conftest import StartSim
from tests.engines.sim.pd.conftest import IDS, get, post, text_of


async def test_blocks_computed_by_one_worker_are_loaded_by_the_other(
    start_sim: StartSim, http: ClientSession, tmp_path: Path
) -> None:
    fields = {"pd_protocol": "shared_storage", "transfer_latency_s": 0.001}
    prefill = await start_sim(pd_role="prefill", pd_store=tmp_path / "kv", **fields)
    decode = await start_sim(pd_role="decode", pd_store=tmp_path / "kv", **fields)
    alone = await start_sim()
    _, whole = await post(http, alone)
    _, first = await post(http, prefill, max_tokens=1)
    assert first["kv_transfer_params"] is None
    status, answer = await post(http, decode)
    assert (status, text_of(answer)) == (200, text_of(whole))
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 96
    counts = (await get(http, decode.url + "/sim/stats"))["ranks"][0]
    assert (counts["external_tokens"], counts["prefix_hits"]) == (96, 0)


async def test_missing_blocks_are_computed(start_sim: StartSim, http: ClientSession, tmp_path: Path) -> None:
    sim = await start_sim(pd_role="decode", pd_protocol="shared_storage", pd_store=tmp_path)
    status, answer = await post(http, sim)
    assert (status, answer["usage"]["prompt_tokens_details"]["cached_tokens"]) == (200, 0)
    info = await get(http, sim.url + "/server_info?config_format=json")
    reported = info["vllm_config"]["kv_transfer_config"]
    assert reported["kv_connector"] == "ExampleConnector"
    assert reported["kv_connector_extra_config"] == {"shared_storage_path": str(tmp_path)}


def test_a_prompt_is_found_by_its_full_blocks(tmp_path: Path) -> None:
    assert [aligned(num, 16) for num in (0, 1, 16, 17, 33)] == [0, 0, 0, 16, 32]
    first, same, second = array("I", IDS[:20]), array("I", [*IDS[:16], 1, 2]), array("I", IDS[1:21])
    assert place(tmp_path, first, 16) == place(tmp_path, same, 16) != place(tmp_path, second, 16)
