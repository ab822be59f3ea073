"""Access to the admin port, by the address on which it listens."""

import logging
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from gateway.config import config_of
from gateway.core.errors import ConfigError
from gateway.server.sockets import bind_tcp, bind_unix
from gateway.tenancy.auth.admin_access import PROBES, check_open, is_local, scope_of, settle

KEYS: dict[str, Any] = {"admin_key_file": "keys"}
PROBING: dict[str, Any] = {"admin_without_keys": "probes"}
OPEN: dict[str, Any] = {"admin_without_keys": "open"}


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("localhost", True),
        ("", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("gw.example", False),
    ],
)
def test_addresses_of_this_host_are_local(host: str, local: bool) -> None:
    assert is_local(host) is local


@pytest.mark.parametrize(
    ("options", "local", "elsewhere"),
    [
        ({}, "off", None),
        (KEYS, "off", "api"),
        ({"key_file": "k"}, "off", "api"),
        (PROBING, "off", PROBES),
        (OPEN, "off", "off"),
        (KEYS | OPEN, "off", "api"),
        (KEYS | {"admin_auth": "off"}, "off", None),
        (KEYS | {"admin_auth": "changes"}, "changes", None),
        (KEYS | {"admin_auth": "api"}, "api", "api"),
        (KEYS | {"admin_auth": "all"}, "all", "all"),
        (KEYS | OPEN | {"admin_auth": "off"}, "off", "off"),
        (KEYS | OPEN | {"admin_auth": "changes"}, "changes", "changes"),
        (PROBING | {"admin_auth": "off"}, "off", None),
        ({"admin_auth": "api"}, PROBES, PROBES),
    ],
)
def test_the_scope_of_keys_follows_from_address_and_options(
    options: dict[str, Any], local: str, elsewhere: str | None
) -> None:
    config = config_of(**options)
    for host, wanted in (("127.0.0.1", local), ("0.0.0.0", elsewhere)):
        with bind_tcp(host, 0, "admin_port") as listening:
            if wanted is None:
                with pytest.raises(
                    ConfigError, match=r"admin_(host|auth): .*--admin-host 127.0.0.1.*--admin-key-file"
                ):
                    settle(config, listening)
            else:
                settled = settle(config, listening)
                assert scope_of(settled, host) == scope_of(settled, "127.0.0.1") == wanted
                assert settled.admin.auth != "auto"


def test_the_socket_decides_and_not_the_option(tmp_path: Path) -> None:
    """systemd may have bound another address, or a Unix socket."""
    with bind_tcp("0.0.0.0", 0, "x") as listening, pytest.raises(ConfigError, match="0.0.0.0"):
        settle(config_of(admin_host="127.0.0.1"), listening)
    with bind_unix(os.fspath(tmp_path / "s"), 0o600, "x") as listening:
        assert settle(config_of(admin_host="0.0.0.0"), listening).admin.auth == "off"


def test_an_open_port_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("0.0.0.0", 0)) as listening, caplog.at_level(logging.WARNING, "kvgate.admin"):
        settle(config_of(**OPEN), listening)
    assert "admin API at 0.0.0.0: no key required" in caplog.text


def test_a_check_without_a_socket_uses_the_option() -> None:
    check_open(config_of(), "127.0.0.1")
    with pytest.raises(ConfigError, match="admin_host"):
        check_open(config_of(), "gw.example")


def test_without_a_socket_an_open_address_is_closed_by_default() -> None:
    assert scope_of(config_of(admin_host="0.0.0.0")) == PROBES
    assert scope_of(config_of()) == "off"
