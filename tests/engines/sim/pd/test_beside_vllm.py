"""The simulated pair beside a real one's recorded answers: the same fields, of the same types."""

import json
from typing import Any

import pytest
from aiohttp import ClientSession

from tests import DATA
from tests.engines.sim.conftest import StartSim
from tests.engines.sim.pd.conftest import ASK, get, post
from tests.support.stories.sim_reading import metrics_of

SEEN = DATA / "vllm_pd" / "vllm-0.32.0.json"
REAL: Any = json.loads(SEEN.read_text())


def shape(value: Any) -> Any:
    """Names and types; for a list, those of its items."""
    if isinstance(value, dict):
        return {name: shape(item) for name, item in value.items()}
    return [shape(item) for item in value[:1]] if isinstance(value, list) else type(value).__name__


async def test_the_prefill_answer_has_the_recorded_fields(start_sim: StartSim, http: ClientSession) -> None:
    sim = await start_sim(pd_role="prefill", block_size=32)
    _, answer = await post(http, sim, max_tokens=1, kv_transfer_params=ASK)
    assert shape(answer) == shape(REAL["prefill"])
    ours, theirs = answer["kv_transfer_params"], REAL["prefill"]["kv_transfer_params"]
    assert len(ours["remote_block_ids"][0]) == len(theirs["remote_block_ids"][0])
    for name in ("do_remote_prefill", "do_remote_decode", "remote_num_tokens", "transfer_mode"):
        assert ours[name] == theirs[name]


async def test_a_failed_transfer_has_the_recorded_fields(start_sim: StartSim, http: ClientSession) -> None:
    sim = await start_sim(pd_role="decode", pull_timeout_s=0.1)
    params = REAL["prefill"]["kv_transfer_params"] | {"remote_port": 1}
    assert await post(http, sim, kv_transfer_params=params) == (500, REAL["failed"])


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_the_reported_role_has_the_recorded_fields(
    start_sim: StartSim, http: ClientSession, role: str
) -> None:
    sim = await start_sim(pd_role=role)
    info = await get(http, sim.url + "/server_info?config_format=json")
    reported, real = info["vllm_config"]["kv_transfer_config"], REAL["kv_transfer_config"][role]
    assert reported | {"engine_id": ""} == real | {"engine_id": ""}
    names = {name.partition("{")[0] for name in await metrics_of(http, sim.url)}
    every = {name for names in REAL["metrics"].values() for name in names}
    assert names & every == set(REAL["metrics"][role])
