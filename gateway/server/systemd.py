"""systemd integration: state notifications (sd_notify), and socket activation. Does nothing without
NOTIFY_SOCKET and LISTEN_PID."""

import logging
import os
import socket
import time
from collections.abc import Mapping, MutableMapping, Sequence

from gateway.core.errors import ConfigError
from gateway.server.socket_set import SocketSpec

log = logging.getLogger("kvgate")

FIRST_FILE = 3
READY, STOPPING = "READY=1", "STOPPING=1"


def reloading() -> str:
    """Return the reload state, with the time that `Type=notify-reload` requires."""
    return f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}"


def notify(state: str, environ: Mapping[str, str] = os.environ) -> None:
    """Notify systemd of a state. A failure is only logged: systemd acts on a missing notification itself."""
    path = environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    address = "\0" + path[1:] if path[0] == "@" else path
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        try:
            sock.sendto(f"{state}\nMAINPID={os.getpid()}".encode(), address)
        except OSError as exc:
            log.warning("systemd at %s not notified of %s: %s", path, state.partition("=")[0], exc.strerror)


def activated(
    wanted: Sequence[SocketSpec], environ: MutableMapping[str, str] = os.environ
) -> dict[SocketSpec, socket.socket]:
    """Return the listening sockets that systemd passed, by their option: the FileDescriptorName=; of unnamed
    ones the first is the port, the second the admin port. Raises ConfigError for a socket without an option.
    """
    names = environ.pop("LISTEN_FDNAMES", "").split(":")
    num, pid = environ.pop("LISTEN_FDS", "0"), environ.pop("LISTEN_PID", "")
    if pid != str(os.getpid()):
        return {}
    by_role = {one.role: one for one in wanted}
    found: dict[SocketSpec, socket.socket] = {}
    for number in range(int(num)):
        name = names[number] if number < len(names) else ""
        role = name if name in by_role else (("port", "admin_port")[number] if number < 2 else name)
        if role not in by_role or by_role[role] in found:
            raise ConfigError(f"systemd passes a socket '{name}': name it {' or '.join(by_role)}")
        os.set_inheritable(FIRST_FILE + number, False)
        sock = socket.socket(fileno=FIRST_FILE + number)
        sock.setblocking(False)
        found[by_role[role]] = sock
    return found
