"""Commands of kvgate, with printable output."""

import asyncio.subprocess
import json

from loadtest.fleet import GATEWAY
from tests.support.gateway_process import clean_environment
from tests.support.patience import patience

MODELS = {"object": "list", "data": [{"id": "m", "object": "model", "max_model_len": 100}]}


async def kvgate(*arguments: str, is_json: bool = False, code: int | None = None) -> str:
    """Output and errors of a command, in which each line is printable; it must end, with `code`."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *GATEWAY, *arguments, stdout=pipe, stderr=pipe, env=clean_environment()
    )
    try:
        async with asyncio.timeout(patience(60)):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    text = out.decode() + err.decode()
    assert "Traceback" not in text and code in (None, process.returncode), text
    for line in text.replace("\t", " ").split("\n"):
        assert line.isprintable() and not line.startswith("forged"), repr(line)
    assert json.loads(out) if is_json else True
    return text
