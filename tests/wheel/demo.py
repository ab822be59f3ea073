"""The demo of an installed wheel, as its command starts it."""

import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp

from tests.support.gateway_process import clean_environment
from tests.support.patience import patience

CURL = re.compile(r"curl (\S+)/v1/completions -d '(\{.*\})'")


@contextmanager
def demo(python: Path, folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """Run `kvgate demo` of the environment of this interpreter, in a folder that has no checkout."""
    process = subprocess.Popen(
        [python.parent / "kvgate", "demo", "--port", "0", "--quiet-traffic"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env=clean_environment(),
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


async def answers(process: "subprocess.Popen[str]") -> None:
    """Send the request that the demo shows; it is answered, and the demo ends when it is asked to."""
    assert process.stdout is not None
    shown = None
    said = ""
    for line in process.stdout:
        said += line
        if shown := CURL.search(line):
            break
    assert shown is not None, said
    assert "No module named" not in said, "a process that it starts looks for a module of the checkout"
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(patience(60))) as session,
        session.post(f"{shown[1]}/v1/completions", data=shown[2].encode()) as answer,
    ):
        assert answer.status == 200 and (await answer.json())["choices"]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=patience(60))
    assert process.returncode == 0
