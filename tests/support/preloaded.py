"""Starts of the gateway that cost a fork, from a template process that has imported everything.

`install()` replaces `subprocess.Popen` in this process (asyncio uses it too). A command of the gateway
then goes to the template, which is this file run as a program. It forks twice: the second child gets the
caller's descriptors, environment and directory, and runs `gateway/__main__.py` as `python -m gateway`
does; the first child ends, which makes the second one a child of the test process. So waiting, signals
and exit codes are those of any child. Commands that ask for more than that, and all others, start as
usual.
"""

import array
import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

PYTHON = os.environ.get("GATEWAY_PYTHON", sys.executable)
COMMAND = [PYTHON, "-P", "-m", "gateway"]
MODULES = ("uvloop", "gateway.app", "gateway.commands.serve", "gateway.commands.check_run", "engines.sim.cli")
PR_SET_CHILD_SUBREAPER = 36
MAX_REQUEST_BYTES, MAX_FILES = 1 << 20, 64


class Template:
    """The process that forks, and the socket to it."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_REQUEST_BYTES)
        self._prctl = ctypes.CDLL(None, use_errno=True).prctl
        self._settings = _settings_of_imports(os.environ)
        with theirs:
            command = [PYTHON, "-P", __file__, str(theirs.fileno())]
            self._process = _Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)

    def takes(self, command: Any, environ: "os._Environ[str] | dict[str, str]") -> bool:
        """True if a gateway started this way would import the same as the template."""
        is_gateway = isinstance(command, list | tuple) and list(command[: len(COMMAND)]) == COMMAND
        return is_gateway and _settings_of_imports(environ) == self._settings

    def start(self, command: list[str], files: dict[int, int], environ: dict[str, str], cwd: str) -> int:
        """Start a child of this process; `files` maps each of its descriptors to one here."""
        request = {"argv": command, "environ": environ, "cwd": cwd, "files": list(files)}
        fds = array.array("i", files.values())
        self._adopt(True)
        try:
            self._socket.sendmsg(
                [json.dumps(request).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)]
            )
            answer = self._socket.recv(64)
        finally:
            self._adopt(False)
        if not answer:
            raise OSError("the template process of the gateway has ended")
        return int(answer)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()

    def _adopt(self, is_on: bool) -> None:
        """Make orphans below this process its children, or not."""
        if self._prctl(PR_SET_CHILD_SUBREAPER, int(is_on), 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")


def _settings_of_imports(environ: Any) -> dict[str, str]:
    """Variables that Python, its allocator or a library reads at the start or when it is imported."""
    return {name: environ[name] for name in environ if name.startswith(("PYTHON", "LD_", "HF_", "MALLOC_"))}


_Popen = subprocess.Popen
_template: Template | None = None


class PreloadedPopen(_Popen):  # type: ignore[type-arg]
    """`subprocess.Popen`, by the template where it is a plain start of the gateway."""

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, close_fds: Any, *rest: Any) -> None:
        pass_fds, cwd, env, _, _, shell, *pipes = rest[:12]
        given = os.environ if env is None else env
        is_plain = not (executable or preexec_fn or shell) and close_fds and _are_defaults(rest[12:])
        if not (is_plain and _template and _template.takes(args, given)):
            super()._execute_child(args, executable, preexec_fn, close_fds, *rest)  # type: ignore[misc]
            return
        stdin, _, _, stdout, _, stderr = pipes
        files = {0: stdin, 1: stdout, 2: stderr} | {int(fd): int(fd) for fd in pass_fds}
        files = {number: number if fd == -1 else fd for number, fd in files.items()}
        try:
            self.pid = _template.start(list(args), files, dict(given), os.fspath(cwd or os.getcwd()))
            self._child_created = True
        finally:
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


def _are_defaults(rest: tuple[Any, ...]) -> bool:
    """True without a group, user, umask, session or process group, and with Python's signals restored."""
    restore_signals, *others = rest
    return restore_signals and all(value in (None, False, -1) for value in others)


def install() -> None:
    """Replace `subprocess.Popen` in this process from now on."""
    global _template
    _template = Template()
    subprocess.Popen = PreloadedPopen  # type: ignore[misc]


def uninstall() -> None:
    global _template
    subprocess.Popen = _Popen  # type: ignore[misc]
    if _template:
        _template.close()
    _template = None


# The template ------------------------------------------------------------------------------------


def _serve(requests: socket.socket) -> None:
    """Fork for each request, until the other end is closed."""
    while True:
        data, ancillary, _, _ = requests.recvmsg(MAX_REQUEST_BYTES, socket.CMSG_SPACE(MAX_FILES * 4))
        if not data:
            return
        fds = array.array("i")
        for _, _, part in ancillary:
            fds.frombytes(part[: len(part) - len(part) % fds.itemsize])
        reading, writing = os.pipe()
        first = os.fork()
        if not first:
            second = os.fork()
            if not second:
                for fd in (reading, writing, requests.detach()):
                    os.close(fd)
                _run(json.loads(data), list(fds))
            os.write(writing, str(second).encode())
            os._exit(0)
        os.waitpid(first, 0)  # its child has another parent from now on
        requests.send(os.read(reading, 64))
        for fd in (reading, writing, *fds):
            os.close(fd)


def _run(request: dict[str, Any], fds: list[int]) -> NoReturn:
    """Run `python -m gateway` with these arguments; ends the process."""
    try:
        high = [os.dup2(fd, fd + 1000, inheritable=False) for fd in fds]
        for fd in fds:
            os.close(fd)
        for number, fd in zip(request["files"], high, strict=True):
            os.dup2(fd, number)
            os.close(fd)
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["environ"])
        sys.argv = request["argv"][len(COMMAND) - 1 :]
        runpy.run_module("gateway", run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as exc:
        code = exc.code if isinstance(exc.code, int) else int(exc.code is not None)
        if isinstance(exc.code, str):
            print(exc.code, file=sys.stderr)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
        code = 130
    except BaseException:  # noqa: BLE001 - printed, as the interpreter does
        traceback.print_exc()
        code = 1
    _end(code)


def _end(code: int) -> NoReturn:
    """End as the interpreter does: run exit handlers and flush buffers."""
    import atexit
    import threading

    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


if __name__ == "__main__":
    for module in MODULES:
        __import__(module)
    sys.path.append(str(Path(__file__).parent))  # alone: a wheel has no pytest
    shared_tokenizers = importlib.import_module("shared_tokenizers")
    sys.path.pop()
    shared_tokenizers.share()
    shared_tokenizers.warm()
    gc.freeze()
    _serve(socket.socket(fileno=int(sys.argv[1])))
