"""The service of examples/systemd and deploy/: its command, started as systemd starts it, and its units."""

import configparser
import http.client
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.fleet import GATEWAY, SIM_READY, first_match, running
from tests import ROOT
from tests.support.gateway_process import clean_environment
from tests.support.patience import patience

pytestmark = pytest.mark.process

AS_SYSTEMD = """\
import fcntl, os, sys
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="2")
ports = [fcntl.fcntl(int(each), fcntl.F_DUPFD, 10) for each in sys.argv[1:3]]
for number, port in enumerate(ports):
    os.dup2(port, 3 + number)
os.execv(sys.argv[3], sys.argv[3:])
"""


def unit(name: str) -> configparser.ConfigParser:
    parsed = configparser.ConfigParser(strict=False, interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read(ROOT / "deploy" / name)
    return parsed


def test_the_command_of_the_unit_serves_on_the_sockets_and_notifies(tmp_path: Path) -> None:
    kvgate, *arguments = shlex.split(unit("kvgate.service")["Service"]["ExecStart"])
    assert kvgate == "/opt/kvgate/bin/kvgate"
    text = (ROOT / "examples/systemd/kvgate.toml").read_text()
    with (
        running("sim", "--port", "0") as sim,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifications,
        socket.create_server(("127.0.0.1", 0)) as port,
        socket.create_server(("127.0.0.1", 0)) as admin,
        open(tmp_path / "log", "wb") as log,
    ):
        worker = first_match(sim, SIM_READY)[0]
        text = text.replace('"http://10.0.0.1:8000", "http://10.0.0.2:8000"', f'"{worker}"')
        (tmp_path / "kvgate.toml").write_text(text)
        assert worker in text
        notifications.bind(str(tmp_path / "notify"))
        notifications.settimeout(patience(60))
        given = [each.replace("/etc/kvgate.toml", str(tmp_path / "kvgate.toml")) for each in arguments]
        files = (port.fileno(), admin.fileno())
        process = subprocess.Popen(
            [sys.executable, "-c", AS_SYSTEMD, *map(str, files), *GATEWAY, *given],
            env=clean_environment() | {"NOTIFY_SOCKET": str(tmp_path / "notify")},
            pass_fds=files,
            stderr=log,
        )
        try:
            assert notifications.recv(1000).decode() == f"READY=1\nMAINPID={process.pid}"
            client = http.client.HTTPConnection(*port.getsockname(), timeout=patience(60))
            client.request("GET", "/v1/models")
            answer = client.getresponse()
            assert answer.status == 200 and b'"m"' in answer.read()
            client.close()
            process.send_signal(signal.SIGTERM)
            assert notifications.recv(1000).startswith(b"STOPPING=1")
            assert process.wait(patience(60)) == 0
        finally:
            process.kill()
            process.wait()


def test_units_are_valid(tmp_path: Path) -> None:
    """Run systemd's own check where it is there. The command is another: there is no /opt/kvgate here."""
    service, sockets = unit("kvgate.service"), unit("kvgate.socket")
    assert service["Service"]["Type"] == "notify" and sockets["Socket"]["Backlog"] == "4096"
    analyze = shutil.which("systemd-analyze")
    for name in ("kvgate.service", "kvgate.socket"):
        text = (ROOT / "deploy" / name).read_text().replace("/opt/kvgate/bin/kvgate", "/bin/true")
        (tmp_path / name).write_text(text)
    if analyze:
        units = [str(tmp_path / name) for name in ("kvgate.service", "kvgate.socket")]
        done = subprocess.run(
            [analyze, "verify", *units], capture_output=True, text=True, timeout=patience(60)
        )
        assert (done.returncode, "kvgate" in done.stderr) == (0, False), done.stderr
