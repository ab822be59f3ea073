"""Pairs of simulated workers."""

from typing import Any

from aiohttp import ClientSession

from engines.sim import Sim

IDS = list(range(1000, 1100))
ASK = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
}


async def post(
    http: ClientSession, sim: Sim, path: str = "/v1/completions", **fields: Any
) -> tuple[int, dict[str, Any]]:
    body = {"model": "m", "prompt": IDS, "max_tokens": 8, "ignore_eos": True} | fields
    async with http.post(sim.url + path, json=body) as answer:
        return answer.status, await answer.json()


async def prefilled(http: ClientSession, sim: Sim, **fields: Any) -> dict[str, Any]:
    """Parameters of NIXL's prefill leg."""
    status, answer = await post(http, sim, max_tokens=1, kv_transfer_params=ASK, **fields)
    assert status == 200, answer
    params: dict[str, Any] = answer["kv_transfer_params"]
    return params


def text_of(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["text"])


async def get(http: ClientSession, url: str) -> Any:
    async with http.get(url) as answer:
        return await answer.json()
