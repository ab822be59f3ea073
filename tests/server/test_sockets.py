"""Sockets: bound, rejected and removed; tests/blackbox has their clients."""

import dataclasses
import errno
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.core.errors import ConfigError
from gateway.server.sockets import SocketFile, bind_tcp, bind_unix
from tests.support.patience import patience


@pytest.fixture
def path(tmp_path: Path) -> Iterator[str]:
    """Relative path: a socket's path is short and a test's directory may not be."""
    before = os.getcwd()
    os.chdir(tmp_path)
    yield "gateway.sock"
    os.chdir(before)


def refused(path: str) -> str:
    with pytest.raises(ConfigError) as caught:
        bind_unix(path, 0o600)
    return str(caught.value)


def dead_socket(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)


def test_a_bound_port_is_known_and_accepts_clients_at_once() -> None:
    with bind_tcp("127.0.0.1", 0, "port") as listening:
        address = listening.getsockname()
        assert not listening.getblocking()
        with socket.create_connection(address, timeout=patience(5)):
            pass


@pytest.mark.parametrize(
    ("host", "message"),
    [("127.0.0.1", "Address already in use"), ("no.such.invalid", "(not known|name resolution)")],
)
def test_an_unavailable_address_is_an_error(host: str, message: str) -> None:
    with bind_tcp("127.0.0.1", 0, "port") as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"^admin_port: cannot listen on {host}:{port}: .*{message}"):
            bind_tcp(host, port, "admin_port")


def test_an_unknown_host_is_an_error() -> None:
    with pytest.raises(ConfigError, match="^port: cannot listen on .*: is not a host name$"):
        bind_tcp("a" * 70 + ".invalid", 1, "port")


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
def test_a_socket_file_has_the_configured_permissions(path: str, mode: int) -> None:
    before = os.umask(0o022)
    try:
        with bind_unix(path, mode) as listening:
            assert stat.S_IMODE(os.stat(path).st_mode) == mode
            assert listening.family == socket.AF_UNIX
        assert os.umask(0o022) == 0o022  # the umask as before
    finally:
        os.umask(before)


def test_a_file_left_by_a_dead_process_is_replaced(path: str) -> None:
    dead_socket(path)
    with bind_unix(path, 0o600), socket.socket(socket.AF_UNIX) as client:
        client.connect(path)


def test_a_socket_with_a_listener_is_left_alone(path: str) -> None:
    with bind_unix(path, 0o600):
        assert (
            refused(path) == f"unix_socket: another process listens on {path}; stop it or choose another path"
        )
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)


def test_a_busy_listener_is_alive(path: str) -> None:
    """A full backlog lets connecting fail, but not as with a dead listener."""
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as client:
        busy.bind(path)
        busy.listen(0)
        client.connect(path)
        assert "another process listens" in refused(path)


def test_another_file_in_the_way_is_an_error(path: str) -> None:
    Path(path).write_text("precious")
    assert (
        refused(path)
        == f"unix_socket: {path} exists and is not a socket; move it away or choose another path"
    )
    assert Path(path).read_text() == "precious"


@pytest.mark.parametrize(
    ("path", "reason"),
    [("missing/gateway.sock", "No such file or directory"), ("x" * 200, "too long"), ("a\0b", "null")],
)
def test_an_impossible_path_is_an_error(path: str, reason: str, tmp_path: Path) -> None:
    assert reason in refused(path)
    assert not list(tmp_path.iterdir())


def test_a_socket_of_another_user_is_an_error(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dead_socket(path)
    monkeypatch.setattr(socket.socket, "connect_ex", lambda sock, address: errno.EACCES)
    assert refused(path) == f"unix_socket: {path} exists, and this user may not connect to it"
    assert os.path.exists(path)


def test_a_file_is_removed_by_its_own_listener_only(path: str) -> None:
    with bind_unix(path, 0o600) as listening:
        own = SocketFile.of(listening)
        assert own
        dataclasses.replace(own, inode=own.inode + 1).remove()  # a listener replaced by another
        assert os.path.exists(path)
        own.remove()
        assert not os.path.exists(path)
        own.remove()  # gone already
        assert SocketFile.of(listening) is None


def test_a_tcp_socket_has_no_file() -> None:
    with bind_tcp("127.0.0.1", 0, "port") as listening:
        assert SocketFile.of(listening) is None
