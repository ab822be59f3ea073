"""Listening sockets of a gateway: bound by it, or taken over from the one before it.

A socket is identified by its configuration (role, host or path, port as configured), so that one bound to
"any free port" is taken over by a gateway configured for any free port.
"""

import contextlib
import os
import socket
from collections.abc import Collection, Mapping

import msgspec

from gateway.config import Config
from gateway.core.errors import ConfigError
from gateway.server.sockets import SocketFile, bind_tcp, bind_unix

UNIX, TAKEOVER = "unix_socket", "takeover_socket"
TRAFFIC = ("port", UNIX)
OWN_USER_ONLY = 0o600


class SocketSpec(msgspec.Struct, frozen=True):
    """Configuration of a listening socket; `host` is the path of a Unix socket. The role is the option that
    configures it."""

    role: str
    host: str
    port: int = 0


def socket_specs(config: Config) -> dict[SocketSpec, int]:
    """Return all sockets of a configuration, each with the permissions of its file, 0 where it has none."""
    wanted = {
        SocketSpec("admin_port", config.admin.host, config.admin.port): 0,
    }
    if not config.epp.only:
        wanted = {SocketSpec("port", config.server.host, config.server.port): 0, **wanted}
    if config.server.unix_socket:
        wanted[SocketSpec(UNIX, config.server.unix_socket)] = int(config.server.unix_socket_mode, 8)
    if config.server.takeover_socket:
        wanted[SocketSpec(TAKEOVER, config.server.takeover_socket)] = OWN_USER_ONLY
    return wanted


class Sockets:
    """Open listening sockets, `all` in the order of the configuration.

    The file of a Unix socket goes with the last gateway that listens there: at first this one removes those
    that it has bound itself, with `own_files` the others too, and none that its successor keeps.
    """

    def __init__(self, config: Config, inherited: Mapping[SocketSpec, socket.socket] | None = None) -> None:
        """Take sockets over and bind the rest; sockets that are no longer configured are closed. Raises
        ConfigError, with all closed."""
        self._modes = socket_specs(config)
        self.all: dict[SocketSpec, socket.socket] = {}
        self._files: dict[SocketSpec, SocketFile] = {}
        known = dict(inherited or {})
        try:
            for one, mode in self._modes.items():
                if one in known:
                    self.all[one] = known.pop(one)
                else:
                    self.all[one] = _bind(one, mode)
                    self._note_file(one)
        except ConfigError:
            self.close()
            raise
        finally:
            for sock in known.values():
                sock.close()

    def __repr__(self) -> str:
        return f"Sockets({', '.join(one.role for one in self.all)}; files={len(self._files)})"

    @property
    def traffic(self) -> list[socket.socket]:
        """Sockets for clients: the port first, then the Unix socket."""
        return [sock for one, sock in self.all.items() if one.role in TRAFFIC]

    @property
    def admin(self) -> socket.socket:
        return next(sock for one, sock in self.all.items() if one.role == "admin_port")

    @property
    def takeover(self) -> socket.socket | None:
        return next((sock for one, sock in self.all.items() if one.role == TAKEOVER), None)

    def own_files(self) -> None:
        """Own all socket files, now that this gateway listens: set their configured permissions, and remove
        them at its end."""
        for one, mode in self._modes.items():
            if one not in self._files and self._note_file(one):
                with contextlib.suppress(OSError):  # removed just now
                    os.chmod(self._files[one].path, mode)

    def hand_over(self, kept: Collection[SocketSpec]) -> None:
        """Leave the files of these sockets to the gateway that keeps them."""
        for one in kept:
            self._files.pop(one, None)

    def remove_files(self) -> None:
        """Remove owned socket files, before the sockets are closed."""
        for file in self._files.values():
            file.remove()
        self._files.clear()

    def close(self) -> None:
        self.remove_files()
        for sock in self.all.values():
            sock.close()

    def _note_file(self, one: SocketSpec) -> bool:
        if file := SocketFile.of(self.all[one]):
            self._files[one] = file
        return one in self._files


def _bind(one: SocketSpec, mode: int) -> socket.socket:
    if one.role in (UNIX, TAKEOVER):
        return bind_unix(one.host, mode, one.role)
    return bind_tcp(one.host, one.port, one.role)
