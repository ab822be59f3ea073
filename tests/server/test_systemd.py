"""Notifications to systemd, and sockets passed by it."""

import os
import socket
from pathlib import Path

import pytest

from gateway.core.errors import ConfigError
from gateway.server.socket_set import SocketSpec
from gateway.server.systemd import READY, STOPPING, activated, notify, reloading

PORT, ADMIN = SocketSpec("port", "127.0.0.1", 1), SocketSpec("admin_port", "127.0.0.1", 2)


def heard(path: str, state: str) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind("\0" + path[1:] if path[0] == "@" else path)
        notify(state, {"NOTIFY_SOCKET": path})
        return sock.recv(1000).decode()


def test_states_are_notified(tmp_path: Path) -> None:
    assert heard(str(tmp_path / "notify"), READY) == f"READY=1\nMAINPID={os.getpid()}"
    assert heard(f"@kvgate-test-{os.getpid()}", STOPPING).startswith("STOPPING=1")
    message = heard(str(tmp_path / "again"), reloading())
    assert (
        message.startswith("RELOADING=1\nMONOTONIC_USEC=") and int(message.split()[1].partition("=")[2]) > 0
    )


def test_a_missing_or_silent_notify_socket_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    notify(READY, {})
    assert not caplog.text
    notify(READY, {"NOTIFY_SOCKET": str(tmp_path / "none")})
    assert "not notified of READY" in caplog.text


def test_sockets_for_another_process_are_not_ours() -> None:
    environ = {"LISTEN_PID": "1", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "port"}
    assert activated([PORT], environ) == {} and environ == {}
    assert activated([PORT], {}) == {}


def test_a_socket_without_an_option_is_rejected() -> None:
    environ = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "3", "LISTEN_FDNAMES": "x:y:z"}
    with pytest.raises(ConfigError, match="name it takeover_socket"):
        activated([SocketSpec("takeover_socket", "/x")], environ)
