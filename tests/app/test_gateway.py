"""A gateway of this process, from its start to its end; tests/blackbox and tests/stories have the rest."""

import asyncio
import socket
import sys

import pytest

from gateway.app import Gateway
from gateway.config import load
from gateway.core.errors import ConfigError

pytestmark = pytest.mark.process


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@pytest.mark.parametrize("option", ["port", "admin_port", "epp_port"])
async def test_a_port_in_use_leaves_nothing_open(option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        ports = {"port": free_port(), "admin_port": free_port(), "epp_port": free_port(), option: taken}
        gateway = Gateway(load({**ports, "worker": ["http://127.0.0.1:1"]}, {}))
        tasks = asyncio.all_tasks()
        with pytest.raises(ConfigError, match=f"^{option}: .*{taken}.* part did not start"):
            await gateway.start()
        assert asyncio.all_tasks() == tasks
        for port in {*ports.values()} - {taken}:
            socket.create_server(("127.0.0.1", port)).close()
    await gateway.stop()


async def test_one_that_was_never_started_is_closed() -> None:
    tasks = asyncio.all_tasks()
    await Gateway(load({"worker": ["http://127.0.0.1:1"]}, {})).stop()
    assert asyncio.all_tasks() == tasks


async def test_gateways_of_one_process_have_their_own_connections() -> None:
    one, other = Gateway(load({}, {})), Gateway(load({}, {}))
    assert one.parts.surroundings.connections is not other.parts.surroundings.connections
    await asyncio.gather(one.stop(), other.stop())


async def test_a_process_with_a_port_in_use_says_which_and_leaves_nothing_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        flags = {"--port": free_port(), "--admin-port": free_port(), "--epp-port": taken}
        command = [
            sys.executable,
            "-m",
            "kvgate",
            "serve",
            *(str(each) for pair in flags.items() for each in pair),
        ]
        process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
        _, stderr = await process.communicate()
        assert process.returncode == 2
        assert f"epp_port: cannot listen on 127.0.0.1:{taken}" in stderr.decode()
        assert "(the grpc ports part did not start)" in stderr.decode()
    for port in flags.values():
        socket.create_server(("127.0.0.1", port)).close()
