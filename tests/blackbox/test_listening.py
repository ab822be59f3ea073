"""Clients over a Unix socket."""

import os
import signal
import stat
from pathlib import Path

import pytest

from tests.support.blackbox.bench import running
from tests.support.blackbox.http1_bytes import completion, post, request
from tests.support.blackbox.real_gateway import refusal
from tests.support.blackbox.strict_client import Client

pytestmark = pytest.mark.interpreted


@pytest.fixture
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("s") / "g")
    assert len(path) < 100, "set TMPDIR to a shorter path: a socket's has 107 bytes"
    return path


async def test_a_unix_socket_and_the_port_are_served(path: str) -> None:
    async with running("--unix-socket", path) as bench:
        await bench.gateway.logged(f"listening on unix:{path}$")
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        await bench.worker()
        client = await Client.open_unix(path)
        bench.clients.append(client)
        for _ in range(2):
            assert (await client.ask(post(completion()))).json == {"ok": True}
        assert (await bench.ask(post(completion()))).json == {"ok": True}
        assert await bench.gateway.stop() == 0
        assert not os.path.exists(path)


async def test_the_socket_of_a_killed_gateway_is_replaced(path: str) -> None:
    async with running("--unix-socket", path, exit_code=-signal.SIGKILL) as bench:
        bench.gateway.process.kill()
        await bench.gateway.exited()
    assert os.path.exists(path)
    async with running("--unix-socket", path, "KVGATE_UNIX_SOCKET_MODE=660") as bench:
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o660
        client = await Client.open_unix(path)
        bench.clients.append(client)
        assert (await client.ask(request("GET", "/health"))).status == 200
        reported = await refusal("--unix-socket", path)
        assert f"unix_socket: another process listens on {path}" in reported
        assert (await client.ask(request("GET", "/health"))).status == 200
    assert not os.path.exists(path)


async def test_an_occupied_path_is_rejected(path: str) -> None:
    Path(path).write_text("precious")
    assert f"unix_socket: {path} exists and is not a socket" in await refusal("--unix-socket", path)
    assert Path(path).read_text() == "precious"


async def test_an_invalid_mode_is_rejected() -> None:
    assert "KVGATE_UNIX_SOCKET_MODE" in await refusal("KVGATE_UNIX_SOCKET_MODE=rw")


async def test_an_ipv6_address_is_written_as_a_url() -> None:
    async with running("--host", "::") as bench:
        await bench.gateway.logged(r"listening on http://\[::\]:\d+, admin on http://127.0.0.1:\d+$")
    assert "cannot listen on [fd00::7]:1:" in await refusal("--host", "fd00::7", "--port", "1")
