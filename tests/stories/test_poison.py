"""Requests that engines answer with 500, or die of, from one client beside others."""

from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gateway.app import Gateway
from gateway.config import config_of
from tests.support.fakes import serve, url_of
from tests.support.patience import until

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

NUM = 4
POISONS = 40
"""Each worker gets more of them in a row than eject one."""


async def models(request: web.Request) -> web.Response:
    return web.json_response({"data": [{"id": "m", "owned_by": "vllm", "root": "m"}]})


async def page(request: web.Request) -> web.Response:
    return web.Response(status=200 if request.path in ("/health", "/metrics") else 404)


async def answer(request: web.Request) -> web.Response:
    prompt = (await request.json())["prompt"]
    if "crash" in prompt and request.transport is not None:
        request.transport.abort()
    return web.json_response({"choices": []}, status=500 if "poison" in prompt else 200)


@pytest.mark.parametrize("poison", ["poison", "crash"])
@pytest.mark.parametrize("num_good", [0, 1])
async def test_one_clients_poison_ejects_at_most_one_worker(poison: str, num_good: int) -> None:
    routes = web.post("/v1/completions", answer), web.get("/v1/models", models), web.get("/{page:.*}", page)
    servers = [await serve(*routes) for _ in range(NUM)]
    urls = [url_of(server) for server in servers]
    gateway = Gateway(
        config_of(worker=urls, port=0, admin_port=0, policy="round_robin", probe_interval_s=0.2)
    )
    await gateway.start()
    try:
        await until(lambda: sum(member.is_up for member in gateway.fleet) == NUM)
        async with aiohttp.ClientSession() as session:
            statuses = await _ask(session, gateway.port, poison, num_good)
        assert statuses[:: 1 + num_good] == [502 if poison == "crash" else 500] * POISONS
        assert all(status == 200 for at, status in enumerate(statuses) if at % (1 + num_good))
        assert (
            [member.state for member in gateway.fleet].count("ejected") <= 1
            if num_good
            else not any(member.ejected for member in gateway.fleet)
        )
        if not num_good:
            assert gateway.parts.lifecycle.lifecycle.faults.by_key["none"] >= POISONS / 2
    finally:
        await gateway.stop(0.0)
        for server in servers:
            await server.close()


async def _ask(session: aiohttp.ClientSession, port: int, poison: str, num_good: int) -> list[int]:
    """Each poison request with the good ones after it, one at a time; their statuses."""
    statuses = []
    for number in range(POISONS):
        for prompt in (f"{poison} {number}", *[f"good {number}"] * num_good):
            body: dict[str, Any] = {"model": "m", "prompt": prompt}
            async with session.post(f"http://127.0.0.1:{port}/v1/completions", json=body) as got:
                statuses.append(got.status)
    return statuses
