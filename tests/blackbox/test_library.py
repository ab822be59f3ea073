"""The installed library, as docs/guides/library.md shows it: a program outside of the checkout decides."""

import asyncio
import json
import os
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

import aiohttp

from engines.sim import Sim, SimConfig
from gateway.app import bundled_tokenizer
from loadtest.fleet import GATEWAY
from tests import ROOT

PROGRAM = """
import ast, asyncio, json, sys, sysconfig
import kvgate
names = {"__name__": "program"}
code = compile(sys.stdin.read(), "program", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
asyncio.run(eval(code, names))
decision = names["decision"]
print(json.dumps({
    "url": decision.worker.url, "num_tokens": decision.num_tokens, "load": names["load"],
    "file": kvgate.__file__, "packages": sysconfig.get_path("purelib"),
    "router": sys.modules[kvgate.Router.__module__].__file__,
}))
"""


def shown(urls: list[str]) -> str:
    """The program of the guide before these workers, with the simulated engine's tokenizer."""
    guide = (ROOT / "docs/guides/library.md").read_text()
    program = guide.partition("```python\n")[2].partition("```")[0]
    for placeholder, value in {
        "http://10.0.0.1:8000": urls[0],
        "http://10.0.0.2:8000": urls[1],
        "/models/llama": str(bundled_tokenizer()),
    }.items():
        assert placeholder in program
        program = program.replace(placeholder, value)
    return program + "    load = router.ledger.load(decision.worker.id).num_in_flight\n"


async def run(program: str, folder: Path) -> dict[str, Any]:
    """The program's last line. -I: neither the current directory nor PYTHONPATH lead to the checkout."""
    interpreter = Path(GATEWAY[0]).absolute()  # it may be relative to the current directory
    python = await asyncio.create_subprocess_exec(
        *(interpreter, "-I", "-c", PROGRAM), stdin=PIPE, stdout=PIPE, stderr=PIPE, cwd=folder
    )
    out, err = await python.communicate(program.encode())
    assert python.returncode == 0, err.decode()
    result: dict[str, Any] = json.loads(out.splitlines()[-1])
    return result


async def test_the_installed_library_routes_a_request_as_the_guide_shows(tmp_path: Path) -> None:
    sims = [await Sim(SimConfig(seed=seed, model="llama")).start() for seed in range(2)]
    try:
        result = await run(shown([sim.url for sim in sims]), tmp_path)
        assert result["url"] in [sim.url for sim in sims]
        assert (result["num_tokens"] > 0, result["load"]) == (True, 0)
        body = {"model": "llama", "prompt": "Once upon a time", "max_tokens": 1}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{result['url']}/v1/completions", json=body) as answer,
        ):
            assert answer.status == 200
    finally:
        for sim in sims:
            await sim.stop()
    is_wheel = bool(os.environ.get("GATEWAY_PYTHON"))
    assert result["router"].endswith(".so") is is_wheel
    assert Path(result["file"]).is_relative_to(result["packages"] if is_wheel else ROOT)
