"""Binding of listening sockets, and adoption of accepted connections.

    host, port ──► bind_tcp  ─┐
                              ├─► listening sockets ─► Acceptor ─► adopt: a connection, here or in
    path, mode ──► bind_unix ─┘                                    another process

A socket listens as soon as it is bound, so that a taken address is known before anything else is started, and
early clients wait instead of being refused. A socket file belongs to the process that listens on it last:
`SocketFile` removes it only as long as that is still the socket it was made for.
"""

import asyncio
import errno
import os
import socket
import ssl
import stat
import struct
from collections.abc import Callable
from dataclasses import dataclass

from gateway.core.errors import ConfigError
from gateway.http.url import netloc_of

BACKLOG = 2048
"""Clients that may wait to be accepted: a burst when a whole fleet's clients reconnect."""
SHUTDOWN_TIMEOUT_S = 5.0
"""Time for a client's TLS close; then its connection is closed all the same."""
PROBE_TIMEOUT_S = 1.0
"""Time to check for a listener on an existing socket file; the kernel answers at once."""


def bind_tcp(host: str, port: int, option: str, *, is_shared: bool = False) -> socket.socket:
    """Bind a listening TCP socket; with `is_shared`, other processes of this user may bind it too. Raises
    ConfigError that names the option and the address."""
    listening = None
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except (OSError, UnicodeError) as exc:
        if listening:
            listening.close()
        reason = exc.strerror if isinstance(exc, OSError) else "is not a host name"
        raise ConfigError(f"{option}: cannot listen on {netloc_of(host, port)}: {reason}") from exc
    listening.setblocking(False)
    return listening


def bind_unix(path: str, mode: int, option: str = "unix_socket") -> socket.socket:
    """Bind a listening Unix socket with a file that has the permissions `mode` from its first moment on.

    The file of a dead process is replaced. Raises ConfigError where another process listens there, where
    something else is in the way, and where the path cannot be used.
    """
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _make_way(path, option)
        before = os.umask(0o777 & ~mode)  # no client can connect between bind and a later chmod
        try:
            listening.bind(path)
        finally:
            os.umask(before)
        listening.listen(BACKLOG)
    except ConfigError:
        listening.close()
        raise
    except (OSError, ValueError) as exc:  # ValueError: a path with a NUL
        listening.close()
        reason = (exc.strerror if isinstance(exc, OSError) else None) or str(exc)
        raise ConfigError(f"{option}: cannot listen on {path}: {reason}") from exc
    listening.setblocking(False)
    return listening


async def adopt(
    connection: socket.socket,
    make_protocol: Callable[[], asyncio.Protocol],
    tls: ssl.SSLContext | None,
    handshake_timeout_s: float,
) -> None:
    """Serve an accepted connection, of this or another process; it owns the socket. Unix sockets are plain:
    their traffic does not leave the host. Raises OSError where the connection or its handshake fails before
    it is served."""
    loop = asyncio.get_running_loop()
    connection.setblocking(False)
    try:
        if tls is None or connection.family == socket.AF_UNIX:
            await loop.connect_accepted_socket(make_protocol, connection)
        else:
            await loop.connect_accepted_socket(
                make_protocol,
                connection,
                ssl=tls,
                ssl_handshake_timeout=handshake_timeout_s,
                ssl_shutdown_timeout=SHUTDOWN_TIMEOUT_S,
            )
    except BaseException:
        connection.close()
        raise


def reset_at_close(transport: asyncio.Transport) -> None:
    """Make the connection end with a reset, so that the other end notices an incomplete transfer."""
    if sock := transport.get_extra_info("socket"):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@dataclass(frozen=True, slots=True)
class SocketFile:
    """File of a Unix socket, distinguished from a later one at the same path."""

    path: str
    device: int
    inode: int

    @classmethod
    def of(cls, listening: socket.socket) -> "SocketFile | None":
        """Return a socket's file; None for a TCP socket, and where the file is gone."""
        if listening.family != socket.AF_UNIX:
            return None
        path = os.fsdecode(listening.getsockname())
        try:
            found = os.lstat(path)
        except OSError:
            return None
        return cls(path, found.st_dev, found.st_ino)

    def remove(self) -> None:
        """Remove the file, if it is still this one. Call before the last listener is closed, and not at all
        where another process keeps listening."""
        try:
            found = os.lstat(self.path)
            if (found.st_dev, found.st_ino) == (self.device, self.inode):
                os.unlink(self.path)
        except FileNotFoundError:
            pass


def _make_way(path: str, option: str) -> None:
    """Remove the file of a dead socket. Raises ConfigError for anything else."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise ConfigError(f"{option}: {path} exists and is not a socket; move it away or choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_TIMEOUT_S)
        failure = probe.connect_ex(path)
    if failure == errno.ECONNREFUSED:
        os.unlink(path)
    elif failure == errno.EACCES:
        raise ConfigError(f"{option}: {path} exists, and this user may not connect to it")
    elif failure != errno.ENOENT:
        raise ConfigError(f"{option}: another process listens on {path}; stop it or choose another path")
