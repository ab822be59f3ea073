"""Embedded server: alone, and with `kvgate serve`."""

import contextlib
import os
import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gateway.config import load
from gateway.core.errors import ConfigError
from gateway.redis.embedded import EmbeddedServer, embedded
from loadtest.fleet import GATEWAY
from loadtest.ports import free_port
from tests.support.gateway_process import GatewayProcess, clean_environment
from tests.support.patience import patience
from tests.support.redis_servers import serving

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]


def is_running(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def ended(pid: int) -> bool:
    end = time.monotonic() + 10
    while is_running(pid) and time.monotonic() < end:
        time.sleep(0.01)
    return not is_running(pid)


def test_an_embedded_server_answers_keeps_no_files_and_ends() -> None:
    with serving() as server:
        assert server.pid and is_running(server.pid)
        assert server.ask("PING") is True or server.ask("PING") in (b"PONG", "PONG")
        assert stat.S_IMODE(server.directory.stat().st_mode) == 0o700
        server.ask("SET", "a", "b")
        assert sorted(path.name for path in server.directory.iterdir()) == ["log", "socket"]
    assert not is_running(server.pid or 0)
    assert not server.directory.exists()


def test_a_paused_server_is_ended() -> None:
    with serving() as server:
        assert server.pid
        os.kill(server.pid, signal.SIGSTOP)
    assert not is_running(server.pid)


def test_a_failed_start_has_its_reason() -> None:
    server = EmbeddedServer("--no-such-flag", "1")
    with pytest.raises(ConfigError, match="the embedded server did not start, it ended with status 1: ."):
        server.start()
    assert not server.directory.exists()


def test_a_server_is_started_only_where_configured() -> None:
    config = load({}, environ={})
    with embedded(config) as same:
        assert same is config
    with embedded(load({"redis": "embedded"}, environ={})) as changed:
        path = Path(changed.redis.url.removeprefix("unix://"))
        assert path.is_socket()
        assert changed.redis.booking == "own", "there are no other hosts"
    assert not path.exists()


def test_a_server_dies_with_its_starter() -> None:
    code = (
        "from gateway.redis.embedded import EmbeddedServer as E; import time; "
        "e = E(); e.start(); print(e.pid, e.directory, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        pid, directory = process.stdout.readline().split()
        assert is_running(int(pid))
        process.kill()
    assert ended(int(pid))
    for path in Path(directory).iterdir():
        path.unlink()
    Path(directory).rmdir()


@pytest.mark.parametrize("processes", [1, 2])
def test_a_gateway_has_its_own_server(processes: int) -> None:
    flags = ("--redis", "embedded", "--processes", str(processes))
    with GatewayProcess(*flags) as process:
        children = Path(f"/proc/{process.process.pid}/task/{process.process.pid}/children").read_text()
        names = {int(pid): Path(f"/proc/{pid}/comm").read_text().strip() for pid in children.split()}
        (server,) = [pid for pid, name in names.items() if name == "valkey-server"]
    assert not is_running(server)
    assert not re.search("redis", process.url)


def start(*flags: str) -> "subprocess.CompletedProcess[str]":
    command = [*GATEWAY, "serve", "--port", "0", "--admin-port", "0", *flags]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=patience(60), env=clean_environment()
    )


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_gateway_does_not_start_with_an_unusable_redis(processes: str) -> None:
    with serving("--requirepass", "secret") as server:
        url = f"redis://:wr0ng@127.0.0.1:{server.port}"
        done = start("--redis", url, "--processes", processes)
    assert done.returncode == 2
    assert "rejects the password or user" in done.stderr
    assert "wr0ng" not in done.stderr and "Traceback" not in done.stderr


def test_a_gateway_does_not_start_with_another_schema() -> None:
    with serving() as server:
        server.ask("SET", "kvgate:schema", "kvgate:0")
        done = start("--redis", server.url)
    assert done.returncode == 2
    assert "is 'kvgate:0', but this gateway reads and writes 'kvgate:1'" in done.stderr


def test_a_gateway_starts_without_its_redis() -> None:
    with GatewayProcess("--redis", f"redis://127.0.0.1:{free_port()}") as process:
        assert "unavailable, waiting for it" in process.log()
        assert "kvgate_redis_up 0.0" in process.metrics()


def test_check_reports_a_usable_or_unreachable_redis() -> None:
    assert re.search(
        "redis: unix://.* usable, with prefix f:",
        GatewayProcess.check("--redis", "embedded", "--redis-prefix", "f"),
    )
    port = free_port()
    with pytest.raises(AssertionError, match=f"redis: redis://127.0.0.1:{port} cannot be reached: "):
        GatewayProcess.check("--redis", f"redis://127.0.0.1:{port}")
