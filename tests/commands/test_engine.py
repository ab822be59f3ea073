"""`kvgate engine test URL`: its report and exit status."""

import json

import pytest
from aiohttp import web

from engines.sim import Sim, SimConfig
from gateway import cli
from gateway.app.gateway import Gateway
from gateway.commands.engine import report_on
from gateway.config import config_of
from tests.support.fakes import serve, url_of


def test_an_address_without_a_worker_is_reported_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["engine", "test", "http://127.0.0.1:1"]) == 1
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "http://127.0.0.1:1"
    assert printed[1].startswith("  FAIL          probe  http://127.0.0.1:1/health: ")
    assert printed[2].endswith("→ it would not join the fleet")


def test_the_report_is_json_where_that_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["engine", "test", "http://127.0.0.1:1", "--json"]) == 1
    read = json.loads(capsys.readouterr().out)
    assert (read["usable"], read["findings"][0]["result"]) == (False, "fail")


async def test_the_report_names_engine_version_and_models() -> None:
    sim = await Sim(SimConfig(port=0, prefill_tokens_per_s=200_000.0, decode_tokens_per_s=500.0)).start()
    gateway = Gateway(config_of(worker=[sim.url]))
    try:
        report = await report_on(gateway, sim.url)
    finally:
        await gateway.stop(0)
        await sim.stop()
    assert report.subject.startswith(f"{sim.url}: vllm 0.")
    assert report.subject.endswith(", models m")
    assert report.is_usable, report.lines()


async def test_an_engine_that_token_ids_would_end_is_sent_none() -> None:
    async def models(request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "m", "object": "model", "created": 1}]})

    async def health(request: web.Request) -> web.Response:
        return web.Response()

    prompts: list[object] = []

    async def completions(request: web.Request) -> web.Response:
        prompts.append((await request.json()).get("prompt"))
        return web.Response(status=500)

    server = await serve(
        web.get("/v1/models", models), web.get("/health", health), web.post("/v1/completions", completions)
    )
    url = url_of(server)
    gateway = Gateway(config_of(worker=[url]))
    try:
        report = await report_on(gateway, url)
    finally:
        await gateway.stop(0)
        await server.close()
    assert report.subject.startswith(f"{url}: mlx ")
    (finding,) = (finding for finding in report.findings if finding.question == "token ids")
    assert finding.observed == "it accepts texts only, and a list may crash it: none was sent"
    assert prompts and not any(isinstance(prompt, list) for prompt in prompts)
