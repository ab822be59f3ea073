"""A gateway under systemd, played by the test: the gateway takes the opened port and reports each state."""

import http.client
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.fleet import GATEWAY
from tests.support.gateway_process import clean_environment
from tests.support.patience import patience

pytestmark = pytest.mark.process

AS_SYSTEMD = """\
import os, sys
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1", LISTEN_FDNAMES="port")
os.dup2(int(sys.argv[1]), 3)
os.execv(sys.argv[2], sys.argv[2:])
"""


@pytest.mark.parametrize("processes", ["1", "2"])
def test_gateway_takes_systemds_port_and_notifies_each_state(tmp_path: Path, processes: str) -> None:
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifications,
        socket.create_server(("127.0.0.1", 0)) as port,
        open(tmp_path / "log", "wb") as log,
    ):
        notifications.bind(str(tmp_path / "notify"))
        notifications.settimeout(60)
        config = tmp_path / "kvgate.toml"
        config.write_text("[proxy]\nmax_attempts = 2\n")
        flags = ("--port", "0", "--admin-port", "0", "--config", str(config), "--processes", processes)
        process = subprocess.Popen(
            [sys.executable, "-c", AS_SYSTEMD, str(port.fileno()), *GATEWAY, "serve", *flags],
            env=clean_environment() | {"NOTIFY_SOCKET": str(tmp_path / "notify")},
            pass_fds=[port.fileno()],
            stderr=log,
        )
        try:
            client = http.client.HTTPConnection(*port.getsockname(), timeout=patience(60))
            client.request("GET", "/health")  # before it accepts: systemd has bound the port
            answer = client.getresponse()
            assert answer.status == 200 and answer.read()
            client.close()
            assert notifications.recv(1000).decode() == f"READY=1\nMAINPID={process.pid}"
            process.send_signal(signal.SIGHUP)
            assert notifications.recv(1000).startswith(b"RELOADING=1\nMONOTONIC_USEC=")
            assert notifications.recv(1000).startswith(b"READY=1")
            process.send_signal(signal.SIGTERM)
            assert notifications.recv(1000).startswith(b"STOPPING=1")
            assert process.wait(patience(60)) == 0
        finally:
            process.kill()
            process.wait()
        assert f"listening on http://127.0.0.1:{port.getsockname()[1]}" in (tmp_path / "log").read_text()
        assert os.fstat(port.fileno())
