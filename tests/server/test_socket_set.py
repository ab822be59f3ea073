import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.config import config_of
from gateway.core.errors import ConfigError
from gateway.server.socket_set import Sockets, SocketSpec, socket_specs
from gateway.server.sockets import bind_tcp, bind_unix

pytestmark = pytest.mark.process

FREE = config_of(port=0, admin_port=0)


@pytest.fixture(autouse=True)
def here(tmp_path: Path) -> Iterator[None]:
    """Directory for relative paths: a socket's path is short and a test's directory may not be."""
    before = os.getcwd()
    os.chdir(tmp_path)
    yield
    os.chdir(before)


def mode(path: str) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def test_a_configuration_asks_for_its_sockets() -> None:
    assert [(asked_for.role, asked_for.port) for asked_for in socket_specs(config_of())] == [
        ("port", 8000),
        ("admin_port", 9400),
    ]
    config = config_of(unix_socket="u", unix_socket_mode="660", takeover_socket="t")
    assert {asked_for: mode for asked_for, mode in socket_specs(config).items() if mode} == {
        SocketSpec("unix_socket", "u"): 0o660,
        SocketSpec("takeover_socket", "t"): 0o600,
    }


def test_sockets_are_found_by_their_role() -> None:
    sockets = Sockets(config_of(port=0, admin_port=0, unix_socket="u", takeover_socket="t"))
    port, admin, unix, takeover = sockets.all.values()
    assert (sockets.traffic, sockets.admin, sockets.takeover) == ([port, unix], admin, takeover)
    assert (unix.getsockname(), takeover.getsockname()) == ("u", "t")
    assert repr(sockets) == "Sockets(port, admin_port, unix_socket, takeover_socket; files=2)"
    sockets.close()
    plain = Sockets(FREE)
    assert plain.takeover is None
    plain.close()


def test_equal_sockets_are_taken_over_and_others_opened() -> None:
    traffic, admin = socket_specs(FREE)
    other = SocketSpec("port", "127.0.0.1", 1)
    inherited = {traffic: bind_tcp("127.0.0.1", 0, "port"), other: bind_tcp("127.0.0.1", 0, "port")}
    sockets = Sockets(FREE, inherited)
    assert list(sockets.all) == [traffic, admin]
    assert sockets.all[traffic] is inherited[traffic]
    assert inherited[other].fileno() == -1, "no option asks for it any more"
    sockets.close()


def test_an_occupied_address_is_named_and_no_socket_stays_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = config_of(port=0, admin_port=port)
        inherited = {
            next(iter(socket_specs(config))): bind_tcp("127.0.0.1", 0, "port"),
            SocketSpec("unix_socket", "u"): bind_unix("u", 0o600),
        }
        with pytest.raises(ConfigError, match=f"admin_port: cannot listen on 127.0.0.1:{port}"):
            Sockets(config, inherited)
        assert [sock.fileno() for sock in inherited.values()] == [-1, -1]
        assert os.path.exists("u"), "it is still the other gateway's"


def test_files_of_own_sockets_are_removed() -> None:
    first = Sockets(config_of(port=0, admin_port=0, unix_socket="u", takeover_socket="t"))
    assert (mode("u"), mode("t")) == (0o600, 0o600)
    first.close()
    assert not os.path.exists("u") and not os.path.exists("t")


def test_files_of_inherited_sockets_are_removed_by_the_new_owner() -> None:
    old = Sockets(config_of(port=0, admin_port=0, unix_socket="u", takeover_socket="t"))
    heirs = {asked_for: sock.dup() for asked_for, sock in old.all.items()}
    given_up = Sockets(config_of(port=0, admin_port=0, unix_socket="u"), heirs)
    given_up.close()
    assert os.path.exists("u"), "who never accepted removes nothing"

    heirs = {asked_for: sock.dup() for asked_for, sock in old.all.items()}
    new = Sockets(config_of(port=0, admin_port=0, unix_socket="u", unix_socket_mode="666"), heirs)
    assert mode("u") == 0o600
    new.own_files()
    assert mode("u") == 0o666
    old.hand_over(new.all)
    old.close()
    assert os.path.exists("u") and not os.path.exists("t"), "no process listens at the second any more"
    with socket.socket(socket.AF_UNIX) as client:
        client.connect("u")
    new.close()
    assert not os.path.exists("u")


@pytest.mark.parametrize("option", ["unix_socket", "takeover_socket"])
def test_an_impossible_path_is_reported_with_its_option(option: str) -> None:
    Path("file").write_text("mine")
    for path, why in (("file", "exists and is not a socket"), ("no/where", "No such file")):
        with pytest.raises(ConfigError, match=f"^{option}: .*{why}"):
            Sockets(config_of(port=0, admin_port=0, **{option: path}))
